package health

import (
	"maps"
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// ReturnedFor is how long an endpoint is listed as readmitted.
const ReturnedFor = time.Minute

// View is the health of one network's part of a service port, as a picker uses it. It is not modified.
type View struct {
	Network
	// Exceptions are the endpoints that are ready and ejected, sorted.
	Exceptions []mesh.EndpointID
	// Absent are the endpoints that are not ready, terminating or gone, sorted.
	Absent []mesh.EndpointID
	// Returned is when endpoints were readmitted, as far as that is less than ReturnedFor ago.
	Returned map[mesh.EndpointID]time.Time
	// Groups are the gateways that report the port, together if they reach the same endpoints.
	Groups [][]Availability
	// StaleSince is when the health became stale, as seen here. Zero: it is current.
	StaleSince time.Time
	// Turned is when counts or exceptions changed, as seen here.
	Turned time.Time

	ejected map[mesh.EndpointID][]uint64 // faults, with the gateway instances alive in the last view that had them
}

// Availability is a gateway's part of a View.
type Availability struct {
	Gateway
	Since time.Time // of its present report, as seen here
}

// Usable reports whether the health decides anything. If not, treat all endpoints as healthy.
func (v View) Usable() bool { return v.State != Unknown }

// Next returns the view of n, which follows v. The zero View is before any.
//
// An endpoint counts as readmitted if it is not ejected, every ejected endpoint is named, and every gateway
// instance that was alive while it was ejected is still alive. So neither a lost gateway nor an expired
// report readmits an endpoint: the reader keeps the failures that it observed.
func (v View) Next(n Network, now time.Time) View {
	next := View{Network: n, Turned: now, Returned: map[mesh.EndpointID]time.Time{}, ejected: map[mesh.EndpointID][]uint64{}}
	for _, e := range n.Ejected {
		if e.Fault() {
			next.Exceptions = append(next.Exceptions, e.Endpoint)
		} else {
			next.Absent = append(next.Absent, e.Endpoint)
		}
	}
	if v.Name != "" && v.Ready == n.Ready && v.Healthy == n.Healthy && slices.Equal(v.Exceptions, next.Exceptions) {
		next.Turned = v.Turned
	}
	if n.State == Stale {
		if next.StaleSince = now; !v.StaleSince.IsZero() {
			next.StaleSince = v.StaleSince
		}
	}
	next.group(v, now)
	next.readmit(v, now)
	return next
}

// group sets Groups.
func (v *View) group(before View, now time.Time) {
	place := map[string]int{}
	for _, g := range v.Gateways {
		if g.Unknown {
			continue
		}
		a := Availability{g, now}
		for _, list := range before.Groups {
			for _, o := range list {
				if o.Instance == g.Instance && o.Name == g.Name && sameReport(o.Gateway, g) && slices.Equal(before.Exceptions, v.Exceptions) {
					a.Since = o.Since
				}
			}
		}
		i, has := place[g.Group]
		if !has {
			i = len(v.Groups)
			place[g.Group] = i
			v.Groups = append(v.Groups, nil)
		}
		v.Groups[i] = append(v.Groups[i], a)
	}
}

// sameReport reports whether a and b are the same but for whether their gateway is alive or drains.
func sameReport(a, b Gateway) bool {
	return a.Counts == b.Counts && slices.Equal(a.Unreachable, b.Unreachable)
}

// alive returns the instances of gateways that are alive and report the port.
func (n Network) alive() (out []uint64) {
	for _, g := range n.Gateways {
		if !g.Stale && !g.Unknown {
			out = append(out, g.Instance)
		}
	}
	return out
}

// readmit sets Returned.
func (v *View) readmit(before View, now time.Time) {
	for id, at := range before.Returned {
		if now.Sub(at) < ReturnedFor {
			v.Returned[id] = at
		}
	}
	alive := v.alive()
	for id, by := range before.ejected {
		all := !slices.ContainsFunc(by, func(i uint64) bool { return !slices.Contains(alive, i) })
		switch {
		case slices.Contains(v.Exceptions, id), slices.Contains(v.Absent, id), !all || len(by) == 0:
		case v.Further > 0:
			v.ejected[id] = by // it may be one without a name
		default:
			v.Returned[id] = now
		}
	}
	for _, id := range v.Exceptions {
		delete(v.Returned, id)
		v.ejected[id] = alive
	}
	maps.DeleteFunc(v.ejected, func(mesh.EndpointID, []uint64) bool { return v.State == Unknown })
}
