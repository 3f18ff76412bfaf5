package picker

import (
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/health/standing"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// Belief is what own evidence says of one thing, and how much is open there.
type Belief struct {
	health.State
	Turn   standing.Turn // its last edge
	Usable bool
	Open   int
}

func believe[K comparable](b *standing.Book[K], k K, now time.Time) Belief {
	c := b.Find(k)
	if c == nil {
		return Belief{State: health.State{Health: 1}, Usable: true}
	}
	st, turn := c.State(now)
	return Belief{State: st, Turn: turn, Usable: c.Score(now).Usable, Open: c.Open()}
}

// PodBelief is about a pod of the own network.
func (p *Picker) PodBelief(k health.Key, now time.Time) Belief { return believe(p.pods, k, now) }

// OutFor are the captured pods for whose connections alone a port of a pod is out, sorted.
func (p *Picker) OutFor(k health.Key, now time.Time) []string { return p.origins.outFor(k, now) }

// ShareBelief is about a share as a whole.
func (p *Picker) ShareBelief(k Share, now time.Time) Belief { return believe(p.shares, k, now) }

// GatewayBelief is about the gateway of a key; see GatewayKey.
func (p *Picker) GatewayBelief(key string, now time.Time) Belief {
	return believe(p.gateways, key, now)
}

// Hints are the endpoints of a share that failed under our eyes lately, the oldest
// first, be it by way of one gateway alone.
func (p *Picker) Hints(k Share) []mesh.EndpointID {
	p.mu.Lock()
	s := p.known[k]
	p.mu.Unlock()
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hints == nil {
		return nil
	}
	var out []mesh.EndpointID
	for _, k := range s.hints.Known(s.hinted()) {
		if !slices.Contains(out, k.Endpoint) {
			out = append(out, k.Endpoint)
		}
	}
	return out
}
