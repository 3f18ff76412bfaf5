package kube

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"time"
)

const (
	// judgeAfter is how long what a list lacks is gathered before it is judged: it comes one
	// by one.
	judgeAfter = time.Second
	// maxMissing is the largest part of the objects of a kind that a list which is read anew
	// may lack and be believed at once.
	maxMissing = 0.3
	// holdFor is how long objects without an address are held, and longer while a pod that is
	// missing with them answers.
	holdFor = 10 * time.Minute
	// deadAfter is how many probes in a row a held pod does not answer before it is believed
	// to be gone.
	deadAfter = 2
)

// freeMissing is how many objects of a kind may always be missing. A service that goes takes
// all its pods out of reach, and a cluster may have one: a third of these, of slices, nodes or
// namespaces is held however few they are.
var freeMissing = [kinds]int{Pods: 2, ServiceExports: 2}

// guard decides what becomes of objects that were known and that a list which was read
// anew does not have, after the watch was lost: either they were deleted meanwhile, or
// the API server has lost them (an etcd from an old backup, another cluster behind the
// address). Deletions that a watch tells of never come here: somebody made them, however
// many. A few that are missing are believed; many are held, pods for as long as their
// addresses answer. It asks nobody anything, and is not safe for concurrent use.
type guard struct {
	missing [kinds]absence
}

// absence is what is missing of one kind.
type absence struct {
	fresh map[name]struct{} // not judged yet
	since time.Time         // when the oldest of fresh came
	held  map[name]int      // by how many probes in a row were not answered
	begun time.Time         // when the oldest of held was
	of    int               // objects of the kind that were known then
}

// miss notes that a list which was read anew lacks an object.
func (g *guard) miss(k Kind, n name, now time.Time) {
	a := &g.missing[k]
	if _, is := a.held[n]; is {
		return
	}
	if len(a.fresh) == 0 {
		a.fresh, a.since = map[name]struct{}{}, now
	}
	a.fresh[n] = struct{}{}
}

// there notes that an object is there, or is gone by a better word.
func (g *guard) there(k Kind, n name) {
	a := &g.missing[k]
	delete(a.fresh, n)
	delete(a.held, n)
}

// judge returns what is believed to be gone of a kind of which so many objects are known,
// and how many more it holds from now on. probed reports whether an object has an address
// that can be asked: a pod that has none is believed to be gone.
func (g *guard) judge(k Kind, known int, now time.Time, probed func(name) bool) (gone []name, held int) {
	a := &g.missing[k]
	if len(a.fresh) == 0 || now.Sub(a.since) < judgeAfter {
		return nil, 0
	}
	many := len(a.fresh) > freeMissing[k] && float64(len(a.fresh)) > maxMissing*float64(known)
	for n := range a.fresh {
		if !many || k == Pods && !probed(n) {
			gone = append(gone, n)
			continue
		}
		if len(a.held) == 0 {
			a.held, a.begun, a.of = map[name]int{}, now, known
		}
		a.held[n] = 0
		held++
	}
	clear(a.fresh)
	return gone, held
}

// probe returns the held pods, at most so many.
func (g *guard) probe(most int) (out []name) {
	for n := range g.missing[Pods].held {
		if len(out) == most {
			break
		}
		out = append(out, n)
	}
	return out
}

// answered takes in whether a held pod answers, and reports whether it is now believed to
// be gone.
func (g *guard) answered(n name, does bool) (gone bool) {
	held := g.missing[Pods].held
	if _, is := held[n]; !is {
		return false
	}
	if does {
		held[n] = 0
		return false
	}
	held[n]++
	if held[n] < deadAfter {
		return false
	}
	delete(held, n)
	return true
}

// over returns what else is believed to be gone: all that has no address, once no held pod
// answers and its time is over.
func (g *guard) over(k Kind, now time.Time) (gone []name) {
	a := &g.missing[k]
	if k == Pods || len(a.held) == 0 || len(g.missing[Pods].held) > 0 || now.Sub(a.begun) < holdFor {
		return nil
	}
	return g.release(k)
}

// release returns all that is held of a kind, and holds it no more.
func (g *guard) release(k Kind) []name {
	a := &g.missing[k]
	gone := slices.Collect(maps.Keys(a.held))
	clear(a.held)
	return gone
}

// id names what is held, in twelve hexadecimal digits; empty if nothing is.
func (g *guard) id() string {
	sum := sha256.New()
	any := false
	for k := range g.missing {
		for _, n := range slices.SortedFunc(maps.Keys(g.missing[k].held), name.compare) {
			fmt.Fprintln(sum, Kind(k), n)
			any = true
		}
	}
	if !any {
		return ""
	}
	return hex.EncodeToString(sum.Sum(nil)[:6])
}
