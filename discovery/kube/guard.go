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
	// holdFor is how long objects without an address are held, and longer while a pod that is
	// missing with them answers.
	holdFor = 10 * time.Minute
	// restoredFor is the same for what an API server lacks that has gone backwards: it has
	// lost them for certain, and somebody has to make them anew. It also ends what is held
	// for the sake of pods, and pods themselves: who answers at the address of one for so long,
	// and no list knows it, may be somebody whom this cluster does not know.
	restoredFor = 24 * time.Hour
	// rewoundFor is how long before and after it is noticed that the API server has gone
	// backwards a list may lack something for that reason.
	rewoundFor = time.Minute
	// lagFor is how long it may be behind before that is noticed: less than rewoundFor.
	lagFor = 10 * time.Second
	// deadAfter is how many probes in a row a held pod does not answer before it is believed
	// to be gone.
	deadAfter = 2
)

// guard decides what becomes of objects that were known and that a list which was read
// anew does not have, after the watch was lost: either they were deleted meanwhile, or
// the API server has lost them (an etcd from an old backup, another cluster behind the
// address). Nothing in a list tells the two apart, and they do not cost the same: what is
// kept for some minutes after it was deleted is asked for by nobody, and a service that is
// dropped while its pods run fails all its connections. So all that is missing is held,
// however few: pods for as long as their addresses answer, what rests on pods as long as
// these are known, at most a day, and the rest for a while. Deletions that a watch tells of never come
// here: somebody made them. It asks nobody anything, and is not safe for concurrent use.
type guard struct {
	missing [kinds]absence
	rewound time.Time // when the API server was last seen to have gone backwards
}

// absence is what is missing of one kind.
type absence struct {
	lost map[name]*loss
	of   int // objects of the kind that were known when the oldest was first held
	// cached: some are missing by the word of a cache, and the list has not been read since. The
	// next one may have them.
	cached bool
}

// loss is one object that is missing.
type loss struct {
	verdict
	since      time.Time
	held       bool // it was judged, and is not believed to be gone
	restored   bool // the API server had gone backwards
	unanswered int  // probes in a row
}

// verdict is that an object is gone. It holds unless there is other news of the object
// than when a list lacked it.
type verdict struct {
	name
	news uint64 // the number of the news that the list lacked
}

// restore takes in an object that was missing in an earlier life, of so many that are known.
func (g *guard) restore(e Event, news uint64, since time.Time, restored bool, of int) {
	a, n := &g.missing[e.Kind], name{e.Namespace, e.Name}
	if a.lost == nil {
		a.lost = map[name]*loss{}
	}
	a.lost[n] = &loss{verdict: verdict{n, news}, since: since, held: true, restored: restored}
	a.of, a.cached = of, true
}

// cached returns all that is missing, for restore in a later life.
func (g *guard) cached(now time.Time) map[Event]cacheMissing {
	out := map[Event]cacheMissing{}
	for k := range g.missing {
		for n, l := range g.missing[k].lost {
			out[Event{Kind: Kind(k), Namespace: n.namespace, Name: n.name}] = cacheMissing{now.Sub(l.since).Milliseconds(), l.restored}
		}
	}
	return out
}

// set says what is missing of a kind now, each object with the number of its latest news, and
// reports whether more is missing than was.
func (g *guard) set(k Kind, missing map[name]uint64, now time.Time) (more bool) {
	a := &g.missing[k]
	for n, l := range a.lost {
		if news, is := missing[n]; !is || news != l.news {
			delete(a.lost, n) // it was there meanwhile, or is gone by a better word
		}
	}
	for n, news := range missing {
		if a.lost[n] != nil {
			continue
		}
		if a.lost == nil {
			a.lost = map[name]*loss{}
		}
		a.lost[n] = &loss{verdict: verdict{n, news}, since: now, restored: !g.rewound.IsZero() && now.Sub(g.rewound) < rewoundFor}
		more = true
	}
	return more
}

// rewind notes that the API server has gone backwards.
func (g *guard) rewind(now time.Time) {
	g.rewound = now
	for k := range g.missing {
		for _, l := range g.missing[k].lost {
			l.restored = l.restored || now.Sub(l.since) < rewoundFor
		}
	}
}

// empty reports whether nothing is missing.
func (g *guard) empty() bool {
	return !slices.ContainsFunc(g.missing[:], func(a absence) bool { return len(a.lost) > 0 })
}

// judge returns what is believed to be gone of a kind of which so many objects are known,
// and how many more it holds from now on. Of what nothing that is known needs, a list is
// believed.
func (g *guard) judge(k Kind, known int, now time.Time, needed func(name) bool) (gone []verdict, held int) {
	a := &g.missing[k]
	was, asked := a.held(), g.missing[Pods].held() > 0
	for n, l := range a.lost {
		age := now.Sub(l.since)
		switch {
		case age < judgeAfter:
		case !needed(n), !a.cached && l.over(age, asked || k == Pods):
			delete(a.lost, n)
			gone = append(gone, l.verdict)
		case !l.held:
			l.held = true
			held++
		}
	}
	if was == 0 {
		a.of = known
	}
	return gone, held
}

// over reports whether an object has been held for long enough, whoever answers; asked: it is a pod,
// or pods are held beside it.
func (l *loss) over(age time.Duration, asked bool) bool {
	return age >= restoredFor || age >= holdFor && !l.restored && !asked
}

// held is how many objects are held.
func (a *absence) held() (n int) {
	for _, l := range a.lost {
		if l.held {
			n++
		}
	}
	return n
}

// begun is since when the oldest that is held is missing.
func (a *absence) begun() (at time.Time) {
	for _, l := range a.lost {
		if l.held && (at.IsZero() || l.since.Before(at)) {
			at = l.since
		}
	}
	return at
}

// probe returns held pods, at most so many.
func (g *guard) probe(most int) (out []verdict) {
	for _, l := range g.missing[Pods].lost {
		if l.held && len(out) < most {
			out = append(out, l.verdict)
		}
	}
	return out
}

// answered takes in whether a held pod answers, and reports whether it is now believed to
// be gone.
func (g *guard) answered(v verdict, does bool) (gone bool) {
	l := g.missing[Pods].lost[v.name]
	if l == nil || l.news != v.news {
		return false
	}
	if does {
		l.unanswered = 0
		return false
	}
	if l.unanswered++; l.unanswered < deadAfter {
		return false
	}
	delete(g.missing[Pods].lost, v.name)
	return true
}

// release returns all that is held of a kind, and holds it no more.
func (g *guard) release(k Kind) (gone []verdict) {
	for n, l := range g.missing[k].lost {
		if l.held {
			delete(g.missing[k].lost, n)
			gone = append(gone, l.verdict)
		}
	}
	return gone
}

// id names what is held, in twelve hexadecimal digits; empty if nothing is.
func (g *guard) id() string {
	sum := sha256.New()
	any := false
	for k := range g.missing {
		for _, n := range slices.SortedFunc(maps.Keys(g.missing[k].lost), name.compare) {
			if g.missing[k].lost[n].held {
				fmt.Fprintln(sum, Kind(k), n)
				any = true
			}
		}
	}
	if !any {
		return ""
	}
	return hex.EncodeToString(sum.Sum(nil)[:6])
}
