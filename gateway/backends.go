package gateway

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/balance"
	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/localfault"
	"github.com/isthmus-mesh/isthmus/internal/reprobe"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/route"
)

// facts answers what the witness beside an application last said.
type facts interface {
	Endpoint(network string, id mesh.EndpointID, port uint16) (federation.EndpointFact, time.Duration, bool)
}

// backends knows which pods of this network answer and chooses among them.
// Safe for concurrent use.
type backends struct {
	network string
	scope   string
	facts   facts
	log     zerolog.Logger
	changed func(w *mesh.Workload) // a hop was ejected or readmitted
	count   func(edge string)      // each of these
	prober  *reprobe.Prober[mesh.EndpointID]
	ask     func(context.Context, *mesh.Workload) error // does the pod's node proxy answer?
	listed  func(mesh.EndpointID) *mesh.Workload        // as discovery says now; nil: gone
	late    func(since time.Time) bool                  // was this process itself late meanwhile?

	mu     sync.Mutex
	hops   *health.Tracker[mesh.EndpointID]
	edges  map[mesh.EndpointID]time.Time // when a hop last changed
	sick   map[health.Key]struct{}       // as last reported; the ledger knows whether that still counts
	doubts map[mesh.EndpointID]struct{}  // slow to answer, and asked whether they do
	// untrusted showed us a certificate that cannot be believed: that they answer
	// is no success until they have shown a better one.
	untrusted  map[mesh.EndpointID]struct{}
	asked      map[mesh.EndpointID]time.Time // when a client's doubt last made us ask
	answeredAt map[mesh.EndpointID]time.Time // when a pod last answered a client
	open       map[health.Key]int            // connections now, by pod and target port
	draws      map[drawKey]*balance.Draws
	scratch    []balance.Candidate
}

type drawKey struct {
	service string
	port    uint16
}

func newBackends(network string, o Outlier, f facts, prober *reprobe.Prober[mesh.EndpointID],
	ask func(context.Context, *mesh.Workload) error, listed func(mesh.EndpointID) *mesh.Workload, log zerolog.Logger, changed func(*mesh.Workload)) *backends {
	cfg := o.Config
	if o.Scope == ScopeNone {
		cfg.Mode = health.ModeOff
	}
	return &backends{
		network: network, scope: o.Scope, facts: f, log: log, changed: changed, prober: prober, ask: ask, listed: listed,
		late:      func(time.Time) bool { return false },
		count:     func(string) {},
		hops:      health.NewTracker[mesh.EndpointID](cfg, rand.Float64),
		edges:     map[mesh.EndpointID]time.Time{},
		sick:      map[health.Key]struct{}{},
		doubts:    map[mesh.EndpointID]struct{}{},
		untrusted: map[mesh.EndpointID]struct{}{}, asked: map[mesh.EndpointID]time.Time{}, answeredAt: map[mesh.EndpointID]time.Time{},
		open:  map[health.Key]int{},
		draws: map[drawKey]*balance.Draws{},
	}
}

// pickOptions narrow the choice of a pod for one client.
type pickOptions struct {
	avoid       []uint64                   // advisory, from the client
	pin         mesh.EndpointID            // this one or none; zero is no pin
	exclude     []mesh.EndpointID          // tried already
	healthyOnly bool                       // a pod that is thought to answer, or none
	crowded     func(mesh.EndpointID) bool // the client would have to wait for its turn there; nil: nowhere
}

// lease is one pod that was chosen, until release.
type lease struct {
	workload *mesh.Workload
	target   uint16 // port of the application
	attempt  health.Attempt
	dazed    bool
	inner    *innerHandshake // of its connection; nil until there is room for it
}

func (l lease) key() health.Key { return health.Key{Endpoint: l.workload.Endpoint, Port: l.target} }

// choose picks a pod of x for one connection. ok is false when every member is
// drained, not ready, or was tried already.
func (b *backends) choose(x route.Exported, o pickOptions, now time.Time) (lease, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.scratch = b.scratch[:0]
	for _, m := range x.Members {
		b.scratch = append(b.scratch, b.candidate(m, m.Target(x.Port), o, now))
	}
	d := b.draws[drawKey{x.Service.Hostname, x.Port.Service}]
	if d == nil {
		d = balance.NewDraws(rand.Uint64())
		b.draws[drawKey{x.Service.Hostname, x.Port.Service}] = d
	}
	u, v := d.Next()
	i, dazed, ok := balance.Pick(b.scratch, u, v)
	if !ok || dazed && (o.pin != 0 || o.healthyOnly) { // a client that is told no can go to another pod
		return lease{}, false
	}
	if o.crowded != nil && o.pin == 0 && o.crowded(x.Members[i].Endpoint) {
		i = b.uncrowded(x, o, i, dazed, u, v)
	}
	l := lease{workload: x.Members[i], target: x.Members[i].Target(x.Port), dazed: dazed}
	l.attempt = b.hops.Begin(l.workload.Endpoint, now)
	b.open[l.key()]++
	return l, true
}

// uncrowded chooses again among the members of b.scratch without those where the client
// would have to wait, and returns i, the first choice, if there is nobody as good. The
// caller holds mu.
func (b *backends) uncrowded(x route.Exported, o pickOptions, i int, dazed bool, u, v float64) int {
	for j, m := range x.Members {
		if !b.scratch[j].Drained && o.crowded(m.Endpoint) {
			b.scratch[j].Drained = true
		}
	}
	if other, worse, ok := balance.Pick(b.scratch, u, v); ok && (dazed || !worse) {
		return other
	}
	return i
}

func (b *backends) candidate(m *mesh.Workload, target uint16, o pickOptions, now time.Time) balance.Candidate {
	id := m.Endpoint
	return balance.Candidate{
		Weight:  float64(m.Capacity) * b.hops.Weight(id, now),
		Faint:   b.hops.Faint(id),
		Load:    float64(b.open[health.Key{Endpoint: id, Port: target}]),
		Usable:  b.hops.Usable(id, now) && !b.doubted(id) && !b.reportedSick(id, target),
		Drained: slices.Contains(o.exclude, id) || o.pin != 0 && o.pin != id,
		Avoid:   slices.Contains(o.avoid, uint64(id)),
	}
}

// doubted reports whether id owes an answer; the caller holds mu.
func (b *backends) doubted(id mesh.EndpointID) bool {
	_, doubted := b.doubts[id]
	return doubted
}

// reportedSick reports whether the witness beside the pod says that this port is
// out; the caller holds mu.
func (b *backends) reportedSick(id mesh.EndpointID, target uint16) bool {
	if _, sick := b.sick[health.Key{Endpoint: id, Port: target}]; !sick {
		return false // nearly always, and without asking the ledger
	}
	f, _, ok := b.facts.Endpoint(b.network, id, target)
	return ok && f.State != federation.Healthy
}

// release gives the lease back with what became of the hop.
func (b *backends) release(l lease, o health.Outcome, reason string, now time.Time) {
	l.inner.end()
	b.mu.Lock()
	if b.open[l.key()]--; b.open[l.key()] <= 0 {
		delete(b.open, l.key())
	}
	b.mu.Unlock()
	b.observe(l, o, reason, now)
}

// answered records that the pod's node proxy sent its first bytes, while the
// lease goes on.
func (b *backends) answered(l lease, now time.Time) {
	b.mu.Lock()
	if b.listed(l.workload.Endpoint) != nil { // with mu held: forget comes after
		b.answeredAt[l.workload.Endpoint] = now
	}
	b.mu.Unlock()
	b.observe(l, health.Success, "", now)
}

// doubt keeps connections away from a pod that is slow to answer one, while there
// are others, until it has answered a question of our own.
func (b *backends) doubt(w *mesh.Workload) {
	if b.scope == ScopeNone {
		return
	}
	b.mu.Lock()
	if b.listed(w.Endpoint) != nil { // with mu held: forget comes after
		b.doubts[w.Endpoint] = struct{}{}
	}
	b.mu.Unlock()
	b.reprobe(w)
}

func (b *backends) observe(l lease, o health.Outcome, reason string, now time.Time) {
	b.mu.Lock()
	edge := health.NoEdge
	if _, untrusted := b.untrusted[l.workload.Endpoint]; untrusted && o == health.Success {
		o = health.Neutral
	}
	if b.listed(l.workload.Endpoint) != nil {
		edge = b.hops.End(l.workload.Endpoint, l.attempt, o, now)
	}
	b.mu.Unlock()
	b.publish(l.workload, edge, reason)
	if o == health.Failure && b.scope != ScopeNone {
		b.reprobe(l.workload)
	}
}

// errGone ends the questions to a pod that discovery lists no more.
var errGone = errors.New("discovery no longer lists the pod")

// reprobe asks the pod's node proxy itself, at once and until it answers or
// discovery lists it no more, so that the next failure is nobody's connection.
func (b *backends) reprobe(w *mesh.Workload) {
	var started time.Time
	ask := func(ctx context.Context) error {
		w := b.listed(w.Endpoint) // it may have another address by now, and another pod its old one
		if w == nil || len(w.Addresses) == 0 {
			return errGone
		}
		started = time.Now()
		return b.ask(ctx, w)
	}
	b.prober.Watch(w.Endpoint, ask, func(err error) bool {
		if errors.Is(err, errGone) {
			w := b.listed(w.Endpoint)
			return w == nil || len(w.Addresses) == 0
		}
		now := time.Now()
		b.mu.Lock()
		var edge health.Edge
		if b.listed(w.Endpoint) == nil { // with mu held: forget comes after
			b.mu.Unlock()
			return true
		}
		reason := probeReason(err)
		switch reason {
		case "":
			delete(b.doubts, w.Endpoint)
			delete(b.untrusted, w.Endpoint)
			edge = b.hops.Readmit(w.Endpoint, now)
		case identity.ReasonOwnIdentity, attemptLocal: // we could not ask, which says nothing about the pod
			delete(b.doubts, w.Endpoint)
		case identity.ReasonIdentity:
			b.untrusted[w.Endpoint] = struct{}{}
			fallthrough
		default:
			if isTimeout(err) && b.late(started) {
				break // what took so long may have been us
			}
			if reason == attemptUnreachable && b.answeredAt[w.Endpoint].After(started) {
				break // it has more to do than it can, and answers others meanwhile
			}
			edge = b.hops.End(w.Endpoint, b.hops.Begin(w.Endpoint, now), health.Failure, now)
		}
		b.mu.Unlock()
		b.publish(w, edge, reason)
		return err == nil
	})
}

// probeReason is why a pod's node proxy did not answer a question; "" if it did.
func probeReason(err error) string {
	if err == nil {
		return ""
	}
	if localfault.Is(err) {
		return attemptLocal
	}
	if reason := identity.ReasonOf(err); reason != identity.ReasonHandshake {
		return reason
	}
	return attemptUnreachable
}

// verifyEvery is how often clients that leave in the middle of the handshake with
// a pod make us ask it for its certificate.
const verifyEvery = time.Second

// verify asks a pod for its certificate, because a client left as one does that
// does not believe it. Only what the pod shows to us counts.
func (b *backends) verify(w *mesh.Workload, now time.Time) {
	if b.scope == ScopeNone {
		return
	}
	b.mu.Lock()
	due := now.Sub(b.asked[w.Endpoint]) >= verifyEvery && b.listed(w.Endpoint) != nil
	if due {
		b.asked[w.Endpoint] = now
	}
	b.mu.Unlock()
	if due {
		b.reprobe(w)
	}
}

func (b *backends) publish(w *mesh.Workload, e health.Edge, reason string) {
	if e == health.NoEdge {
		return
	}
	b.mu.Lock()
	if b.listed(w.Endpoint) != nil {
		b.edges[w.Endpoint] = time.Now()
	}
	b.mu.Unlock()
	edge := "ejected"
	if e == health.EdgeReadmitted {
		edge, reason = "readmitted", "answers"
	}
	b.count(edge)
	b.log.Info().Str("edge", edge).Str("scope", "hop").Str("network", w.Network).Uint16("port", mesh.HBONEPort).
		Stringer("endpoint", w.Endpoint).Str("workload", w.UID).Str("reason", reason).Str("source", "own").Msg("outlier changed")
	b.changed(w)
}

// reported takes note of what a witness says and tells whether that is an edge.
func (b *backends) reported(k health.Key, healthy bool) (edge bool) {
	if b.scope == ScopeNone {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	_, was := b.sick[k]
	if healthy {
		delete(b.sick, k)
	} else {
		b.sick[k] = struct{}{}
	}
	return was == healthy
}

// expired forgets what a witness reported of k if the ledger knows nothing of k any
// more, and tells whether that is an edge.
func (b *backends) expired(k health.Key) (edge bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	// With mu held: a report that comes meanwhile is in the ledger before reported
	// is called.
	if _, _, known := b.facts.Endpoint(b.network, k.Endpoint, k.Port); known {
		return false
	}
	_, edge = b.sick[k]
	delete(b.sick, k)
	return edge
}

// sickSubjects lists what is reported sick, as the ledger calls it.
func (b *backends) sickSubjects() []federation.Key {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]federation.Key, 0, len(b.sick))
	for k := range b.sick {
		out = append(out, federation.EndpointSubject(b.network, k.Endpoint, k.Port))
	}
	return out
}

// podHealth implements the function type of that name.
func (b *backends) podHealth(w *mesh.Workload, target uint16, now time.Time) (usable bool, seen time.Time) {
	b.mu.Lock()
	usable, seen = b.hops.Usable(w.Endpoint, now), b.edges[w.Endpoint]
	b.mu.Unlock()
	if b.scope == ScopeNone {
		return usable, seen
	}
	if f, age, ok := b.facts.Endpoint(b.network, w.Endpoint, target); ok {
		usable = usable && f.State == federation.Healthy
		if at := now.Add(-age); at.After(seen) {
			seen = at
		}
	}
	return usable, seen
}

// left is called when a node's health stream ended: its pods are asked at once,
// so that a dead node is found before users find it.
func (b *backends) left(s *mesh.Snapshot, node string) {
	for _, w := range s.OnNode(b.network, node) {
		if w.State == mesh.Ready && b.scope != ScopeNone {
			b.reprobe(w)
		}
	}
}

// forget drops what is known of pods that discovery no longer lists, and asks
// them no more.
func (b *backends) forget(now time.Time) {
	keep := func(id mesh.EndpointID) bool { return b.listed(id) != nil }
	b.prober.Retain(keep)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hops.Prune(now, keep)
	maps.DeleteFunc(b.sick, func(k health.Key, _ struct{}) bool { return !keep(k.Endpoint) })
	maps.DeleteFunc(b.doubts, func(id mesh.EndpointID, _ struct{}) bool { return !keep(id) })
	maps.DeleteFunc(b.untrusted, func(id mesh.EndpointID, _ struct{}) bool { return !keep(id) })
	maps.DeleteFunc(b.asked, func(id mesh.EndpointID, _ time.Time) bool { return !keep(id) })
	maps.DeleteFunc(b.answeredAt, func(id mesh.EndpointID, _ time.Time) bool { return !keep(id) })
	maps.DeleteFunc(b.edges, func(id mesh.EndpointID, _ time.Time) bool { return !keep(id) })
}

// retain drops the draws of service ports that discovery no longer lists.
func (b *backends) retain(snap *mesh.Snapshot) {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.draws, func(k drawKey, _ *balance.Draws) bool {
		svc := snap.Service(k.service)
		if svc == nil {
			return true
		}
		_, ok := svc.Port(k.port)
		return !ok
	})
}
