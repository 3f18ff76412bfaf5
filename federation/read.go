package federation

import (
	"cmp"
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// Endpoint returns the newest evidence about an endpoint's target port over
// all origins, and its age. Not ok means unknown: treat it as usable.
func (t *Table) Endpoint(network string, id mesh.EndpointID, port uint16, now time.Time) (fact EndpointFact, age time.Duration, ok bool) {
	e := t.best(EndpointSubject(network, id, port), now)
	if e == nil {
		return EndpointFact{}, 0, false
	}
	return *e.record.Endpoint, now.Sub(e.seen), true
}

// Summary returns what is known of a network service's port: of the summaries
// of several origins, the one with the youngest evidence, so that a live
// gateway overtakes what a dead sibling last believed. Its Exceptions are
// shared. Not ok means unknown: treat the network service as usable.
func (t *Table) Summary(network, service string, port uint16, now time.Time) (fact SummaryFact, age time.Duration, ok bool) {
	e := t.best(SummarySubject(network, service, port), now)
	if e == nil {
		return SummaryFact{}, 0, false
	}
	return *e.record.Summary, now.Sub(e.seen), true
}

// best is the entry with the youngest evidence that somebody still vouches
// for; the origin's name breaks ties, so that all members choose alike.
func (t *Table) best(subject Key, now time.Time) *entry {
	var best *entry
	for _, e := range t.subjects[subject] {
		if now.Sub(e.stamped) > t.ttl {
			continue
		}
		if best == nil || e.seen.After(best.seen) || e.seen.Equal(best.seen) && e.key.Origin < best.key.Origin {
			best = e
		}
	}
	return best
}

// Best returns the record that Endpoint or Summary would answer from.
func (t *Table) Best(subject Key, now time.Time) (Record, bool) {
	e := t.best(subject.Subject(), now)
	if e == nil {
		return Record{}, false
	}
	return e.at(now), true
}

// Records returns every record with its ages brought up to now, sorted by
// origin, then network, kind and subject. Records beyond the TTL are left out.
func (t *Table) Records(now time.Time) []Record {
	out := make([]Record, 0, t.size)
	for _, o := range t.origins {
		for _, e := range o.records {
			if now.Sub(e.stamped) <= t.ttl {
				out = append(out, e.at(now))
			}
		}
	}
	slices.SortFunc(out, func(a, b Record) int { return compareKeys(a.Key(), b.Key()) })
	return out
}

// Subject returns what every origin says about one subject, ages up to now.
func (t *Table) Subject(subject Key, now time.Time) []Record {
	var out []Record
	for _, e := range t.subjects[subject.Subject()] {
		if now.Sub(e.stamped) <= t.ttl {
			out = append(out, e.at(now))
		}
	}
	return out
}

func (e *entry) at(now time.Time) Record {
	r := e.record
	r.Age, r.Silence = max(0, now.Sub(e.seen)), max(0, now.Sub(e.stamped))
	return r
}

func compareKeys(a, b Key) int {
	return cmp.Or(
		cmp.Compare(a.Origin, b.Origin), cmp.Compare(a.Network, b.Network), cmp.Compare(a.Kind, b.Kind),
		cmp.Compare(a.Service, b.Service), cmp.Compare(a.Endpoint, b.Endpoint), cmp.Compare(a.Port, b.Port),
	)
}
