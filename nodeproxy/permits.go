package nodeproxy

import (
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/net/http2"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/policy"
)

// permits are the connections to one workload that its policies allow, for as long as they
// last: those that change end what they no longer allow. Safe for concurrent use.
type permits struct {
	uid   string
	store *discovery.Store

	mu    sync.Mutex
	held  map[*permit]struct{}
	set   *policy.Set // that rules are of
	pod   *mesh.Workload
	rules *policy.Effective // nil: nobody has asked yet
	other bool              // than those that held was judged by
}

// permit is one of them. end must be called.
type permit struct {
	of      *permits
	session peered
	target  uint16

	// Under of.mu.
	open   interface{ cut() } // nil: the application has not accepted yet
	denied *policy.Decision
}

// peered is the session that a connection came over.
type peered interface {
	Peer() hbone.Peer
	RemoteAddr() net.Addr
}

func newPermits(uid string, store *discovery.Store) *permits {
	return &permits{uid: uid, store: store, held: map[*permit]struct{}{}}
}

// ask says whether a connection that came over session may reach target of pod. If it may,
// the permit tells when that is over.
func (s *permits) ask(session peered, pod *mesh.Workload, target uint16) (*permit, policy.Decision) {
	p := &permit{of: s, session: session, target: target}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[p] = struct{}{} // before the snapshot is read: whoever revises for a later one finds it
	s.refresh(pod)
	d := s.rules.Decide(s.asked(p))
	if !d.Allowed() {
		delete(s.held, p)
		return nil, d
	}
	return p, d
}

// refresh has rules be those of the current snapshot. A workload that is gone keeps its labels;
// otherwise is who it was, if nobody has asked yet.
func (s *permits) refresh(otherwise *mesh.Workload) {
	snap := s.store.Current()
	pod := snap.Workload(s.uid)
	if pod == nil {
		pod = s.pod
	}
	if pod == nil {
		pod = otherwise
	}
	if pod == nil || s.rules != nil && s.set == snap.Policies() && s.pod == pod {
		return
	}
	s.set, s.pod, s.other = snap.Policies(), pod, true
	s.rules = s.set.For(policy.Workload{Namespace: pod.Namespace, Labels: pod.Labels})
}

// asked is what policies are asked about p.
func (s *permits) asked(p *permit) policy.Connection {
	return policy.Connection{Source: p.session.Peer().ID, From: addrPort(p.session.RemoteAddr()).Addr(), Destination: netip.AddrPortFrom(s.pod.Addresses[0], p.target)}
}

// revise ends what the policies of the current snapshot do not allow, and returns how many that
// are.
func (s *permits) revise() int {
	var cut []interface{ cut() }
	s.mu.Lock()
	if s.refresh(nil); s.other {
		s.other = false
		decisions := map[policy.Connection]policy.Decision{} // once for all of one client: new connections wait meanwhile
		for p := range s.held {
			c := s.asked(p)
			d, known := decisions[c]
			if !known {
				d = s.rules.Decide(c)
				decisions[c] = d
			}
			if d.Allowed() {
				continue
			}
			delete(s.held, p)
			why := d // only those that are denied take memory
			if p.denied = &why; p.open != nil {
				cut = append(cut, p.open)
			}
		}
	}
	s.mu.Unlock()
	for _, e := range cut {
		e.cut()
	}
	return len(cut)
}

// revoked returns why the connection may no longer be; nil while it may.
func (p *permit) revoked() *policy.Decision {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	return p.denied
}

// opened has e cut when the connection may no longer be.
func (p *permit) opened(e interface{ cut() }) {
	p.of.mu.Lock()
	p.open = e
	denied := p.denied
	p.of.mu.Unlock()
	if denied != nil {
		e.cut()
	}
}

// end gives the permit back, and returns why it was revoked; nil: it was not.
func (p *permit) end() *policy.Decision {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	delete(p.of.held, p)
	return p.denied
}

// cut resets both sides: an end in order would be one that nobody has sent. It may be called
// while e is relayed, and after.
func (e *established) cut() {
	e.stream.Reset(http2.ErrCodeConnect)
	reset(e.conn)
}

// repolice ends the connections to pods of this node that policies no longer allow.
func (p *Proxy) repolice() {
	p.mu.Lock()
	all := slices.Collect(maps.Keys(p.policed))
	p.mu.Unlock()
	for _, s := range all {
		if n := s.revise(); n > 0 {
			p.log.Info().Str("workload", s.uid).Int("connections", n).Msg("connections ended, which policies no longer allow")
		}
	}
}
