package record

import (
	"cmp"
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/mesh"
)

const (
	// Linger is how long an endpoint that was terminating or gone stays an
	// exception after its end, so that others hear of it and retire their
	// sessions with it.
	Linger = time.Minute

	// Detailed is of how many exceptions details are told, the newest: they are as long
	// as all the rest.
	Detailed = 16

	maxExceptions = 16384 // of one port; each costs some 60 bytes
)

// Exceptions are the endpoints of one service's port that are left out, as the
// instance that publishes them keeps them. The zero value is empty. Not safe
// for concurrent use.
type Exceptions struct {
	of map[mesh.EndpointID]exception
}

type exception struct {
	cause  Cause
	detail Detail
	since  time.Time
	ended  time.Time // zero: still left out
}

// Set notes that an endpoint is left out because of cause. One that was left
// out before for another cause is the newest again.
func (x *Exceptions) Set(id mesh.EndpointID, cause Cause, now time.Time) {
	old, there := x.of[id]
	if id == 0 || there && old.cause == cause && old.ended.IsZero() {
		return
	}
	if !there && len(x.of) >= maxExceptions && !x.dropOldest() {
		return
	}
	if x.of == nil {
		x.of = map[mesh.EndpointID]exception{}
	}
	x.of[id] = exception{cause: cause, since: now}
}

// Explain notes what there is to say of an endpoint that is left out, for people.
func (x *Exceptions) Explain(id mesh.EndpointID, d Detail) {
	if e, there := x.of[id]; there && e.detail != d {
		e.detail = d
		x.of[id] = e
	}
}

// Clear notes that an endpoint is left out no longer, or, of one that was
// terminating or gone, that it is no more: that stays for [Linger].
func (x *Exceptions) Clear(id mesh.EndpointID, now time.Time) {
	e, there := x.of[id]
	switch {
	case !there || !e.ended.IsZero():
	case e.cause == Terminating || e.cause == Gone:
		e.ended = now
		x.of[id] = e
	default:
		delete(x.of, id)
	}
}

// Back notes that an endpoint may be chosen again, whatever it was left out for.
func (x *Exceptions) Back(id mesh.EndpointID) { delete(x.of, id) }

// dropOldest makes room at the cost of the one that lingers longest.
func (x *Exceptions) dropOldest() bool {
	var oldest mesh.EndpointID
	for id, e := range x.of {
		if !e.ended.IsZero() && (oldest == 0 || e.ended.Before(x.of[oldest].ended)) {
			oldest = id
		}
	}
	delete(x.of, oldest)
	return oldest != 0
}

// List returns the newest [MaxExceptions] by name, newest first, and how many
// there are beyond them, with details of the first [Detailed]. It forgets what has lingered long enough.
func (x *Exceptions) List(now time.Time) (named []Exception, unnamed uint32) {
	ids := make([]mesh.EndpointID, 0, len(x.of))
	for id, e := range x.of {
		if !e.ended.IsZero() && now.Sub(e.ended) >= Linger {
			delete(x.of, id)
			continue
		}
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b mesh.EndpointID) int {
		if c := x.of[b].since.Compare(x.of[a].since); c != 0 {
			return c
		}
		return cmp.Compare(a, b)
	})
	for i, id := range ids[:min(len(ids), MaxExceptions)] {
		e := Exception{Endpoint: id, Cause: x.of[id].cause}
		if i < Detailed {
			e.Detail = x.of[id].detail
		}
		named = append(named, e)
	}
	return named, uint32(len(ids) - len(named))
}

// Next returns when List changes by time alone; zero: never.
func (x *Exceptions) Next() (next time.Time) {
	for _, e := range x.of {
		if t := e.ended.Add(Linger); !e.ended.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	return next
}
