package nodeproxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/pool"
	"github.com/isthmus-mesh/isthmus/hbone/quic"
	"github.com/isthmus-mesh/isthmus/internal/lines"
	"github.com/isthmus-mesh/isthmus/internal/tcp"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/picker"
)

// transports has a selector for each network that is used with lines.transport: auto, until discovery lists no gateway of
// the network. Safe for concurrent use.
type transports struct {
	log zerolog.Logger
	// probe does QUIC handshakes with gateways of a network until one succeeds. It returns how long that one took. If there is
	// no result, the error is errUndeclared.
	probe func(ctx context.Context, network string) (time.Duration, error)
	// onChange is called when new sessions use QUIC again, and when they no longer do, but not while a probe is pending.
	onChange func(network string, quic bool)

	changes *prometheus.CounterVec // of the transport, by network and transport
	failed  *prometheus.CounterVec // QUIC handshakes, by network

	wake chan struct{} // capacity 1: a probe is pending
	mu   sync.Mutex
	by   map[string]*networkTransport // by network

	open   map[string]map[*hbone.Session]lineTotals // at the last sample, by network
	recent map[string]lineLosses                    // of all networks in open, by then
}

// lineLosses are figures of both transports to a network that are kept when the selector changes it.
type lineLosses struct{ tcp, quic lineFigures }

// networkTransport is the transport to one network.
type networkTransport struct {
	selector
	failed  map[udpPath]time.Time // when QUIC last failed where TCP connected
	probing bool                  // a probe is planned or in flight
}

// udpPath is one way that UDP may be blocked while others pass: a NetworkPolicy is for a pod, and lines.transport for a gateway.
type udpPath struct {
	from    string // UID of the captured workload; empty: this process
	gateway string // picker.GatewayKey
}

// lineTotals are statistics of the connection of a session since it was opened.
type lineTotals struct {
	quic, bbr  bool
	rtt        time.Duration // smoothed
	minRTT     time.Duration
	sent, lost float64 // segments of TCP, or full QUIC packets: smaller ones count in proportion
}

// sampleEvery is the pause between samples of sessions. A probe starts within it.
var sampleEvery = 10 * time.Second // tests have less

// infoOf is tcp.InfoOf. Tests have lines that lose packets.
var infoOf = tcp.InfoOf

func newTransports(log zerolog.Logger) *transports {
	return &transports{log: log, wake: make(chan struct{}, 1), by: map[string]*networkTransport{},
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_line_transport_changes_total", Help: "Changes of the transport to another network, by the new transport. The short use of TCP while UDP is probed is not counted."}, []string{"network", "transport"}),
		failed:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_line_quic_failures_total", Help: "Failed QUIC handshakes with gateways of another network, of sessions and of probes."}, []string{"network"}),
	}
}

// of returns the state of a network, an initial one if the network is not in use. The caller holds mu.
func (t *transports) of(network string) *networkTransport {
	if x := t.by[network]; x != nil {
		return x
	}
	return &networkTransport{failed: map[udpPath]time.Time{}}
}

// transportFor returns the transport of a new session of source with g for small messages.
func (t *transports) transportFor(g *mesh.Gateway, source origin) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.of(g.Network)
	t.by[g.Network] = x
	if x.pathFailing(udpPath{source.from, picker.GatewayKey(g)}, time.Now()) {
		return lines.TCP
	}
	return x.transport()
}

// pathFailing reports whether new sessions by path use TCP, though others may use QUIC.
func (x *networkTransport) pathFailing(path udpPath, now time.Time) bool {
	return now.Sub(x.failed[path]) < quicBackoff
}

// handshakeFailed records that a QUIC handshake of source with g failed, and one over TCP did not. New sessions on that path use
// TCP for quicBackoff.
func (t *transports) handshakeFailed(g *mesh.Gateway, source origin, err error) {
	path := udpPath{source.from, picker.GatewayKey(g)}
	t.update(g.Network, func(x *networkTransport, now time.Time) { x.failed[path] = now })
	t.log.Info().Str("network", g.Network).Str("gateway", g.Name).Str("workload", source.from).Err(err).Msg("QUIC handshake failed, TCP used")
}

// current returns the transport and its reason. Both are empty for a network that is not in use.
func (t *transports) current(network string) (transport, reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.by[network]
	if x == nil {
		return "", ""
	}
	now, n := time.Now(), 0
	for path := range x.failed {
		if x.pathFailing(path, now) {
			n++
		}
	}
	if transport, reason = x.transport(), x.reason(now); transport == lines.QUIC && n > 0 {
		reason += fmt.Sprintf("; QUIC failed on %d paths from a workload to a gateway, which use TCP", n)
	}
	return transport, reason
}

// failing is selector.failing for a network.
func (t *transports) failing(network string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.of(network).failing(time.Now())
}

// pathFailing is networkTransport.pathFailing for a network.
func (t *transports) pathFailing(network string, path udpPath) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.of(network).pathFailing(path, time.Now())
}

// failedFrom reports whether QUIC failed from a captured workload, or from this process, to any gateway of a network.
func (t *transports) failedFrom(network, from string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	x, now := t.of(network), time.Now()
	for path := range x.failed {
		if path.from == from && x.pathFailing(path, now) {
			return true
		}
	}
	return false
}

// networks returns the networks in use.
func (t *transports) networks() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.by))
}

// update applies f to the state of a network, with mu held, and acts on a change of the transport.
func (t *transports) update(network string, f func(x *networkTransport, now time.Time)) {
	t.mu.Lock()
	x, now := t.of(network), time.Now()
	quic, before := x.quic, x.transport()
	f(x, now)
	inUse, after, reason := x.quic, x.transport(), x.reason(now)
	t.mu.Unlock()
	if quic != inUse {
		t.changes.WithLabelValues(network, after).Inc()
		t.log.Info().Str("network", network).Str("transport", after).Str("reason", reason).Msg("line transport changed")
	}
	switch {
	case quic && !inUse, after != before && after == lines.QUIC:
		t.onChange(network, inUse)
	case after != before: // a probe is pending
		select {
		case t.wake <- struct{}{}:
		default:
		}
	}
}

// probeDone records the result of a probe. A local failure is none.
func (t *transports) probeDone(network string, took time.Duration, err error) {
	if err == nil || countsAgainstUDP(err) {
		t.update(network, func(x *networkTransport, now time.Time) { x.probeDone(now, took, err) })
	}
}

// countsAgainstUDP reports whether a QUIC handshake that failed with err counts against UDP. A local failure does not.
func countsAgainstUDP(err error) bool {
	b := blameOf(err)
	return b != blameLocal && b != blameOwn && !errors.Is(err, errUndeclared)
}

// requestProbe is selector.requestProbe for a network.
func (t *transports) requestProbe(network string) {
	t.update(network, (*networkTransport).requestProbe)
}

// handshakeTimeout bounds a QUIC handshake.
func (t *transports) handshakeTimeout(network string) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.of(network).handshakeTimeout()
}

// retain drops the networks without gateways.
func (t *transports) retain(snap *mesh.Snapshot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	for network, x := range t.by {
		if len(snap.Gateways(network)) == 0 {
			delete(t.by, network)
		}
		maps.DeleteFunc(x.failed, func(path udpPath, _ time.Time) bool { return !x.pathFailing(path, now) })
	}
}

// run samples lines and starts probes until ctx is done. It then waits for the probes in flight and drops all networks.
func (t *transports) run(ctx context.Context, sessions func() map[string]map[*hbone.Session]lineTotals) {
	var probes sync.WaitGroup
	defer func() {
		probes.Wait()
		t.mu.Lock()
		clear(t.by)
		t.open, t.recent = nil, nil
		t.mu.Unlock()
	}()
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			t.sample(sessions())
		case <-t.wake:
		}
		for _, network := range t.networks() {
			if wait, ok := t.planProbe(network, time.Now()); ok {
				probes.Go(func() { t.runProbe(ctx, network, wait) })
			}
		}
	}
}

// sample records the totals of the open sessions.
func (t *transports) sample(open map[string]map[*hbone.Session]lineTotals) {
	recent := t.losses(open)
	t.mu.Lock()
	before := t.open
	t.open, t.recent = open, recent
	t.mu.Unlock()
	for _, network := range t.networks() {
		tcp, quic := sampleOf(open[network], before[network])
		t.update(network, func(x *networkTransport, now time.Time) { x.sample(now, tcp, quic) })
	}
}

// losses returns the figures of the networks with open sessions, up to these totals.
func (t *transports) losses(open map[string]map[*hbone.Session]lineTotals) map[string]lineLosses {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, out := time.Now(), map[string]lineLosses{}
	for network, sessions := range open {
		tcp, quic := sampleOf(sessions, t.open[network])
		x := t.recent[network]
		x.tcp.add(now, tcp)
		x.quic.add(now, quic)
		out[network] = x
	}
	return out
}

// sampleOf returns samples of the open sessions, by transport, since their totals were before.
func sampleOf(open, before map[*hbone.Session]lineTotals) (tcp, quic lineSample) {
	tcp.bbr = true
	for s, t := range open {
		x, was := &tcp, before[s]
		if t.quic {
			x = &quic
		}
		x.sessions++
		x.rtt += (t.rtt - x.rtt) / time.Duration(x.sessions)
		if x.sessions == 1 || t.minRTT < x.minRTT {
			x.minRTT = t.minRTT
		}
		x.segments += max(0, t.sent-was.sent)
		x.lost += max(0, t.lost-was.lost)
		x.bbr = x.bbr && t.bbr
	}
	return tcp, quic
}

// planProbe reports whether to probe a network now, and after what wait. Waits are random, so that node proxies do not probe
// together.
func (t *transports) planProbe(network string, now time.Time) (wait time.Duration, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.of(network)
	if x.probing || !x.wantsProbe(now) {
		return 0, false
	}
	if !x.probePending {
		wait = rand.N(sampleEvery)
	}
	x.probing, x.probed = true, now.Add(wait)
	return wait, true
}

// runProbe runs a planned probe.
func (t *transports) runProbe(ctx context.Context, network string, wait time.Duration) {
	if !pause(ctx, wait) {
		return
	}
	took, err := t.probe(ctx, network)
	t.mu.Lock()
	t.of(network).probing = false
	t.mu.Unlock()
	if ctx.Err() == nil {
		t.probeDone(network, took, err)
	}
}

// transportTo returns the transport of a new session with a gateway of another network: lines.TCP, lines.QUIC, or
// lines.Auto for QUIC with TCP as the fallback.
func (p *Proxy) transportTo(g *mesh.Gateway, source origin, bulk bool) string {
	switch t := p.cfg.Lines.TransportTo(g.Network); {
	case bulk:
		return lines.TCP
	case t != lines.Auto:
		return t
	case p.transports.transportFor(g, source) == lines.QUIC:
		return lines.Auto
	}
	return lines.TCP
}

// transportOf returns the transport of a session, or of the one that carries it.
func transportOf(s *hbone.Session) string {
	if s.Base().Conn() == nil {
		return lines.QUIC
	}
	return lines.TCP
}

// overQUIC prefixes the address in a pool key of sessions over QUIC.
const overQUIC = "quic://"

// gatewaySessions returns the open sessions with gateways, by network. Those for bulk are left out: bulk loses packets by
// filling queues.
func (p *Proxy) gatewaySessions() map[string]map[*hbone.Session]lineTotals {
	out := map[string]map[*hbone.Session]lineTotals{}
	for key, s := range p.pool.Sessions() {
		if !strings.HasPrefix(key.UID, gatewayUID) || key.Bulk {
			continue
		}
		if t, ok := totalsOf(s); ok {
			network := networkOf(key)
			if out[network] == nil {
				out[network] = map[*hbone.Session]lineTotals{}
			}
			out[network][s] = t
		}
	}
	return out
}

func totalsOf(s *hbone.Session) (lineTotals, bool) {
	if x, ok := s.PipeStats(); ok {
		return lineTotals{quic: true, rtt: x.RTT, minRTT: x.MinRTT, sent: float64(x.Sent) / quic.PacketSize, lost: float64(x.Lost) / quic.PacketSize}, true
	}
	i, ok := infoOf(s.Conn())
	return lineTotals{bbr: strings.HasPrefix(i.Congestion, "bbr"), rtt: i.RTT, minRTT: i.MinRTT, sent: float64(i.Segments), lost: float64(i.Lost())}, ok
}

// errTransportChanged is the cause with which CONNECTs are retried when UDP has failed under their session.
var errTransportChanged = errors.New("QUIC is no longer used to this network")

// changeTransport retires sessions on the other transport: kept ones with pods of a network, and those that were to use QUIC and fell
// back to TCP. Their connections stay, and new connections open sessions on this transport. After a failure of UDP, CONNECTs
// without a response are retried.
func (p *Proxy) changeTransport(network string, quic bool) {
	gateways := map[*hbone.Session]string{} // of outer sessions, by picker.GatewayKey
	for key, s := range p.pool.Sessions() {
		if gateway, ok := strings.CutPrefix(key.UID, gatewayUID); ok {
			gateways[s] = gateway
		}
	}
	stale := map[pool.Key]bool{}
	var abandoned []*hbone.Session
	for key, s := range p.pool.Sessions() {
		overTCP := s.Base().Conn() != nil
		switch {
		case networkOf(key) != network || overTCP != quic:
		case !quic && key.Through == keptThrough:
			stale[key] = true
			abandoned = append(abandoned, s)
		case quic && (key.Through == keptThrough || strings.HasPrefix(key.Address, overQUIC)):
			stale[key] = !p.transports.pathFailing(network, udpPath{key.From, gateways[s.Base()]})
		}
	}
	p.pool.Retire(func(k pool.Key) bool { return stale[k] })
	for _, s := range abandoned {
		s.CloseWhenIdle()
		s.Abandon(errTransportChanged)
	}
}
