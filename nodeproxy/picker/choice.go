package picker

import (
	"fmt"
	"slices"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/health/standing"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/warmset"
	"github.com/isthmus-mesh/isthmus/route"
)

// Tried is where a connection has already failed. Gateways are by GatewayKey.
type Tried struct {
	Pods               []mesh.EndpointID
	Gateways, Networks []string
	// Origin is the UID of the captured pod in whose network namespace the connection begins; empty: in that of this process.
	Origin string
	// Back, unless it is no place, is where the attempt goes if that is still a candidate: the
	// connection has left it without an answer, and not found a better one.
	Back Place
}

// Choice is one chosen place. It is Opened at most once, and Done once.
type Choice struct {
	Pod    *mesh.Workload // of the own network; nil for another's
	Target uint16         // port of Pod's application

	Gateway *mesh.Gateway // else
	Share   Share
	Expect  []spiffeid.ID     // who may answer the handshake with the pod
	Avoid   []mesh.EndpointID // what the gateway is asked to leave out when it chooses
	// Kept is the session with a pod of the share that the connection goes on; if its ID
	// is zero, the gateway chooses.
	Kept warmset.Choice
	// Reserved is the ID under which the connection opens a session to be kept, if the
	// gateway chooses; zero: none. Joined says that another connection does.
	Reserved uint64
	Joined   bool
	Pinned   mesh.EndpointID // whom the session asks for by name that is joined

	// Dazed says that nobody of the destination is known to be healthy; Turned, that
	// this was otherwise at the choice before.
	Dazed, Turned bool

	unjudged bool // a port that discovery does not declare: whatever comes of it is nobody's health
	opened   bool
	cell     *standing.Cell[health.Key] // of Pod
	held     bool                       // cell, by this choice
	origin   string                     // of Tried
	share    *share
	gate     *gate
	path     *standing.Cell[Path]

	tries struct{ pod, fromOrigin, whole, path, gate health.Attempt }
}

// Network is where the choice is.
func (c *Choice) Network() string {
	if c.Pod != nil {
		return c.Pod.Network
	}
	return c.Gateway.Network
}

// Chosen is the endpoint that is meant, zero if the gateway chooses.
func (c *Choice) Chosen() mesh.EndpointID {
	switch {
	case c.Pod != nil:
		return c.Pod.Endpoint
	case c.Kept.Unnamed:
		return 0
	}
	return c.Kept.Endpoint
}

// NoCandidateError says that nobody is left to choose.
type NoCandidateError struct{ Authority string }

func (e *NoCandidateError) Error() string { return "no candidate of " + e.Authority + " is left" }

// NoGatewayError says that the network that was chosen has no gateway to use.
type NoGatewayError struct{ Network string }

func (e *NoGatewayError) Error() string {
	return fmt.Sprintf("network %s has no gateway that is not drained", e.Network)
}

// Pick chooses where the next attempt of a connection to d goes. The error is a
// *NoCandidateError or a *NoGatewayError. kept is asked for a session with a pod of
// another network, if that is where the attempt goes; nil: none are kept.
func (p *Picker) Pick(d *Destination, t Tried, kept Kept, now time.Time) (Choice, error) {
	if plan := d.Plan(); plan.Direct != nil {
		return p.pickDirect(plan, t.Origin, now), nil
	}
	c, err := d.pick(t, kept, now)
	if err == nil && c.tries.pod.Probe() {
		c.cell.Tell(now)
	}
	return c, err
}

func (p *Picker) pickDirect(plan *route.Plan, origin string, now time.Time) Choice {
	c := Choice{Pod: plan.Direct, Target: plan.Port.Target, origin: origin, unjudged: plan.Undeclared, held: true}
	c.cell = p.pods.Hold(health.Key{Endpoint: plan.Direct.Endpoint, Port: plan.Port.Target})
	if c.tries.pod = c.cell.Begin(now); c.tries.pod.Probe() {
		c.cell.Tell(now)
	}
	c.beginFromOrigin(p, now)
	return c
}

// beginFromOrigin notes that the attempt begins for its origin alone, if something is known of that.
func (c *Choice) beginFromOrigin(p *Picker, now time.Time) {
	if x := p.origins.cell(c.origin, c.cell.Key()); x != nil {
		c.tries.fromOrigin = x.Again(now)
	}
}

func (d *Destination) pick(t Tried, kept Kept, now time.Time) (Choice, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	plan := d.plan.Load()
	i, dazed, ok := d.choose(plan, t, now)
	if !ok {
		return Choice{}, &NoCandidateError{plan.Authority}
	}
	c := Choice{Dazed: dazed, Turned: dazed != d.dazed}
	d.dazed = dazed
	if j, ok := d.back(plan, t.Back); ok {
		i = j
	}
	m := d.members[i]
	if m.pod == nil {
		return d.pickShare(c, m, plan, t, kept, now)
	}
	c.Pod, c.Target, c.cell, c.Expect, c.origin = m.pod, m.cell.Key().Port, m.cell, plan.Candidates[i].Expect, t.Origin
	c.beginFromOrigin(d.picker, now)
	if c.tries.pod = m.cell.Begin(now); c.tries.pod.Probe() {
		d.refresh(m, now) // at once: nobody else is to be its probe
	}
	return c, nil
}

// choose returns one candidate of plan: of the healthy ones that were not tried, of
// all healthy ones, or of all. The caller holds mu.
func (d *Destination) choose(plan *route.Plan, t Tried, now time.Time) (i int, dazed, ok bool) {
	if len(d.members) == 0 {
		return 0, false, false
	}
	d.pass(now)
	for _, id := range t.Pods {
		if i, ok := d.place(id); ok {
			d.index.Mask(i)
		}
	}
	d.maskUnreached(t.Origin, now)
	d.weighShares(plan, t, now)
	defer d.index.Unmask()
	u, v := d.draws.Next()
	if i, ok = d.index.Pick(u, v, d); ok {
		return i, false, true
	}
	left, some := d.index.PickDazed(u) // of those that were not tried
	d.index.Unmask()
	if i, ok = d.index.Pick(u, v, d); ok {
		return i, false, true
	}
	if some {
		return left, true, true
	}
	i, ok = d.index.PickDazed(u)
	return i, true, ok
}

// maskUnreached masks the pods that are out for origin alone; the caller holds mu.
func (d *Destination) maskUnreached(origin string, now time.Time) {
	d.picker.origins.out(origin, now, func(k health.Key, _ *standing.Cell[OriginKey]) {
		if i, ok := d.place(k.Endpoint); ok && d.members[i].cell.Key() == k {
			d.index.Mask(i)
		}
	})
}

// weighShares weighs those shares that may take part: none that is ranked behind
// somebody healthy.
func (d *Destination) weighShares(plan *route.Plan, t Tried, now time.Time) {
	for _, i := range d.shares {
		c := &plan.Candidates[i]
		if best, ok := d.index.Best(); ok && c.Rank < best {
			return
		}
		x, avoid := d.members[i].share.weigh(d.members[i], c, t, now)
		d.index.Set(i, x)
		if avoid {
			d.index.Mask(i)
		}
	}
}

func (d *Destination) pickShare(c Choice, m *member, plan *route.Plan, t Tried, kept Kept, now time.Time) (Choice, error) {
	candidate := &plan.Candidates[m.at]
	g := m.share.chooseGateway(m, candidate, t, now)
	if g < 0 {
		return Choice{}, &NoGatewayError{candidate.Network}
	}
	c.Share, c.share, c.Expect = m.share.key, m.share, candidate.Expect
	if t.Back.Endpoint != 0 && t.Back.Network == candidate.Network {
		c.askFor(t.Back.Endpoint)
	} else if kept != nil && d.picker.config.Endpoints {
		g = m.share.chooseKept(&c, m, candidate, g, t, kept, now)
	}
	c.Gateway, c.gate, c.path = candidate.Gateways[g], m.gates[g], m.paths[g]
	switch {
	case c.Kept.ID == 0:
		c.Avoid = m.share.avoid(c.Gateway.Name, t.Pods, int(candidate.Capacity), now)
	case !c.Kept.Unnamed:
		c.Expect = only(candidate.Expect, c.Kept.Identity)
	}
	c.tries.whole, c.tries.path, c.tries.gate = m.share.whole.Begin(now), c.path.Begin(now), c.gate.cell.Begin(now)
	c.gate.asked(now)
	return c, nil
}

// only returns the list of id alone, from the memory of all if it is there.
func only(all []spiffeid.ID, id spiffeid.ID) []spiffeid.ID {
	if i := slices.Index(all, id); i >= 0 {
		return all[i : i+1 : i+1]
	}
	return []spiffeid.ID{id}
}
