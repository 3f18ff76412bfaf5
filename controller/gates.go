package controller

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/controller/vip"
	"github.com/isthmus-mesh/isthmus/discovery/kube/owned"
	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/internal/backoff"
)

// cause is what writes have in common that fail together. Where both are empty, it is all
// writes that do the same; without a name, those in one namespace.
type cause struct {
	do              string
	namespace, name string
}

func (c cause) String() string {
	switch {
	case c.namespace == "":
		return c.do
	case c.name == "":
		return c.do + " in " + c.namespace
	}
	return c.do + " " + c.namespace + "/" + c.name
}

var (
	// rights are the pauses where a right is missing: one that is given back is used within
	// seconds.
	rights = backoff.Backoff{First: time.Second, Limit: 5 * time.Second}
	// refusals are those of what the API server refuses for what it is.
	refusals = backoff.Backoff{First: time.Second, Limit: 2 * time.Minute}
	// meetings are those where somebody else has been there meanwhile.
	meetings = backoff.Backoff{First: pace, Limit: 10 * time.Second}
)

const (
	// abreast is how many other namespaces are tried when a right is back in one.
	abreast = 3
	// forgotten is how long after its pause a gate is remembered that nobody has asked for.
	forgotten = 10 * time.Minute
)

// gate is why writes wait, and until when.
type gate struct {
	failures int
	until    time.Time
	right    bool // one is missing
	why      error
}

// gates keep writes back that have failed for what they are, each cause by itself: the rest
// goes on. When its time is over one write of a cause is let through, and tells whether the
// others follow.
//
// A namespace that has not been seen to lack a right is not kept waiting by those that do: of
// these one a second is tried again, each in its turn, and the sooner when the right is back in
// another one. So a namespace that is given its right has it used within 5 s, or within as many
// seconds as there are namespaces without it.
//
// Not safe for concurrent use.
type gates struct {
	of map[cause]*gate
}

func newGates() *gates { return &gates{map[cause]*gate{}} }

// open reports whether a write may be tried.
func (g *gates) open(do string, n vip.Name, now time.Time) bool {
	for _, c := range []cause{{do: do}, {do, n.Namespace, ""}, {do, n.Namespace, n.Name}} {
		if x := g.of[c]; x != nil && now.Before(x.until) {
			return false
		}
	}
	return true
}

// failed closes the gate of a write that has failed with err, which concerns it alone or
// its like; first says that none of its cause has failed before.
func (g *gates) failed(do string, n vip.Name, err error, now time.Time) (c cause, first bool) {
	c, pauses, right := cause{do, n.Namespace, n.Name}, refusals, false
	switch {
	case errors.Is(err, owned.ErrStale), errors.Is(err, owned.ErrGone):
		pauses = meetings
	case errors.Is(err, owned.ErrNoRight):
		c.name, pauses, right = "", rights, true
	case errors.Is(err, owned.ErrDenied):
		c.name = ""
	}
	return c, g.shut(c, pauses, right, err, now)
}

func (g *gates) shut(c cause, pauses backoff.Backoff, right bool, err error, now time.Time) (first bool) {
	x := g.of[c]
	if x == nil {
		x, first = &gate{}, true
		g.of[c] = x
	}
	x.failures++
	x.right, x.why = right, err
	wait := pauses.Next(x.failures)
	if right {
		wait = max(wait, time.Duration(1+len(g.lacking(c, now)))*rights.First)
	}
	x.until = now.Add(wait)
	return first
}

// lacking are the gates of other causes that wait for the same right until after a time.
func (g *gates) lacking(but cause, after time.Time) (out []*gate) {
	for c, x := range g.of {
		if c.do == but.do && c != but && x.right && x.until.After(after) {
			out = append(out, x)
		}
	}
	return out
}

// done opens the gates of a write that was done. If a right was missing for it, it may be
// back for its like: some of these are tried, and each that is done has more tried.
func (g *gates) done(do string, n vip.Name, now time.Time) (ended []cause) {
	for _, c := range []cause{{do: do}, {do, n.Namespace, ""}, {do, n.Namespace, n.Name}} {
		x := g.of[c]
		if x == nil {
			continue
		}
		delete(g.of, c)
		ended = append(ended, c)
		if x.right {
			soon := now.Add(pace)
			like := g.lacking(c, soon) // beyond those that others have had tried
			slices.SortFunc(like, func(a, b *gate) int { return a.until.Compare(b.until) })
			for _, other := range like[:min(abreast, len(like))] {
				other.until = soon
			}
		}
	}
	return ended
}

// calm opens the gate of a write that somebody has fought: it is not wanted any more, or another one is.
func (g *gates) calm(do string, n vip.Name) {
	if c := (cause{do, n.Namespace, n.Name}); g.of[c] != nil && errors.Is(g.of[c].why, errFought) {
		delete(g.of, c)
	}
}

// calmed opens the gates of fought writes whose pause is over and which are not wanted now.
func (g *gates) calmed(wanted map[cause]bool, now time.Time) {
	for c, x := range g.of {
		if errors.Is(x.why, errFought) && now.After(x.until) && !wanted[c] {
			delete(g.of, c)
		}
	}
}

// next returns when the first gate opens of those that were closed since a time, and
// forgets those that nobody has asked for in long.
func (g *gates) next(since time.Time) (at time.Time, ok bool) {
	for c, x := range g.of {
		switch {
		case since.Sub(x.until) > forgotten:
			delete(g.of, c)
		case x.until.After(since) && (!ok || x.until.Before(at)):
			at, ok = x.until, true
		}
	}
	return at, ok
}

// held are the writes that are kept back because they have failed for more than that somebody
// else was there, in the order of their causes.
func (g *gates) held() (out []answer.HeldWrite) {
	for c, x := range g.of {
		if !errors.Is(x.why, owned.ErrStale) && !errors.Is(x.why, owned.ErrGone) {
			out = append(out, answer.HeldWrite{Write: c.do, Namespace: c.namespace, Name: c.name, Why: x.why.Error(), MissingRight: x.right, Failures: x.failures, Until: x.until})
		}
	}
	slices.SortFunc(out, func(a, b answer.HeldWrite) int {
		return cmp.Or(cmp.Compare(a.Write, b.Write), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// sentences say what of held there is, in lines for an operator.
func sentences(held []answer.HeldWrite) (out []string) {
	for i, h := range held {
		if i == maxFindings {
			return append(out, fmt.Sprintf("%d more writes are refused", len(held)-i))
		}
		what := "is refused"
		if h.Why == errFought.Error() {
			what = "does not stay"
		}
		out = append(out, fmt.Sprintf("%s %s, and is tried again: %s", cause{h.Write, h.Namespace, h.Name}, what, h.Why))
	}
	return out
}
