package gateway

import (
	"cmp"
	"reflect"
	"slices"
	"sync"

	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// introduction is what this gateway has said of itself. Safe for concurrent use.
type introduction struct {
	mu      sync.Mutex      // of said and problem
	said    *record.Network // nil before the first
	problem string          // of the address, as it was logged last
	last    lastAddress     // by address.service
	// lastQUIC is by address.quicService.
	lastQUIC lastAddress
}

// introduce tells other gateways, and the node proxies of the own network, what this
// gateway is.
func (g *Gateway) introduce() {
	if g.fed == nil {
		return
	}
	g.introduction.mu.Lock()
	defer g.introduction.mu.Unlock()
	old, self := g.introduction.said, g.itself()
	at, problem := g.addresses()
	quic, quicProblem := g.quicAddresses()
	problem = cmp.Or(problem, quicProblem)
	if problem != g.introduction.problem {
		if g.introduction.problem = problem; problem != "" {
			g.log.Warn().Str("field", "address").Msg(problem)
		}
	}
	said := record.Network{
		Gateway: g.cfg.Name, Addresses: at, QUIC: quic,
		Locality: self.Locality, Draining: g.stopping() || self.Drained, Keys: g.fed.PublicKeys(), Group: g.cfg.Federation.Group,
	}
	if old != nil && reflect.DeepEqual(*old, said) {
		return
	}
	g.introduction.said = &said
	g.publish([]record.Record{record.NetworkRecord(said)})
	if old != nil && old.Draining != said.Draining {
		g.nodes.ChangedAll() // it is in each of this gateway's words
	}
}

// reintroduce is introduce for what has changed since: discovery, or the keys of the
// network.
func (g *Gateway) reintroduce() {
	g.introduction.mu.Lock()
	begun := g.introduction.said != nil
	g.introduction.mu.Unlock()
	if begun {
		g.introduce()
	}
}

// itself is this gateway as discovery has it now, or had it at the start if it lists it
// no more.
func (g *Gateway) itself() *mesh.Gateway {
	list := g.store.Current().Gateways(g.cfg.Network)
	if i := slices.IndexFunc(list, func(x *mesh.Gateway) bool { return x.Name == g.cfg.Name }); i >= 0 {
		return list[i]
	}
	return g.self
}

// givesWay reports whether other gateways are to be preferred.
func (g *Gateway) givesWay() bool { return g.stopping() || g.itself().Drained }
