package gateway

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/damping"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/gateway/picker"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/localfault"
	"github.com/isthmus-mesh/isthmus/internal/reprobe"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// facts answers what is believed of a port by the word of the witness beside it, and
// how old its evidence is.
type facts func(network string, id mesh.EndpointID, port uint16) (federation.EndpointFact, time.Duration, bool)

// backends knows which pods of this network answer. The picker decides; backends
// gives it the clock, asks pods that are in doubt, and tells the log, the metrics
// and the summaries what came of it. Safe for concurrent use.
type backends struct {
	*picker.Picker
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
	nth     func() int                                  // gateway of its network this is
}

func newBackends(network string, o Outlier, f facts, prober *reprobe.Prober[mesh.EndpointID],
	ask func(context.Context, *mesh.Workload) error, listed func(mesh.EndpointID) *mesh.Workload, log zerolog.Logger, changed func(*mesh.Workload)) *backends {
	cfg := o.Config
	if o.Scope == ScopeNone {
		cfg.Mode = health.ModeOff
	}
	b := &backends{
		network: network, scope: o.Scope, facts: f, log: log, changed: changed, prober: prober, ask: ask, listed: listed,
		late:  func(time.Time) bool { return false },
		count: func(string) {},
		nth:   func() int { return 0 },
	}
	b.Picker = picker.New(picker.Config{Network: network, Hops: cfg, Jitter: rand.Float64, Seed: rand.Uint64,
		Listed: func(id mesh.EndpointID) bool { return listed(id) != nil }, Nth: func() int { return b.nth() }})
	return b
}

// lease is one pod that was chosen, until release.
type lease struct {
	picker.Choice
	inner *innerHandshake // of its connection; nil until there is room for it
}

// choose picks a pod of s for one connection. ok is false when every member is
// drained, not ready, or was tried already.
func (b *backends) choose(s *picker.Service, r picker.Request, now time.Time) (lease, bool) {
	c, ok := b.Pick(s, r, now)
	return lease{Choice: c}, ok
}

// release gives the lease back with what became of the hop.
func (b *backends) release(l lease, o health.Outcome, reason string, now time.Time) {
	l.inner.end()
	b.publish(b.Done(&l.Choice, picker.Outcome{Health: o, Reason: reason}, now))
	if o == health.Failure && b.scope != ScopeNone {
		b.reprobe(l.Pod)
	}
}

// answered records that the pod's node proxy sent its first bytes, while the
// lease goes on.
func (b *backends) answered(l lease, now time.Time) { b.publish(b.Opened(&l.Choice, now)) }

// doubt keeps connections away from a pod that is slow to answer one, while there
// are others, until it has answered a question of our own.
func (b *backends) doubt(w *mesh.Workload) {
	if b.scope == ScopeNone {
		return
	}
	b.Doubt(w.Endpoint, time.Now())
	b.reprobe(w)
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
		reason := probeReason(err)
		b.publish(b.Asked(w, b.answerOf(err, reason, started), reason, started, time.Now()))
		return err == nil || b.listed(w.Endpoint) == nil
	})
}

// answerOf reads what a question that was put at started came to.
func (b *backends) answerOf(err error, reason string, started time.Time) picker.Answer {
	switch {
	case err == nil:
		return picker.Answers
	case reason == identity.ReasonOwnIdentity, reason == attemptLocal: // the probe failed on this host
		return picker.NotAsked
	case reason == identity.ReasonIdentity:
		return picker.Untrusted
	case isTimeout(err) && b.late(started): // what took so long may have been us
		return picker.Unknown
	case reason == attemptUnreachable:
		return picker.Silent
	}
	return picker.Broken
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
	if b.MayVerify(w.Endpoint, verifyEvery, now) {
		b.reprobe(w)
	}
}

func (b *backends) publish(edges []picker.Edge) {
	for _, e := range edges {
		edge, reason := "ejected", e.Reason
		if e.Edge == health.EdgeReadmitted {
			edge, reason = "readmitted", "answers"
		}
		b.count(edge)
		b.log.Info().Str("edge", edge).Str("scope", "hop").Str("network", e.Pod.Network).Uint16("port", mesh.HBONEPort).
			Stringer("endpoint", e.Pod.Endpoint).Str("workload", e.Pod.UID).Str("reason", reason).Str("source", "own").Msg("outlier changed")
		b.changed(e.Pod)
	}
}

// reported takes note of what the witness on a node says and tells whether that is
// an edge.
func (b *backends) reported(f federation.EndpointFact, node string) (edge bool) {
	if b.scope == ScopeNone {
		return false
	}
	return b.Reported(health.Key{Endpoint: f.Endpoint, Port: f.Port}, f.State == federation.Healthy, picker.Word{Reason: f.Reason, Witness: node}, time.Now())
}

// podHealth implements the function type of that name.
func (b *backends) podHealth(w *mesh.Workload, target uint16, now time.Time) (cause record.Cause, damped bool, seen time.Time) {
	hop := b.Hop(w.Endpoint, now)
	if seen = hop.Turned; !hop.Usable {
		cause = record.Hop
	}
	if b.scope == ScopeNone {
		return cause, false, seen
	}
	if f, age, ok := b.facts(b.network, w.Endpoint, target); ok {
		if f.State != federation.Healthy {
			damped = cause == 0 && f.Reason == damping.Reason
			cause = record.Witness
		}
		if at := now.Add(-age); at.After(seen) {
			seen = at
		}
	}
	return cause, damped, seen
}

// podDetail implements the function type of that name.
func (b *backends) podDetail(w *mesh.Workload, target uint16, cause record.Cause, now time.Time) (d record.Detail) {
	var since time.Time
	switch cause {
	case record.Witness:
		if word, sick := b.Word(health.Key{Endpoint: w.Endpoint, Port: target}); sick {
			d.Reason, d.Witness, since = word.Reason, word.Witness, word.Since
		}
	case record.Hop:
		d.Reason, since = attemptUnreachable, b.Hop(w.Endpoint, now).Turned
	}
	if !since.IsZero() {
		d.Since = since.Unix()
	}
	return d
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

// forget drops what is known of pods and services that discovery no longer lists,
// and asks those pods no more.
func (b *backends) forget(snap *mesh.Snapshot, now time.Time) {
	b.prober.Retain(func(id mesh.EndpointID) bool { return b.listed(id) != nil })
	b.Retain(snap, now)
}
