package picker

import (
	"time"

	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/warmset"
	"github.com/isthmus-mesh/isthmus/route"
)

// Place is one endpoint of one network.
type Place struct {
	Network  string
	Endpoint mesh.EndpointID // zero: no place
}

// Elsewhere reports whether somebody healthy is known whom Pick could choose for a
// connection to d and whom t does not name. It chooses nobody.
func (p *Picker) Elsewhere(d *Destination, t Tried, now time.Time) bool {
	plan := d.Plan()
	if plan.Direct != nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pass(now)
	defer d.index.Unmask()
	foreign := 0
	for _, id := range t.Pods {
		if i, ok := d.place(id); ok {
			d.index.Mask(i)
		} else {
			foreign++
		}
	}
	d.weighShares(plan, t, now)
	for _, i := range d.shares {
		if d.members[i].share.healthy(int(plan.Candidates[i].Capacity), now) <= foreign {
			d.index.Mask(i)
		}
	}
	_, ok := d.index.Best()
	return ok
}

// healthy is how many endpoints of the share may be chosen, by the best of any gateway's word,
// or nominal if none says.
func (s *share) healthy(nominal int, now time.Time) (n int) {
	h := s.current(now)
	if len(h.Groups) == 0 {
		return nominal - len(h.Exceptions) - len(h.Absent)
	}
	for _, g := range h.Groups {
		most := 0
		for i := range g {
			most = max(most, int(g[i].Healthy))
		}
		n += most
	}
	return n
}

// back finds the candidate by which the place is reached that a connection goes back to.
func (d *Destination) back(plan *route.Plan, to Place) (i int, ok bool) {
	if to.Endpoint == 0 {
		return 0, false
	}
	if i, ok := d.place(to.Endpoint); ok {
		return i, true
	}
	for _, i := range d.shares {
		if plan.Candidates[i].Network == to.Network {
			return i, true
		}
	}
	return 0, false
}

// askFor has the gateway of c asked for one endpoint, on a session that is not kept.
func (c *Choice) askFor(id mesh.EndpointID) {
	c.Kept = warmset.Choice{Answer: warmset.Answer{Endpoint: id}}
}
