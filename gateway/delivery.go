package gateway

import (
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/damping"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// basis is what discovery says of a service and its members on one network. Snapshots
// share what has not changed.
type basis struct {
	service *mesh.Service
	members []*mesh.Workload
}

func (b basis) same(o basis) bool {
	return b.service == o.service && len(b.members) == len(o.members) && (len(b.members) == 0 || &b.members[0] == &o.members[0])
}

// delivery is what is known of one service and port, member by member, so that what one
// of them costs does not depend on how many there are. Not safe for concurrent use.
type delivery struct {
	basis
	exported   bool
	members    map[mesh.EndpointID]member
	stale      pods                   // to be looked at, beside those that are out
	out        pods                   // offered and not well
	well       federation.SummaryFact // sums over those that are offered, and over those that are well
	fact       federation.SummaryFact // with each pod that is ready and left out
	exceptions record.Exceptions
	health     record.Health
	pace       pace
}

// member is a workload as it was at the last look at it.
type member struct {
	*mesh.Workload
	offered bool
	cause   record.Cause // zero: a connection is expected to work
	damped  bool
}

// touch notes that pods are to be looked at.
func (x *delivery) touch(touched pods) {
	if x.stale == nil && len(touched) > 0 {
		x.stale = make(pods, len(touched))
	}
	for id := range touched {
		x.stale[id] = struct{}{}
	}
}

// look brings x in line with b and with what health says: of every member if b is new,
// otherwise of those that were touched or are out.
func (x *delivery) look(b basis, p mesh.Port, health podHealth, why podDetail, now time.Time) {
	if x.members == nil || !x.same(b) {
		x.rebuild(b, now)
		offer := b.service.Offer(p, b.members)
		for _, w := range b.members {
			x.join(w, p, offer.Has(w), health, now)
		}
	} else {
		x.touch(x.out)
		for id := range x.stale {
			if m, ok := x.members[id]; ok && m.offered {
				x.leave(m)
				x.join(m.Workload, p, true, health, now)
			}
		}
	}
	x.stale = nil
	x.sum(p, why, now)
}

// rebuild forgets all members for those of b.
func (x *delivery) rebuild(b basis, now time.Time) {
	old := x.members
	x.basis, x.exported = b, b.service.Exported()
	x.members, x.out, x.well = make(map[mesh.EndpointID]member, len(b.members)), pods{}, federation.SummaryFact{}
	for _, w := range b.members {
		x.members[w.Endpoint] = member{Workload: w}
	}
	for id := range old {
		if _, still := x.members[id]; !still {
			x.exceptions.Set(id, record.Gone, now)
			x.exceptions.Clear(id, now)
		}
	}
}

// join counts a member as it is now.
func (x *delivery) join(w *mesh.Workload, p mesh.Port, offered bool, health podHealth, now time.Time) {
	m := member{Workload: w, offered: offered}
	switch {
	case !offered:
		x.left(w, now)
	default:
		x.well.Ready++
		x.well.ReadyCapacity += w.Capacity
		if m.cause, m.damped, _ = health(w, w.Target(p), now); m.cause != 0 {
			x.out[w.Endpoint] = struct{}{}
			break
		}
		x.well.Healthy++
		x.well.HealthyCapacity += w.Capacity
		x.exceptions.Back(w.Endpoint)
	}
	x.members[w.Endpoint] = m
}

// leave takes back what join counted of an offered member.
func (x *delivery) leave(m member) {
	x.well.Ready--
	x.well.ReadyCapacity -= m.Capacity
	if m.cause != 0 {
		delete(x.out, m.Endpoint)
		return
	}
	x.well.Healthy--
	x.well.HealthyCapacity -= m.Capacity
}

// sum derives what is said from what is known of each member.
func (x *delivery) sum(p mesh.Port, why podDetail, now time.Time) {
	f := x.well
	f.Service, f.Port = x.service.Hostname, p.Service
	var held []damping.Member
	out := func(w *mesh.Workload, cause record.Cause) {
		f.Exceptions = append(f.Exceptions, w.Endpoint)
		x.exceptions.Set(w.Endpoint, cause, now)
		x.exceptions.Explain(w.Endpoint, why(w, w.Target(p), cause, now))
	}
	for id := range x.out {
		if m := x.members[id]; m.damped {
			held = append(held, damping.Member{Key: damping.Key{Endpoint: id, Port: m.Target(p)}, Capacity: m.Capacity})
		} else {
			out(m.Workload, m.cause)
		}
	}
	// The picker leaves out the same ones of those that answer and flap.
	left := damping.Held(held, uint64(f.ReadyCapacity), f.Healthy > 0)
	for _, h := range held {
		w := x.members[h.Key.Endpoint].Workload
		if slices.Contains(left, h.Key) {
			out(w, record.Witness)
			continue
		}
		f.Healthy++
		f.HealthyCapacity += w.Capacity
		x.exceptions.Back(w.Endpoint)
	}
	slices.Sort(f.Exceptions)
	x.fact = f
	x.health = healthOf(f)
	x.health.Exceptions, x.health.Unnamed = x.exceptions.List(now)
}

// says reports whether x is the same to node proxies as a fact with these exceptions:
// causes count too, because another gateway may reach what this one does not.
func (x *delivery) says(fact *federation.SummaryFact, exceptions []record.Exception) bool {
	return x.fact.Equal(fact) && slices.Equal(x.health.Exceptions, exceptions)
}

// left notes why a member gets no new connections.
func (x *delivery) left(w *mesh.Workload, now time.Time) {
	switch w.State {
	case mesh.Terminating, mesh.Serving:
		x.exceptions.Set(w.Endpoint, record.Terminating, now)
	case mesh.NotReady:
		x.exceptions.Set(w.Endpoint, record.NotReady, now)
	default: // without capacity, address or port: nobody's trouble
		x.exceptions.Back(w.Endpoint)
	}
}

// healthOf keeps to the limits of a record.
func healthOf(f federation.SummaryFact) record.Health {
	h := record.Health{Ready: min(f.Ready, record.MaxEndpoints), ReadyCapacity: min(f.ReadyCapacity, record.MaxCapacity)}
	h.Healthy, h.HealthyCapacity = min(f.Healthy, h.Ready), min(f.HealthyCapacity, h.ReadyCapacity)
	return h
}
