package nodeproxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/pool"
	"github.com/isthmus-mesh/isthmus/hbone/quic"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/internal/lines"
	"github.com/isthmus-mesh/isthmus/internal/meshtest/trust"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// udpRig is a node proxy that uses QUIC to west by lines.transport: auto, and servers of the identity of gateways.
type udpRig struct {
	t    *testing.T
	p    *Proxy
	cert *slowSource // of the certificates of p
	tls  func(protocols ...string) *tls.Config
	gw   spiffeid.ID
}

// slowSource issues certificates after a delay.
type slowSource struct {
	identity.Source
	delay time.Duration
}

func (s *slowSource) Fetch(ctx context.Context, id spiffeid.ID) (*identity.SVID, error) {
	if !pause(ctx, s.delay) {
		return nil, ctx.Err()
	}
	return s.Source.Fetch(ctx, id)
}

func newUDPRig(t *testing.T) *udpRig {
	t.Helper()
	ca, err := identity.InitCA(t.TempDir(), trust.Domain)
	if err != nil {
		t.Fatal(err)
	}
	issue := identity.CASource{CA: ca, TTL: time.Hour}
	r := &udpRig{t: t, cert: &slowSource{Source: issue}, gw: trust.Workload("gateway")}
	servers := identity.NewManager(issue, zerolog.Nop())
	if _, err := servers.Get(t.Context(), r.gw); err != nil {
		t.Fatal(err)
	}
	r.tls = func(protocols ...string) *tls.Config { return servers.ServerTLS(r.gw, nil, protocols...) }
	cfg := DefaultConfig()
	cfg.Lines.Transports = map[string]string{"west": lines.Auto}
	r.p = &Proxy{cfg: cfg, data: t.Context(), self: trust.Node("east", "east-1"), ids: identity.NewManager(r.cert, zerolog.Nop()), store: new(discovery.Store),
		session: hbone.DefaultConfig(), dialHop: dialKernel(0)}
	r.p.paths = newPaths(t.Context(), func(context.Context, string) (*answer.Path, error) { return nil, errUndeclared })
	r.p.transports, _ = onQUIC()
	r.p.transports.probe = func(ctx context.Context, network string) (time.Duration, error) {
		return r.p.probeUDPFrom(ctx, network, []origin{{id: trust.Workload("other")}})
	}
	return r
}

// selector returns a copy of the state of west.
func (r *udpRig) selector() selector {
	r.p.transports.mu.Lock()
	defer r.p.transports.mu.Unlock()
	return r.p.transports.by["west"].selector
}

// udp is what a server does with UDP.
type udp int

const (
	udpServed udp = iota
	udpSilent
	udpClosed
)

// server returns an address on which TCP is served, or its port closed, and the same port of UDP as said.
func (r *udpRig) server(tcp bool, u udp) netip.AddrPort {
	r.t.Helper()
	l, err := tls.Listen("tcp4", "127.0.0.1:0", r.tls("h2"))
	if err != nil {
		r.t.Fatal(err)
	}
	at := l.Addr().(*net.TCPAddr).AddrPort()
	if !tcp {
		l.Close()
	} else {
		r.t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() { c.(*tls.Conn).Handshake(); c.Read(make([]byte, 1<<16)); <-r.t.Context().Done(); c.Close() }()
			}
		}()
	}
	if u == udpClosed {
		return at
	}
	socket, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { socket.Close() })
	if u == udpServed {
		q, err := quic.Listen(socket, r.tls(quic.Protocols([]string{"h2"})...), quic.ListenConfig{})
		if err != nil {
			r.t.Fatal(err)
		}
		r.t.Cleanup(q.Shutdown)
		go func() {
			for {
				pipe, err := q.Accept(r.t.Context())
				if err != nil {
					return
				}
				go hbone.NewServer(pipe, hbone.DefaultConfig(), func(context.Context, *hbone.Incoming) {}).Serve(r.t.Context())
			}
		}()
	}
	return at
}

// gateways makes the gateways of west, each with its addresses.
func (r *udpRig) gateways(ways ...[]netip.AddrPort) {
	c := discovery.DefaultConfig()
	c.Networks = []discovery.Network{{Name: "east"}, {Name: "west"}}
	for i, at := range ways {
		c.Gateways = append(c.Gateways, discovery.Gateway{Name: fmt.Sprintf("gw-%d", i), Network: "west", Address: at[0], QUICAddresses: at[1:]})
	}
	snap, problems := discovery.Build(1, c)
	if len(problems) > 0 {
		r.t.Fatal(problems)
	}
	r.p.store.Swap(snap)
}

func (r *udpRig) gateway() *mesh.Gateway {
	return &mesh.Gateway{Name: "gw-0", Network: "west", Identity: r.gw}
}

func (r *udpRig) dial(source string, at netip.AddrPort) (transport, error) {
	o, err := r.p.dialEither(r.t.Context(), origin{trust.Workload(source), source}, r.gateway(), way{at, at}, "h2")
	return o.t, err
}

// The time until this process has a certificate is no time of a handshake.
func TestCertificateDelayIsNoSlowHandshake(t *testing.T) {
	r := newUDPRig(t)
	at := r.server(true, udpServed)
	r.gateways([]netip.AddrPort{at})
	r.cert.delay = 1200 * time.Millisecond // longer than handshakeTimeout
	for what, try := range map[string]func(){
		"session": func() {
			o, err := r.dial("shop", at)
			if err != nil {
				t.Fatal(err)
			}
			if _, tcp := o.(*hbone.TLSTransport); tcp {
				t.Error("a session fell back to TCP because its certificate was late")
			}
			o.Close()
		},
		"probe": func() {
			r.p.transports.runProbe(t.Context(), "west", 0)
		},
	} {
		try()
		if s := r.selector(); s.slow != 0 || s.probePending || s.cause != "" {
			t.Errorf("%s: %d slow handshakes, a probe is pending: %t, cause %q; want none", what, s.slow, s.probePending, s.cause)
		}
	}
}

// A session that was to use QUIC and fell back to TCP is one over TCP, also when it fails.
func TestSilentFallbackIsNoQUICFailure(t *testing.T) {
	key := pool.Key{UID: gatewayUID + "west/gw-0", Address: overQUIC + "192.0.2.1:15008"}
	for _, c := range []struct {
		udp  udp
		want string
	}{{udpServed, lines.TCP}, {udpClosed, lines.QUIC}} {
		r := newUDPRig(t)
		o, err := r.dial("shop", r.server(true, c.udp))
		if err != nil {
			t.Fatal(err)
		}
		s, err := r.p.startOuter(o, r.gateway(), origin{id: trust.Workload("shop")}, time.Now().Add(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		r.p.transports.probeDone("west", time.Millisecond, nil) // a probe has passed
		r.p.silent(key, s)
		if got, _ := r.p.transports.current("west"); got != c.want {
			t.Errorf("a silent session of a dial with UDP %d: new ones use %s, want %s", c.udp, got, c.want)
		}
		s.Close(nil)
	}
}

// A gateway restarts. It sends GOAWAY, and then no more packets: a load balancer leads those of open sessions to another gateway.
// That requests no probe. Without GOAWAY, it does.
func TestRolloutRequestsNoProbe(t *testing.T) {
	for goAway, want := range map[bool]string{true: lines.QUIC, false: lines.TCP} {
		synctest.Test(t, func(t *testing.T) {
			p := &Proxy{cfg: DefaultConfig(), session: hbone.DefaultConfig()}
			p.cfg.Lines.Transports = map[string]string{"west": lines.Auto}
			p.transports, _ = onQUIC()
			outer, inner := hbone.NewPipe(hbone.PipeInfo{})
			server := hbone.NewServer(inner, hbone.DefaultConfig(), func(ctx context.Context, in *hbone.Incoming) {
				in.Accept(nil)
				<-ctx.Done()
			})
			go server.Serve(t.Context())
			s, err := p.startOuter(outer, westGateway, origin{}, time.Now().Add(time.Hour))
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := s.Open(t.Context(), &hbone.Request{Authority: "hello:80"}); err != nil {
				t.Fatal(err)
			}
			if goAway {
				go server.Drain(t.Context())
			}
			synctest.Wait()
			if p.silent(pool.Key{UID: gatewayUID + "west/gw-1", Address: overQUIC + "192.0.2.1:15008"}, s); goAway {
				inner.End(hbone.ErrPingTimeout)
			}
			synctest.Wait()
			if got, why := p.transports.current("west"); got != want {
				t.Errorf("a session that received GOAWAY, %t, is lost: new ones use %s (%s), want %s", goAway, got, why, want)
			}
			inner.End(hbone.ErrPingTimeout)
			<-s.Closed()
			server.Close(nil)
			synctest.Wait()
		})
	}
}

// A source from which QUIC to a gateway fails uses TCP to it. Others do not, and it does not to other gateways.
func TestFailedHandshakeIsOfItsPath(t *testing.T) {
	r := newUDPRig(t)
	x, gw, other := r.p.transports, r.gateway(), &mesh.Gateway{Name: "gw-2", Network: "west"}
	for what, u := range map[string]udp{"silent": udpSilent, "closed": udpClosed, "": udpClosed} {
		o, err := r.p.dialEither(t.Context(), origin{trust.Workload("shop"), what}, gw, way{r.server(true, u), r.server(true, u)}, "h2")
		if err != nil {
			t.Fatal(err)
		}
		if _, tcp := o.t.(*hbone.TLSTransport); !tcp {
			t.Fatalf("%q: %T, want TCP", what, o.t)
		}
		o.t.Close()
		if got := x.transportFor(gw, origin{from: "other"}); got != lines.TCP {
			t.Errorf("%q: %s before a probe, want TCP", what, got)
		}
		trust.Eventually(t, "QUIC has failed", func() bool { return x.failedFrom("west", what) })
		x.probeDone("west", time.Millisecond, nil)
		for path, want := range map[string]string{
			x.transportFor(gw, origin{from: what}) + " to that gateway":        lines.TCP,
			x.transportFor(other, origin{from: what}) + " to another gateway":  lines.QUIC,
			x.transportFor(gw, origin{from: "other"}) + " from another source": lines.QUIC,
		} {
			if !strings.HasPrefix(path, want+" ") {
				t.Errorf("%q: %s, want %s", what, path, want)
			}
		}
		if s := r.selector(); s.cause != "" {
			t.Errorf("%q: cause %q; want no failure of the network", what, s.cause)
		}
	}
}

func sessionsOf(keys []pool.Key) iter.Seq2[pool.Key, *hbone.Session] {
	return func(yield func(pool.Key, *hbone.Session) bool) {
		for _, k := range keys {
			if !yield(k, nil) {
				return
			}
		}
	}
}

// Probes are from workloads with open sessions that are still captured, and rather from those without failures.
func TestProbeSources(t *testing.T) {
	key := func(network, from string) pool.Key {
		return pool.Key{Source: trust.Workload("sa").String(), From: from, UID: gatewayUID + network + "/gw-1"}
	}
	captured := func(from string) bool { return !strings.HasPrefix(from, "gone") }
	avoid := func(from string) bool { return strings.HasPrefix(from, "blocked") }
	for _, c := range []struct {
		keys []pool.Key
		want []string
	}{
		{nil, nil},
		{[]pool.Key{key("west", ""), key("north", "a"), {Source: key("", "").Source, From: "b", UID: "pod"}}, []string{""}},
		{[]pool.Key{key("west", "gone-1"), key("west", "a")}, []string{"a"}},
		{[]pool.Key{key("west", "gone-1")}, nil},
		{[]pool.Key{key("west", "blocked-1"), key("west", "a"), key("west", "a")}, []string{"a"}},
		{[]pool.Key{key("west", "blocked-1"), key("west", "gone-1")}, []string{"blocked-1"}},
	} {
		var got []string
		for _, o := range sourcesOf(sessionsOf(c.keys), "west", captured, avoid) {
			got = append(got, o.from)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v: probes from %q, want %q", c.keys, got, c.want)
		}
	}
	var many []pool.Key
	for i := range 10 {
		many = append(many, key("west", fmt.Sprint(i)))
	}
	if n := len(sourcesOf(sessionsOf(many), "west", captured, avoid)); n != maxSources {
		t.Errorf("%d sources, want %d", n, maxSources)
	}
}

// UDP passes if it does to any address of any gateway. It has failed where TCP connects, and QUIC does not.
func TestProbeTriesSeveralGateways(t *testing.T) {
	r := newUDPRig(t)
	good, silent, refused, down, lost := r.server(true, udpServed), r.server(true, udpSilent), r.server(true, udpClosed), r.server(false, udpClosed), r.server(false, udpSilent)
	alone := r.server(true, udpServed)
	sources := []origin{{id: trust.Workload("a"), from: "a"}, {id: trust.Workload("b"), from: "b"}}
	for what, c := range map[string]struct {
		gateways [][]netip.AddrPort
		tries    int
		passes   bool
		evidence bool
	}{
		"one gateway is down":         {[][]netip.AddrPort{{down}, {good}}, 8, true, false},
		"UDP to one is refused":       {[][]netip.AddrPort{{refused}, {good}}, 8, true, false},
		"UDP to one is lost":          {[][]netip.AddrPort{{silent}, {good}}, 3, true, false},
		"an address of UDP is closed": {[][]netip.AddrPort{{alone, refused, good}}, 8, true, false},
		"all are down":                {[][]netip.AddrPort{{down}, {lost}}, 1, false, false},
		"UDP is blocked":              {[][]netip.AddrPort{{silent}, {refused}}, 1, false, true},
		"one is down, UDP is blocked": {[][]netip.AddrPort{{down}, {refused}}, 3, false, true},
	} {
		r.gateways(c.gateways...)
		for range c.tries {
			began := time.Now()
			failures := testutil.ToFloat64(r.p.transports.failed.WithLabelValues("west"))
			took, err := r.p.probeUDPFrom(t.Context(), "west", sources)
			if n := testutil.ToFloat64(r.p.transports.failed.WithLabelValues("west")) - failures; err != nil && (n > 0) != c.evidence {
				t.Errorf("%s: %g failed handshakes are counted", what, n)
			}
			if (err == nil) != c.passes || err != nil && countsAgainstUDP(err) != c.evidence {
				t.Errorf("%s: %v; want that it passes: %v, else that it counts: %v", what, err, c.passes, c.evidence)
			}
			if took > 300*time.Millisecond || time.Since(began) > 4*time.Second {
				t.Errorf("%s: a handshake of %v in a probe of %v", what, took, time.Since(began))
			}
		}
	}
}

// A new QUIC connection to an address that does not respond fails when one over TCP does.
func TestQUICDialToSilentAddressTakesDialTimeout(t *testing.T) {
	r := newUDPRig(t)
	at := r.server(false, udpSilent)
	began := time.Now()
	_, err := r.p.dialOuter(t.Context(), origin{id: trust.Workload("shop")}, r.gateway(), lines.QUIC, way{at, at}, "h2")
	if took, limit := time.Since(began), r.p.cfg.Timeouts.Dial; err == nil || took < limit-100*time.Millisecond || took > limit+time.Second {
		t.Errorf("%v after %v, want a failure after %v", err, took, limit)
	}
}

// A QUIC handshake that fails has the address and the remedy in its text, and is classified by its cause.
func TestQUICDialErrorNamesAddressAndRemedy(t *testing.T) {
	r := newUDPRig(t)
	for _, c := range []struct {
		udp     udp
		cause   error
		timeout bool
		want    string
	}{
		{udpClosed, syscall.ECONNREFUSED, false, "UDP port refused; the gateway may have lines.transport: tcp, or a firewall rejects it"},
		{udpSilent, context.DeadlineExceeded, true, "no response by UDP in time: a firewall may drop it"},
	} {
		at := r.server(true, c.udp)
		_, _, _, err := r.p.dialQUIC(t.Context(), 500*time.Millisecond, origin{id: trust.Workload("shop")}, r.gateway(), at, "h2")
		if got, want := fmt.Sprint(err), fmt.Sprintf("QUIC to %v: %s", at, c.want); got != want {
			t.Errorf("error %q, want %q", got, want)
		}
		if !errors.Is(err, c.cause) || !errors.As(err, new(*dialError)) || isTimeout(err) != c.timeout || blameOf(err) != blameHop || !countsAgainstUDP(err) {
			t.Errorf("%v: is a timeout: %t, blame %d; want %t, and a failed dial of the hop by %v", err, isTimeout(err), blameOf(err), c.timeout, c.cause)
		}
	}
}

// A line with a fixed transport is listed without connections, with the key that set it.
func TestLineNamesKeyOfTransport(t *testing.T) {
	r := newUDPRig(t)
	r.p.pool, r.p.transports = pool.New(pool.Config{}), newTransports(zerolog.Nop())
	r.gateways([]netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:15008")})
	for _, c := range []struct {
		transport, west, want string
	}{
		{lines.QUIC, "", "small messages use quic (lines.transport)"},
		{lines.TCP, lines.QUIC, "small messages use quic (lines.transports)"},
		{lines.QUIC, lines.QUIC, "small messages use quic (lines.transports)"},
		{lines.QUIC, lines.TCP, ""},
		{lines.TCP, "", ""},
	} {
		r.p.cfg.Lines.Transport, r.p.cfg.Lines.Transports = c.transport, map[string]string{"west": c.west}
		var got string
		for _, l := range r.p.measured() {
			got += l.String()
		}
		if got != c.want {
			t.Errorf("transport %s, to west %q: line %q, want %q", c.transport, c.west, got, c.want)
		}
	}
}
