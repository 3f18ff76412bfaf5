package nodeproxy

import (
	"cmp"
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
// last: those that change end what they no longer allow. Nothing is decided under mu, so that new
// connections do not wait for many open ones. Safe for concurrent use.
type permits struct {
	uid   string
	store *discovery.Store

	mu   sync.Mutex
	held map[*permit]struct{}
	set  *policy.Set // of the newest snapshot that was looked at
	pod  *mesh.Workload
	last *judgement // by these; nil: nobody has asked yet
}

// judgement is what some policies say of connections to the workload. It is another one only when the
// workload's policies are.
type judgement struct {
	rules *policy.Effective

	mu    sync.Mutex
	known map[policy.Connection]policy.Decision // nil: rules are few
}

const (
	// manyPolicies is how many it takes before decisions are kept: each costs some 20 ns.
	manyPolicies = 16
	// maxKnown bounds how many are, some 300 bytes each for each pod.
	maxKnown = 256
)

// permit is one of them. end must be called.
type permit struct {
	of      *permits
	session peered
	to      netip.AddrPort // of the application; a pod has several addresses

	// Under of.mu.
	by     *judgement         // that allows it; nil: nobody has decided yet
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

// ask says whether a connection that came over session may reach the application of pod at to. If it may,
// the permit tells when that is over.
func (s *permits) ask(session peered, pod *mesh.Workload, to netip.AddrPort) (*permit, policy.Decision) {
	p := &permit{of: s, session: session, to: to}
	s.mu.Lock()
	s.held[p] = struct{}{} // before the snapshot is read: whoever revises for a later one finds it
	j := s.judge(pod)
	s.mu.Unlock()
	d := j.decide(p.asked())
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.denied != nil { // by a later one
		return nil, *p.denied
	}
	if !d.Allowed() {
		delete(s.held, p)
		return nil, d
	}
	if p.by == nil {
		p.by = j
	}
	return p, d
}

// judge returns the judgement of the current snapshot; mu is held. A workload that is gone keeps its
// labels; otherwise is who it was, if nobody has asked yet, and without it there is none.
func (s *permits) judge(otherwise *mesh.Workload) *judgement {
	snap := s.store.Current()
	pod := cmp.Or(snap.Workload(s.uid), s.pod, otherwise)
	if pod == nil || s.last != nil && s.set == snap.Policies() && s.pod == pod {
		return s.last
	}
	s.set, s.pod = snap.Policies(), pod
	j := &judgement{rules: s.set.For(policy.Workload{Namespace: pod.Namespace, Labels: pod.Labels})}
	if s.last != nil && s.last.rules.Same(j.rules) {
		return s.last
	}
	if len(j.rules.Authorizations()) >= manyPolicies {
		j.known = map[policy.Connection]policy.Decision{}
	}
	s.last = j
	return j
}

// asked is what policies are asked about it.
func (p *permit) asked() policy.Connection {
	return policy.Connection{Source: p.session.Peer().ID, From: addrPort(p.session.RemoteAddr()).Addr(), Destination: p.to}
}

// decide is Decide of the rules.
func (j *judgement) decide(c policy.Connection) policy.Decision {
	if j.known == nil {
		return j.rules.Decide(c)
	}
	j.mu.Lock()
	d, known := j.known[c]
	j.mu.Unlock()
	if known {
		return d
	}
	d = j.rules.Decide(c)
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.known) >= maxKnown {
		clear(j.known)
	}
	j.known[c] = d
	return d
}

// reviseAtOnce is how many connections are judged between two looks at whether other policies are in
// force by now: some milliseconds' worth.
const reviseAtOnce = 256

// revise ends what the policies of the current snapshot do not allow, and returns how many that
// are.
func (s *permits) revise() (ended int) {
	for {
		s.mu.Lock()
		j := s.judge(nil)
		var due []*permit
		for p := range s.held {
			if p.by != j {
				due = append(due, p)
			}
		}
		s.mu.Unlock()
		if len(due) == 0 {
			return ended
		}
		decisions := map[policy.Connection]policy.Decision{} // once for all of one client
		for some := range slices.Chunk(due, reviseAtOnce) {
			judged := make([]policy.Decision, len(some))
			for i, p := range some {
				c := p.asked()
				d, known := decisions[c]
				if !known {
					d = j.rules.Decide(c)
					decisions[c] = d
				}
				judged[i] = d
			}
			n, still := s.bring(j, some, judged)
			if ended += n; !still {
				break
			}
		}
	}
}

// bring brings into force what j says of some, and cuts what it denies. If j is not the judgement of the
// current snapshot any more it does nothing: that may allow them again.
func (s *permits) bring(j *judgement, some []*permit, judged []policy.Decision) (ended int, still bool) {
	var cut []interface{ cut() }
	s.mu.Lock()
	if s.judge(nil) != j {
		s.mu.Unlock()
		return 0, false
	}
	for i, p := range some {
		if _, held := s.held[p]; !held {
			continue
		}
		if p.by = j; judged[i].Allowed() {
			continue
		}
		delete(s.held, p)
		ended++
		why := judged[i] // only those that are denied take memory
		if p.denied = &why; p.open != nil {
			cut = append(cut, p.open)
		}
	}
	s.mu.Unlock()
	for _, e := range cut {
		e.cut()
	}
	return ended, true
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
