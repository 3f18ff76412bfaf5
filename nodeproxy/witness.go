package nodeproxy

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/damping"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/internal/localfault"
	"github.com/isthmus-mesh/isthmus/internal/reprobe"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// witness dials local applications and is the only one who may say how they
// did. After a first refusal it asks again itself, at once, so that the
// threshold of the breaker costs one user's connect and not two; and it goes on
// asking until the application answers, so that an ejection lasts as long as
// the fault. Safe for concurrent use.
//
// All of this is for what discovery declares: a workload of this node, and a
// target port of one of its services. What another port does is nobody's health,
// or whoever may connect to a pod could have any number of ports reported and
// probed.
type witness struct {
	network   string
	on        bool // scope endpoint: observe, probe and report
	timeout   time.Duration
	declared  declared
	connect   dialTCP
	from      func(uid string, client netip.Addr, otherwise dialTCP) dialTCP // how a workload is dialed for a client; none: for this process
	prober    *reprobe.Prober[health.Key]
	changed   func(...healthstream.Target) // there is news of these; never waits
	late      func(since time.Time) bool   // was this process itself late meanwhile?
	sockets   *listeners                   // of the applications; nil: they are not watched
	threshold int                          // failures in a row that eject
	log       zerolog.Logger

	mu        sync.Mutex
	tracker   *health.Tracker[health.Key]
	damper    *damping.Damper[damping.Key]
	hung      map[health.Key]bool // ejected, and the last dial timed out
	stalled   map[health.Key]bool // nobody is accepted; see suspicion.go
	left      map[health.Key]int  // connects that were withdrawn, since it answered last
	suspected map[health.Key]int  // questions that are due at once, as its listener has vanished
	facts     map[health.Key]fact
	owed      map[health.Key]time.Time // gateways want a word on these, whatever it is, until then
}

// declared returns the workload of this node that k is about, as discovery lists
// it now; nil if it does not, or if no service of it has that target port.
type declared func(k health.Key) *mesh.Workload

type fact struct {
	said federation.EndpointFact
	seen time.Time
}

// probes of local applications: cheap, they never leave the node.
var appSchedule = reprobe.Schedule{First: 100 * time.Millisecond, Limit: 500 * time.Millisecond}

func newWitness(ctx context.Context, c Config, d declared, connect dialTCP, changed func(...healthstream.Target), log zerolog.Logger) *witness {
	schedule := appSchedule
	schedule.Timeout = c.Timeouts.App
	return &witness{
		network: c.Network, on: c.OutlierDetection.Scope == ScopeEndpoint, timeout: c.Timeouts.App, declared: d, connect: connect,
		prober: reprobe.New[health.Key](ctx, schedule), changed: changed, log: log,
		tracker: health.NewTracker[health.Key](c.OutlierDetection.Config, rand.Float64), damper: damping.New[damping.Key](maxDamped),
		late: func(time.Time) bool { return false }, from: func(_ string, _ netip.Addr, otherwise dialTCP) dialTCP { return otherwise },
		threshold: max(c.OutlierDetection.FailureThreshold, 1), hung: map[health.Key]bool{}, stalled: map[health.Key]bool{}, left: map[health.Key]int{}, suspected: map[health.Key]int{}, facts: map[health.Key]fact{}, owed: map[health.Key]time.Time{},
	}
}

// dial connects to the application of a pod on target, with the client's address as source if possible.
// The reason of a failure is refused, timeout or reset, or overload for a local failure (see localfault),
// which does not count against the application. It is empty if ctx was canceled first.
func (w *witness) dial(ctx context.Context, pod *mesh.Workload, target uint16, client netip.Addr) (net.Conn, header.Reason, error) {
	key := health.Key{Endpoint: pod.Endpoint, Port: target}
	if !w.on || w.declared(key) == nil {
		conn, err := w.dialApp(ctx, pod, target, client)
		if err != nil && ctx.Err() != nil {
			return nil, "", err // the client left
		}
		return conn, reasonOf(err), err
	}
	if w.isHung(key) {
		w.watch(key) // ask sooner; do not let another user wait for it
		return nil, header.ReasonTimeout, errors.New("the application does not accept connections (known from probes)")
	}
	w.mu.Lock()
	attempt := w.tracker.Begin(key, time.Now())
	w.mu.Unlock()
	ended, began := w.sockets.dialling(key), time.Now()
	conn, err := w.dialApp(ctx, pod, target, client)
	ended(err == nil || ctx.Err() == nil)
	reason, outcome := reasonOf(err), health.Success
	switch {
	case err != nil && ctx.Err() != nil:
		reason, outcome = "", health.Neutral // the client left
	case localfault.Is(err):
		outcome = health.Neutral
	case err != nil:
		outcome = health.Failure
	}
	w.observe(key, attempt, outcome, reason)
	if outcome == health.Failure {
		w.watch(key)
	} else if err != nil && withdrawn(ctx) && time.Since(began) >= slowConnect {
		w.abandoned(key) // sooner, its queue was seen to be full: whether that drains is seen too
	}
	return conn, reason, err
}

// dialAt is dial at any address of the pod. What comes of it counts where others know the pod by the address, which is
// the first.
func (w *witness) dialAt(ctx context.Context, pod *mesh.Workload, to netip.AddrPort, client netip.Addr) (net.Conn, header.Reason, error) {
	if to.Addr() == pod.Addresses[0].Unmap() {
		return w.dial(ctx, pod, to.Port(), client)
	}
	conn, err := w.from(pod.UID, client, w.connect)(ctx, to, w.timeout)
	if err != nil && ctx.Err() != nil {
		return nil, "", err // the client left
	}
	return conn, reasonOf(err), err
}

func (w *witness) dialApp(ctx context.Context, pod *mesh.Workload, target uint16, client netip.Addr) (net.Conn, error) {
	return w.from(pod.UID, client, w.connect)(ctx, netip.AddrPortFrom(pod.Addresses[0], target), w.timeout)
}

func reasonOf(err error) header.Reason {
	ne := net.Error(nil)
	switch {
	case err == nil:
		return ""
	case localfault.Is(err):
		return header.ReasonOverload
	case errors.Is(err, syscall.ECONNRESET):
		return header.ReasonReset
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &ne) && ne.Timeout():
		return header.ReasonTimeout
	}
	return header.ReasonRefused
}

func (w *witness) isHung(k health.Key) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hung[k]
}

// watch asks the application until it answers or discovery lists it no more, each
// time where discovery says that it is.
func (w *witness) watch(key health.Key) {
	w.sockets.use(key)
	ask := func(ctx context.Context) error {
		w.pauseSuspected(ctx, key)
		pod := w.declared(key)
		switch {
		case pod == nil:
			return errUndeclared
		case w.isStalled(key):
			return errStalled
		}
		return w.ask(ctx, pod, key.Port)
	}
	w.prober.Watch(key, ask, func(err error) bool {
		pod := w.declared(key)
		switch {
		case pod == nil:
			return true
		case errors.Is(err, errStalled):
			return w.isStalled(key)
		case err == nil:
			w.askOnce(key, true)
			return !w.observe(key, health.Attempt{}, health.Success, "")
		case errors.Is(err, errUndeclared):
			return false // it is back since the question
		case localfault.Is(err):
			return false // no outcome: it neither ejects nor readmits
		}
		w.log.Debug().Stringer("endpoint", pod.Endpoint).Str("workload", pod.UID).Uint16("port", key.Port).
			Str("reason", string(reasonOf(err))).Err(err).Msg("probe failed")
		w.mu.Lock()
		a := w.tracker.Begin(key, time.Now())
		w.mu.Unlock()
		out := w.observe(key, a, health.Failure, reasonOf(err))
		if reasonOf(err) == header.ReasonTimeout && !out {
			w.unanswered(key)
		}
		if w.askOnce(key, out) {
			w.watch(key)
		}
		return false
	})
}

var errUndeclared = errors.New("discovery no longer lists the workload or its port")

// maxDamped bounds how many ports that were ejected are remembered.
const maxDamped = 4 * healthstream.MaxFacts

// observe records one dial, and reports whether the port is out. A success is
// independent evidence of its own, whenever it started: the application answers. If
// it has failed several times lately, it is said to answer, and stays out for a while.
func (w *witness) observe(key health.Key, a health.Attempt, o health.Outcome, reason header.Reason) (out bool) {
	now := time.Now()
	w.mu.Lock()
	pod := w.declared(key) // with mu held: forget comes after
	if pod == nil {
		w.mu.Unlock()
		return false
	}
	if o == health.Failure && reason == header.ReasonTimeout && w.late(now.Add(-w.timeout)) {
		o = health.Neutral // what took so long may have been us
	}
	if o == health.Success && w.stalled[key] {
		o = health.Neutral // it is in the queue
	}
	edge, held := w.judge(key, a, o, now)
	phase := w.tracker.State(key, now)
	out = phase.Phase != health.Healthy
	if out && o == health.Failure && reason == header.ReasonTimeout {
		w.hung[key] = true
	} else if o == health.Success {
		delete(w.hung, key)
	}
	if o == health.Success {
		delete(w.left, key)
	}
	owed := now.Before(w.owed[key]) && o == health.Success // a failure is said when it is an ejection
	was := w.facts[key].said.Reason == damping.Reason
	say := edge != health.NoEdge || owed || held && !was || was && out && o == health.Failure
	if say {
		f := federation.EndpointFact{Endpoint: key.Endpoint, Port: key.Port, State: federation.Healthy, Health: phase.Health}
		switch {
		case held:
			f.State, f.Reason = federation.Ejected, damping.Reason
		case out:
			f.State, f.Reason = federation.Ejected, string(reason)
		}
		w.facts[key] = fact{f, now}
		delete(w.owed, key)
	}
	w.mu.Unlock()
	if say {
		w.changed(healthstream.Target(key))
	}
	if edge == health.NoEdge {
		return out
	}
	name := "ejected"
	if edge == health.EdgeReadmitted {
		name, reason = "readmitted", "answers"
	}
	w.log.Info().Str("edge", name).Str("scope", "endpoint").Str("network", w.network).Uint16("port", key.Port).
		Stringer("endpoint", key.Endpoint).Str("workload", pod.UID).Str("reason", string(reason)).Str("source", "witness").Msg("outlier changed")
	return out
}

// judge takes in an outcome; held says that it is a success that does not count yet.
// The caller holds mu.
func (w *witness) judge(key health.Key, a health.Attempt, o health.Outcome, now time.Time) (edge health.Edge, held bool) {
	k := damping.Key(key)
	out := w.tracker.State(key, now).Phase != health.Healthy
	switch {
	case out && o == health.Success:
		if w.damper.Answered(k, now).After(now) {
			w.tracker.End(key, a, health.Neutral, now) // it may be a probe: others may be
			return health.NoEdge, true
		}
		w.damper.Readmitted(k, now)
		return w.tracker.Readmit(key, now), false
	case out && o == health.Failure:
		w.damper.Failed(k, now)
	}
	if a != (health.Attempt{}) {
		edge = w.tracker.End(key, a, o, now)
	}
	if edge == health.EdgeEjected && !out {
		w.damper.Expire(now)
		w.damper.Ejected(k, now)
	}
	return edge, false
}

// All implements [healthstream.Facts]: every fact worth telling, which is what is
// out, and what came back recently enough that somebody may still believe otherwise.
func (w *witness) All() []healthstream.Fact {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []healthstream.Fact
	for k, f := range w.facts {
		if f.said.State == federation.Healthy && now.Sub(f.seen) > 2*healthstream.Held {
			delete(w.facts, k)
			continue
		}
		out = append(out, healthstream.Fact{EndpointFact: f.said, Age: now.Sub(f.seen)})
	}
	return out
}

// Fact implements [healthstream.Facts].
func (w *witness) Fact(t healthstream.Target) (healthstream.Fact, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f, ok := w.facts[health.Key(t)]
	return healthstream.Fact{EndpointFact: f.said, Age: time.Since(f.seen)}, ok
}

// maxOwed bounds what gateways may want a word on and discovery does not list.
const maxOwed = 4 * healthstream.MaxFacts

// owe asks the applications behind targets now, and says of each how it does. What
// discovery does not list yet is asked when it does, if that is within
// [healthstream.Held]: for longer no gateway holds it as out.
func (w *witness) owe(targets []healthstream.Target) {
	if !w.on {
		return
	}
	var ask []health.Key
	now := time.Now()
	w.mu.Lock()
	w.expireOwed(now)
	for _, t := range targets {
		k := health.Key(t)
		if _, said := w.facts[k]; said || len(w.owed) >= maxOwed && w.declared(k) == nil {
			continue
		}
		w.owed[k] = now.Add(healthstream.Held)
		ask = append(ask, k)
	}
	w.mu.Unlock()
	w.askAll(ask)
}

// expireOwed drops what no gateway waits for any more; the caller holds mu.
func (w *witness) expireOwed(now time.Time) {
	maps.DeleteFunc(w.owed, func(_ health.Key, end time.Time) bool { return !now.Before(end) })
}

// askAll asks those of keys that are declared until they answer.
func (w *witness) askAll(keys []health.Key) {
	for _, k := range keys {
		if w.on && w.declared(k) != nil {
			w.watch(k)
		}
	}
}

// askOwed asks what has been declared since somebody wanted to know.
func (w *witness) askOwed() {
	w.mu.Lock()
	w.expireOwed(time.Now())
	keys := slices.Collect(maps.Keys(w.owed))
	w.mu.Unlock()
	w.askAll(keys)
}

// forget drops what is no longer declared, says so, and asks it no more: what comes
// back under that name is another pod. If it was out it is owed a word, in case
// discovery has lost it for a moment. What is owed is kept to its end: discovery may be
// late.
func (w *witness) forget() {
	keep := func(k health.Key) bool { return w.declared(k) != nil }
	w.prober.Retain(keep)
	if forgotten := w.drop(keep, time.Now()); len(forgotten) > 0 {
		w.changed(forgotten...)
	}
}

func (w *witness) drop(keep func(health.Key) bool, now time.Time) (forgotten []healthstream.Target) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.expireOwed(now)
	w.tracker.Prune(now, keep)
	w.damper.Retain(func(k damping.Key) bool { return keep(health.Key(k)) })
	for k, f := range w.facts {
		if keep(k) {
			continue
		}
		delete(w.facts, k)
		forgotten = append(forgotten, healthstream.Target(k))
		if f.said.State != federation.Healthy && len(w.owed) < maxOwed {
			w.owed[k] = now.Add(healthstream.Held)
		}
	}
	for _, m := range []map[health.Key]bool{w.hung, w.stalled} {
		maps.DeleteFunc(m, func(k health.Key, _ bool) bool { return !keep(k) })
	}
	for _, m := range []map[health.Key]int{w.left, w.suspected} {
		maps.DeleteFunc(m, func(k health.Key, _ int) bool { return !keep(k) })
	}
	return forgotten
}

// localBelief is one line of the admin dump.
type localBelief struct {
	Endpoint    string    `json:"endpoint"`              // endpoint ID in headers and logs
	Port        uint16    `json:"port"`                  // target port
	Phase       string    `json:"phase"`                 // healthy, ejected or probing
	Health      float64   `json:"health"`                // score, 0 to 1
	Consecutive int       `json:"consecutiveFailures"`   // failures in a row
	Until       time.Time `json:"ejectedUntil,omitzero"` // next attempt at the latest; an answered probe ends the wait early
	Reason      string    `json:"reason,omitempty"`      // reason of the ejection
	Since       time.Time `json:"since"`                 // time of the last ejection or readmission
}

func (w *witness) dump() []localBelief {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	out := []localBelief{}
	for k, f := range w.facts {
		s := w.tracker.State(k, now)
		out = append(out, localBelief{Endpoint: k.Endpoint.String(), Port: k.Port, Phase: s.Phase.String(), Health: s.Health,
			Consecutive: s.Consecutive, Until: s.Until, Reason: f.said.Reason, Since: f.seen})
	}
	slices.SortFunc(out, func(a, b localBelief) int {
		if a.Endpoint != b.Endpoint {
			if a.Endpoint < b.Endpoint {
				return -1
			}
			return 1
		}
		return int(a.Port) - int(b.Port)
	})
	return out
}
