package nodeproxy

import (
	"errors"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/pool"
)

// errUnlinked is the cause of connections that were reset because their network was unlinked.
var errUnlinked = errors.New("the network was removed from federation.networks, and timeouts.drain is over")

// sever ends the sessions with networks that were unlinked, and, if roots were removed, those
// whose peers proved themselves by one. Their open connections have timeouts.drain.
func (p *Proxy) sever(removed bool) {
	drain := p.cfg.Timeouts.Drain
	n := p.pool.Sever(func(k pool.Key, _ *hbone.Session) bool {
		network := networkOf(k)
		return p.links.Gone(network) && len(p.store.Current().Gateways(network)) == 0
	}, drain, errUnlinked)
	if removed {
		n += p.pool.Sever(func(k pool.Key, s *hbone.Session) bool {
			source, err := spiffeid.FromString(k.Source)
			return err == nil && p.untrusted(source, s)
		}, drain, hbone.ErrUntrusted)
		for _, in := range p.allInbounds() {
			n += in.sessions.Sever(in.untrusted, drain, hbone.ErrUntrusted)
		}
	}
	if n > 0 {
		p.log.Info().Int("sessions", n).Stringer("drain", drain).Msg("sessions of unlinked networks draining")
	}
}

// untrusted reports whether the peer of s, a session of id, proved itself by a root that was
// removed since.
func (p *Proxy) untrusted(id spiffeid.ID, s *hbone.Session) bool {
	state, ok := s.TLS()
	return ok && p.ids.Revoked(id, state)
}

// untrusted is Proxy.untrusted for a session of the workload.
func (in *inbound) untrusted(s *hbone.Session) bool {
	w := in.p.store.Current().Workload(in.uid)
	return w != nil && in.p.untrusted(w.Identity, s)
}

// networkOf is the other network that sessions of k lead to; empty if they lead to none.
func networkOf(k pool.Key) (network string) {
	if k.Through == keptThrough {
		network, _, _ = strings.Cut(k.Address, " ")
	} else if name, ok := strings.CutPrefix(k.UID, gatewayUID); ok {
		network, _, _ = strings.Cut(name, "/")
	}
	return network
}

// allInbounds lists what serves the workloads of this node.
func (p *Proxy) allInbounds() (out []*inbound) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, in := range p.inbounds {
		out = append(out, in)
	}
	for _, h := range p.pods.List() {
		out = append(out, serving(h).in)
	}
	return out
}
