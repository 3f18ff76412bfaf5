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
	network  string
	on       bool // scope endpoint: observe, probe and report
	timeout  time.Duration
	declared declared
	connect  dialTCP
	prober   *reprobe.Prober[health.Key]
	report   func(...federation.Record)
	late     func(since time.Time) bool // was this process itself late meanwhile?
	log      zerolog.Logger

	mu      sync.Mutex
	tracker *health.Tracker[health.Key]
	hung    map[health.Key]bool // ejected, and the last dial timed out
	facts   map[health.Key]fact
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

func newWitness(ctx context.Context, c Config, d declared, connect dialTCP, report func(...federation.Record), log zerolog.Logger) *witness {
	schedule := appSchedule
	schedule.Timeout = c.Timeouts.App
	return &witness{
		network: c.Network, on: c.OutlierDetection.Scope == ScopeEndpoint, timeout: c.Timeouts.App, declared: d, connect: connect,
		prober: reprobe.New[health.Key](ctx, schedule), report: report, log: log,
		tracker: health.NewTracker[health.Key](c.OutlierDetection.Config, rand.Float64),
		late:    func(time.Time) bool { return false },
		hung:    map[health.Key]bool{}, facts: map[health.Key]fact{},
	}
}

// dial connects to the application of w on target. The reason of a failure is
// one of refused, timeout and reset, or overload if it was not the application's:
// this process could not ask. It is empty when ctx ended first.
func (w *witness) dial(ctx context.Context, pod *mesh.Workload, target uint16) (net.Conn, header.Reason, error) {
	key := health.Key{Endpoint: pod.Endpoint, Port: target}
	if !w.on || w.declared(key) == nil {
		conn, err := w.dialApp(ctx, pod, target)
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
	conn, err := w.dialApp(ctx, pod, target)
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
	}
	return conn, reason, err
}

func (w *witness) dialApp(ctx context.Context, pod *mesh.Workload, target uint16) (net.Conn, error) {
	return w.connect(ctx, netip.AddrPortFrom(pod.Addresses[0], target), w.timeout)
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
	ask := func(ctx context.Context) error {
		pod := w.declared(key)
		if pod == nil {
			return errUndeclared
		}
		c, err := w.dialApp(ctx, pod, key.Port)
		if err != nil {
			return err
		}
		return c.Close()
	}
	w.prober.Watch(key, ask, func(err error) bool {
		pod := w.declared(key)
		switch {
		case pod == nil:
			return true
		case err == nil:
			w.observe(key, health.Attempt{}, health.Success, "")
			return true
		case errors.Is(err, errUndeclared):
			return false // it is back since the question
		case localfault.Is(err):
			return false // it was not asked
		}
		w.log.Debug().Stringer("endpoint", pod.Endpoint).Str("workload", pod.UID).Uint16("port", key.Port).
			Str("reason", string(reasonOf(err))).Err(err).Msg("probe failed")
		w.mu.Lock()
		a := w.tracker.Begin(key, time.Now())
		w.mu.Unlock()
		w.observe(key, a, health.Failure, reasonOf(err))
		return false
	})
}

var errUndeclared = errors.New("discovery no longer lists the workload or its port")

// observe records one dial. A success is independent evidence of its own,
// whenever it started: the application answers.
func (w *witness) observe(key health.Key, a health.Attempt, o health.Outcome, reason header.Reason) {
	now := time.Now()
	w.mu.Lock()
	pod := w.declared(key) // with mu held: forget comes after
	if pod == nil {
		w.mu.Unlock()
		return
	}
	var edge health.Edge
	if o == health.Failure && reason == header.ReasonTimeout && w.late(now.Add(-w.timeout)) {
		o = health.Neutral // what took so long may have been us
	}
	if o == health.Success && w.tracker.State(key, now).Phase != health.Healthy {
		edge = w.tracker.Readmit(key, now)
	} else if a != (health.Attempt{}) {
		edge = w.tracker.End(key, a, o, now)
	}
	phase := w.tracker.State(key, now)
	if phase.Phase != health.Healthy && o == health.Failure && reason == header.ReasonTimeout {
		w.hung[key] = true
	} else if o == health.Success {
		delete(w.hung, key)
	}
	var r federation.Record
	if edge != health.NoEdge {
		f := federation.EndpointFact{Endpoint: key.Endpoint, Port: key.Port, State: federation.Healthy, Health: phase.Health}
		if edge == health.EdgeEjected {
			f.State, f.Reason = federation.Ejected, string(reason)
		}
		w.facts[key] = fact{f, now}
		r = w.facts[key].record(w.network, now)
	}
	w.mu.Unlock()
	if edge == health.NoEdge {
		return
	}
	w.report(r)
	name := "ejected"
	if edge == health.EdgeReadmitted {
		name, reason = "readmitted", "answers"
	}
	w.log.Info().Str("edge", name).Str("scope", "endpoint").Str("network", w.network).Uint16("port", key.Port).
		Stringer("endpoint", key.Endpoint).Str("workload", pod.UID).Str("reason", string(reason)).Str("source", "witness").Msg("outlier changed")
}

func (f fact) record(network string, now time.Time) federation.Record {
	said := f.said
	return federation.Record{Network: network, Age: now.Sub(f.seen), Endpoint: &said}
}

// current returns every fact worth telling: what is out, and
// what came back recently enough that somebody may still believe otherwise.
func (w *witness) current() []federation.Record {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []federation.Record
	for k, f := range w.facts {
		if f.said.State == federation.Healthy && now.Sub(f.seen) > 2*federation.DefaultTTL {
			delete(w.facts, k)
			continue
		}
		out = append(out, f.record(w.network, now))
	}
	return out
}

// forget drops what is no longer declared, and asks it no more.
func (w *witness) forget() {
	keep := func(k health.Key) bool { return w.declared(k) != nil }
	w.prober.Retain(keep)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tracker.Prune(time.Now(), keep)
	maps.DeleteFunc(w.facts, func(k health.Key, _ fact) bool { return !keep(k) })
	maps.DeleteFunc(w.hung, func(k health.Key, _ bool) bool { return !keep(k) })
}

// localBelief is one line of the admin dump.
type localBelief struct {
	Endpoint    string    `json:"endpoint"`              // its name in headers and logs
	Port        uint16    `json:"port"`                  // target port
	Phase       string    `json:"phase"`                 // healthy, ejected or probing
	Health      float64   `json:"health"`                // score, 0 to 1
	Consecutive int       `json:"consecutiveFailures"`   // failures in a row
	Until       time.Time `json:"ejectedUntil,omitzero"` // end of the wait after which it is tried again at the latest; a probe that is answered ends it early
	Reason      string    `json:"reason,omitempty"`      // of the ejection
}

func (w *witness) dump() []localBelief {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	out := []localBelief{}
	for k, f := range w.facts {
		s := w.tracker.State(k, now)
		out = append(out, localBelief{Endpoint: k.Endpoint.String(), Port: k.Port, Phase: s.Phase.String(), Health: s.Health,
			Consecutive: s.Consecutive, Until: s.Until, Reason: f.said.Reason})
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
