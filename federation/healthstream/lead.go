package healthstream

import (
	"math/rand/v2"
	"sync"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
)

// Excerpts takes what the gateway that leads tells of the own network's discovery;
// *excerpt.Keeper is one. It must not wait, and must not call the [Client] but for
// [Client.Follows].
type Excerpts interface {
	// Lead says who tells from now on, from the beginning, and Leave that nobody does.
	Lead(gateway string)
	Leave()
	// Take brings what it says into force, and returns the names of which everything has
	// been told. After an error another gateway leads.
	Take(m *pb.Excerpt) (answered []string, err error)
}

// leading is which of the attached gateways tells of discovery: one at a time, as they need
// not have heard of the same changes at the same moment. It leads until it ends, or its
// source is away and that of another one is not.
type leading struct {
	mu     sync.Mutex // held while its word is brought into force
	offers map[*uplink]*pb.Offer
	leader *uplink
	ended  bool // Run has: nobody is to lead
}

// Leader returns the gateway that tells of discovery now; "" if none does.
func (c *Client) Leader() string {
	c.leading.mu.Lock()
	defer c.leading.mu.Unlock()
	if c.leading.leader == nil {
		return ""
	}
	return c.leading.leader.gateway
}

// Reread asks the gateway that tells of discovery to tell everything once more, if one does.
func (c *Client) Reread() {
	c.leading.mu.Lock()
	defer c.leading.mu.Unlock()
	if l := c.leading.leader; l != nil && !c.leading.ended {
		c.cfg.Excerpts.Lead(l.gateway)
		l.lead(true)
	}
}

// Follow begins to follow names that were followed before, without a use.
func (c *Client) Follow(names ...string) {
	for _, name := range names {
		c.services.use(name, false)
	}
}

// Follows reports whether the gateways are asked for a service, or any other name.
func (c *Client) Follows(name string) bool { return c.services.followed(name) != nil }

// offered takes what a gateway can tell of discovery.
func (c *Client) offered(l *uplink, o *pb.Offer) {
	if c.cfg.Excerpts == nil {
		return
	}
	c.leading.mu.Lock()
	defer c.leading.mu.Unlock()
	c.leading.offers[l] = o
	c.elect()
}

// withdrawn takes notice that a stream has ended.
func (c *Client) withdrawn(l *uplink) {
	c.leading.mu.Lock()
	defer c.leading.mu.Unlock()
	delete(c.leading.offers, l)
	c.elect()
}

// elect lets another gateway lead if the one that does may not, or should not; the caller
// holds leading.mu.
func (c *Client) elect() {
	x := &c.leading
	if x.ended {
		x.leader = nil
		return
	}
	var best []*uplink
	rank := func(l *uplink) int {
		switch o := x.offers[l]; {
		case !o.GetSynchronised():
			return 0
		case o.GetBehind():
			return 1
		}
		return 2
	}
	for l := range x.offers {
		if len(best) > 0 && rank(best[0]) < rank(l) {
			best = best[:0]
		}
		if rank(l) > 0 && (len(best) == 0 || rank(best[0]) == rank(l)) {
			best = append(best, l)
		}
	}
	old := x.leader
	switch {
	case len(best) == 0:
		x.leader = nil
	case old != nil && rank(old) == rank(best[0]):
		return
	default:
		x.leader = best[rand.IntN(len(best))]
	}
	if old == x.leader {
		return
	}
	if old != nil && x.offers[old] != nil {
		old.lead(false)
	}
	if l := x.leader; l != nil {
		c.cfg.Log.Info().Str("gateway", l.gateway).Bool("behind", x.offers[l].GetBehind()).Msg("discovery is told by this gateway")
		c.cfg.Excerpts.Lead(l.gateway)
		l.lead(true)
	} else {
		c.cfg.Excerpts.Leave()
		c.cfg.Log.Warn().Msg("no gateway tells of discovery: what is known holds")
	}
}

// excerpt takes what the gateway at l tells of discovery. An error ends the stream.
func (c *Client) excerpt(l *uplink, m *pb.Excerpt) error {
	x := &c.leading
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.leader != l {
		return nil // on its way since it has led
	}
	answered, err := c.cfg.Excerpts.Take(m)
	c.services.describe(answered)
	return err
}
