package nodeproxy

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/balance"
	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/route"
)

// view is what this node proxy believes about the places that connections may
// go to: its own evidence of pods, gateways and network services, and what the
// owners of other networks' facts have said. Safe for concurrent use.
type view struct {
	network string
	scope   string
	reports bool // use what federation says
	summary func(network, service string, port uint16) (federation.SummaryFact, time.Duration, bool)
	probe   func(gateway string) // a gateway failed: ask it until it answers
	log     zerolog.Logger
	metrics *Metrics

	mu       sync.Mutex
	pods     *health.Tracker[health.Key] // of the own network
	failed   map[health.Key]time.Time    // when one of them last failed under our eyes
	shares   *health.Tracker[share]      // scope networkService
	gateways *health.Tracker[string]
	hints    *health.Hints // endpoints of other networks that failed under our eyes
	waits    map[string]silence
	open     map[any]int // open connections by health.Key, share or gateway key
	draws    map[any]*balance.Draws
	dazed    map[string]bool // authority → last choice was made among the sick
	scratch  []balance.Candidate
}

// share is a network service on one service port.
type share struct {
	network, service string
	port             uint16
}

func newView(c Config, summary func(string, string, uint16) (federation.SummaryFact, time.Duration, bool), probe func(gateway string), log zerolog.Logger, m *Metrics) *view {
	off := c.OutlierDetection.Config
	off.Mode = health.ModeOff
	all, shares := c.OutlierDetection.Config, off
	switch c.OutlierDetection.Scope {
	case ScopeNone:
		all = off
	case ScopeNetworkService:
		shares = c.OutlierDetection.Config
	}
	return &view{
		network: c.Network, scope: c.OutlierDetection.Scope, reports: c.Federation.Health && c.OutlierDetection.Scope == ScopeEndpoint,
		summary: summary, probe: probe, log: log, metrics: m,
		pods:     health.NewTracker[health.Key](all, rand.Float64),
		shares:   health.NewTracker[share](shares, rand.Float64),
		gateways: health.NewTracker[string](all, rand.Float64),
		hints:    health.NewHints(hintTTL),
		failed:   map[health.Key]time.Time{},
		waits:    map[string]silence{},
		open:     map[any]int{}, draws: map[any]*balance.Draws{}, dazed: map[string]bool{},
	}
}

// hintTTL is how long an endpoint of another network that failed under our
// eyes is asked to be avoided, unless its owner says something newer.
const hintTTL = 10 * time.Second

// pick is one chosen place, until done.
type pick struct {
	pod    *mesh.Workload // of the own network; nil for a remote one
	target uint16

	unjudged bool // a port that discovery does not declare: whatever comes of it is nobody's health

	gateway *mesh.Gateway
	share   share
	remote  *mesh.Workload // pod of another network; nil: the gateway chooses
	port    uint16         // of remote's application
	expect  []spiffeid.ID
	avoid   []mesh.EndpointID

	podTry, shareTry, gatewayTry health.Attempt
}

func (p pick) network() string {
	if p.pod != nil {
		return p.pod.Network
	}
	return p.gateway.Network
}

// chosen is the pod that is meant, nil if the gateway chooses.
func (p pick) chosen() *mesh.Workload {
	if p.pod != nil {
		return p.pod
	}
	return p.remote
}

func (p pick) podKey() health.Key { return health.Key{Endpoint: p.pod.Endpoint, Port: p.target} }

func (p pick) remoteKey() health.Key {
	return health.Key{Endpoint: p.remote.Endpoint, Port: p.port}
}

func gatewayKey(g *mesh.Gateway) string { return g.Network + "/" + g.Name }

// choose picks where the next attempt of a connection goes.
func (v *view) choose(plan *route.Plan, t tried, now time.Time) (pick, *failure) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if plan.Direct != nil {
		return v.take(pick{pod: plan.Direct, target: plan.Port.Target, unjudged: plan.Undeclared}, now), nil
	}
	v.scratch = v.scratch[:0]
	for _, c := range plan.Candidates {
		v.scratch = append(v.scratch, v.weigh(plan, c, t, now))
	}
	i, dazed, ok := balance.Pick(v.draw(plan.Authority))
	if !ok {
		return pick{}, &failure{reason: reasonNoRoute, final: true, err: errors.New("no candidate of " + plan.Authority + " is left")}
	}
	v.noteDazed(plan.Authority, dazed)
	c := plan.Candidates[i]
	if c.Workload != nil {
		return v.take(pick{pod: c.Workload, target: c.Workload.Target(plan.Port)}, now), nil
	}
	p := pick{share: share{c.Network, plan.Service.Hostname, plan.Port.Service}, expect: c.Expect}
	if p.gateway = v.chooseGateway(c, t, now); p.gateway == nil {
		return pick{}, &failure{reason: reasonNoRoute, err: errors.New("network " + c.Network + " has no gateway that is not drained")}
	}
	if p.remote = v.chooseRemote(plan, p.share, c.Pods, t, now); p.remote != nil {
		p.port, p.expect = p.remote.Target(plan.Port), []spiffeid.ID{p.remote.Identity}
	} else {
		p.avoid = v.avoid(p.share, len(c.Pods), t, now)
	}
	return v.take(p, now), nil
}

// doubtFor is how long the gateway chooses after a pod of another network failed
// under our eyes and its owners have not said why: as long as an ejection at least.
const doubtFor = time.Minute

// chooseRemote picks a pod of another network, by what its owners and our own
// eyes say of it, so that a session with it can be kept. It leaves the choice to
// the gateway (nil), who knows better, when nobody seems well, and when a pod has
// failed without a word from its owners: they may be cut off.
func (v *view) chooseRemote(plan *route.Plan, s share, pods []*mesh.Workload, t tried, now time.Time) *mesh.Workload {
	if v.scope != ScopeEndpoint || len(pods) == 0 {
		return nil
	}
	f, _ := v.reported(s)
	service := health.HintService{Network: s.network, Service: s.service, Port: s.port}
	if v.hints.Unexplained(service, f.Exceptions, doubtFor, now) {
		return nil
	}
	v.scratch = v.scratch[:0]
	for _, w := range pods {
		v.scratch = append(v.scratch, balance.Candidate{
			Weight: float64(w.Capacity), Load: float64(v.open[health.Key{Endpoint: w.Endpoint, Port: w.Target(plan.Port)}]),
			Usable: !slices.Contains(f.Exceptions, w.Endpoint) && !v.hints.Hinted(health.HintKey{HintService: service, Endpoint: w.Endpoint}, now) &&
				!slices.Contains(t.pods, w.Endpoint),
		})
	}
	i, dazed, ok := balance.Pick(v.draw(s))
	if !ok || dazed {
		return nil
	}
	return pods[i]
}

// draw returns the arguments of one choice among scratch.
func (v *view) draw(key any) ([]balance.Candidate, float64, float64) {
	d := v.draws[key]
	if d == nil {
		d = balance.NewDraws(rand.Uint64())
		v.draws[key] = d
	}
	x, y := d.Next()
	return v.scratch, x, y
}

func (v *view) weigh(plan *route.Plan, c route.Candidate, t tried, now time.Time) balance.Candidate {
	if w := c.Workload; w != nil {
		k := health.Key{Endpoint: w.Endpoint, Port: w.Target(plan.Port)}
		return balance.Candidate{
			Weight: float64(c.Capacity) * v.pods.Weight(k, now), Faint: v.pods.Faint(k), Load: float64(v.open[k]), Rank: c.Rank,
			Usable: v.pods.Usable(k, now) && !v.excepted(plan, w), Avoid: slices.Contains(t.pods, w.Endpoint),
		}
	}
	s := share{c.Network, plan.Service.Hostname, plan.Port.Service}
	b := balance.Candidate{
		Weight: float64(c.Capacity) * v.shares.Weight(s, now), Faint: v.shares.Faint(s), Load: float64(v.open[s]), Rank: c.Rank,
		Usable: v.shares.Usable(s, now), Avoid: slices.Contains(t.networks, c.Network) || !v.reachable(c, t, now),
	}
	if f, ok := v.reported(s); ok {
		b.Drained = f.Draining
		b.Usable = b.Usable && f.Healthy > 0
		if f.HealthyCapacity > 0 {
			b.Weight = float64(f.HealthyCapacity)
		}
	}
	return b
}

// excepted reports whether the witness beside w, by way of this network's
// gateways, says that it is out.
func (v *view) excepted(plan *route.Plan, w *mesh.Workload) bool {
	f, ok := v.reported(share{v.network, plan.Service.Hostname, plan.Port.Service})
	return ok && slices.Contains(f.Exceptions, w.Endpoint)
}

func (v *view) reported(s share) (federation.SummaryFact, bool) {
	if !v.reports {
		return federation.SummaryFact{}, false
	}
	f, _, ok := v.summary(s.network, s.service, s.port)
	return f, ok
}

// reachable reports whether a gateway of c is there that takes connections, as far
// as is known, and that this connection has not tried.
func (v *view) reachable(c route.Candidate, t tried, now time.Time) bool {
	return slices.ContainsFunc(c.Gateways, func(g *mesh.Gateway) bool {
		k := gatewayKey(g)
		return !slices.Contains(t.gateways, k) && !v.waits[k].long(now) && v.gateways.Usable(k, now)
	})
}

func (v *view) chooseGateway(c route.Candidate, t tried, now time.Time) *mesh.Gateway {
	v.scratch = v.scratch[:0]
	for _, g := range c.Gateways {
		k := gatewayKey(g)
		v.scratch = append(v.scratch, balance.Candidate{
			Weight: v.gateways.Weight(k, now), Faint: v.gateways.Faint(k), Load: float64(v.open[k]), Usable: v.gateways.Usable(k, now),
			Drained: g.Drained, Avoid: slices.Contains(t.gateways, k) || v.waits[k].long(now),
		})
	}
	i, _, ok := balance.Pick(v.draw(c.Network))
	if !ok {
		return nil
	}
	return c.Gateways[i]
}

// avoid lists endpoints of a network service that a gateway should leave out:
// what this connection has met, what failed under our eyes, what is reported.
func (v *view) avoid(s share, members int, t tried, now time.Time) []mesh.EndpointID {
	if v.scope != ScopeEndpoint {
		return t.pods
	}
	f, ok := v.reported(s)
	if ok {
		members = int(f.Ready)
	}
	out := slices.Clone(t.pods)
	for _, id := range v.hints.Avoid(health.HintService{Network: s.network, Service: s.service, Port: s.port}, f.Exceptions, members, now) {
		if !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

// take opens the books on p; the caller holds mu.
func (v *view) take(p pick, now time.Time) pick {
	if p.pod != nil {
		if !p.unjudged {
			p.podTry = v.pods.Begin(p.podKey(), now)
		}
		v.open[p.podKey()]++
		return p
	}
	p.shareTry = v.shares.Begin(p.share, now)
	p.gatewayTry = v.gateways.Begin(gatewayKey(p.gateway), now)
	v.open[p.share]++
	v.open[gatewayKey(p.gateway)]++
	v.waits[gatewayKey(p.gateway)] = v.waits[gatewayKey(p.gateway)].asked(now)
	if p.remote != nil {
		v.open[p.remoteKey()]++
	}
	return p
}
