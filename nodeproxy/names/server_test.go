package names

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// upstreamServer is a DNS server on a loopback address, by UDP and TCP. It notes what it is sent, and sends
// what respond says: nil is silence.
type upstreamServer struct {
	addr    netip.AddrPort
	mu      sync.Mutex
	got     [][]byte
	respond func(network string, raw []byte) [][]byte
}

func newUpstream(t *testing.T, respond func(network string, raw []byte) [][]byte) *upstreamServer {
	t.Helper()
	u := &upstreamServer{respond: respond}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u.addr = l.Addr().(*net.TCPAddr).AddrPort()
	c, err := net.ListenPacket("udp", u.addr.String())
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		buf := make([]byte, 65535)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			for _, b := range u.take("udp", bytes.Clone(buf[:n])) {
				c.WriteTo(b, from)
			}
		}
	})
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close()
				for {
					b, err := readPrefixed(conn)
					if err != nil {
						return
					}
					for _, r := range u.take("tcp", b) {
						conn.Write(prefixed(r))
					}
				}
			})
		}
	})
	t.Cleanup(func() { l.Close(); c.Close(); running.Wait() })
	return u
}

func (u *upstreamServer) take(network string, raw []byte) [][]byte {
	u.mu.Lock()
	u.got = append(u.got, raw)
	u.mu.Unlock()
	return u.respond(network, raw)
}

func (u *upstreamServer) received() [][]byte {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.got)
}

// replying is what a server does that answers each query with what change makes of an empty reply.
func replying(change func(m *dns.Msg)) func(string, []byte) [][]byte {
	return func(_ string, raw []byte) [][]byte {
		var q dns.Msg
		if q.Unpack(raw) != nil {
			return nil
		}
		m := new(dns.Msg).SetReply(&q)
		change(m)
		b, _ := m.Pack()
		return [][]byte{b}
	}
}

func address(a string) func(*dns.Msg) {
	return func(m *dns.Msg) {
		m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: m.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 30}, A: net.ParseIP(a)}}
	}
}

func dialAny(ctx context.Context, network string, server netip.AddrPort) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, network, server.String())
}

// started is a Server that serves a UDP and a TCP socket until the test ends.
type started struct {
	*Server
	udp, tcp string
	stop     func()
}

func start(t *testing.T, cfg Config, services ...*mesh.Service) *started {
	t.Helper()
	snap := snapshotOf(services...)
	if cfg.Snapshot == nil {
		cfg.Snapshot = func() *mesh.Snapshot { return snap }
	}
	if cfg.Dial == nil {
		cfg.Dial = dialAny
	}
	cfg.Metrics, cfg.Log = NewMetrics(prometheus.NewRegistry()), zerolog.Nop()
	s := New(cfg)
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, serve := range []func() error{func() error { return s.ServeUDP(ctx, c) }, func() error { return s.ServeTCP(ctx, l) }} {
		running.Go(func() {
			if err := serve(); err != nil {
				t.Errorf("served until %v", err)
			}
		})
	}
	stop := func() { cancel(); running.Wait() }
	t.Cleanup(stop)
	return &started{s, c.LocalAddr().String(), l.Addr().String(), stop}
}

// asked sends raw and returns what comes back.
func asked(t *testing.T, network, server string, raw []byte) []byte {
	t.Helper()
	c, err := net.Dial(network, server)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	if network == "tcp" {
		c.Write(prefixed(raw))
		b, err := readPrefixed(c)
		if err != nil {
			t.Fatalf("no answer by TCP: %v", err)
		}
		return b
	}
	c.Write(raw)
	buf := make([]byte, 65535)
	n, err := c.Read(buf)
	if err != nil {
		t.Fatalf("no answer by UDP: %v", err)
	}
	return buf[:n]
}

func parsed(t *testing.T, raw []byte) *dns.Msg {
	t.Helper()
	var m dns.Msg
	if err := m.Unpack(raw); err != nil {
		t.Fatalf("%x: %v", raw, err)
	}
	return &m
}

func resolverOf(list ...netip.AddrPort) func() Resolver {
	return func() Resolver {
		return Resolver{Servers: list, Search: []string{"demo.svc.cluster.local", "svc.cluster.local", "cluster.local"}, Timeout: defaultTimeout}
	}
}

func TestWhatIsNotOursPassesByteForByte(t *testing.T) {
	var next atomic.Pointer[[]byte]
	up := newUpstream(t, func(string, []byte) [][]byte { return [][]byte{*next.Load()} })
	s := start(t, Config{Resolver: resolverOf(up.addr)}, imported("cart", "shop", "240.240.0.1"))
	for _, network := range []string{"udp", "tcp"} {
		for name, change := range map[string]func(*dns.Msg){
			"plain": func(*dns.Msg) {},
			"class": func(m *dns.Msg) {
				m.Question[0] = dns.Question{Name: "version.bind.", Qtype: dns.TypeTXT, Qclass: dns.ClassCHAOS}
			},
			"update":  func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate },
			"unknown": func(m *dns.Msg) { m.Question[0].Qtype = 65280 },
			"EDNS": func(m *dns.Msg) {
				m.SetEdns0(4096, true)
				m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0011223344556677"}, &dns.EDNS0_LOCAL{Code: 65001, Data: []byte("x")})
				m.CheckingDisabled, m.AuthenticatedData = true, true
			},
		} {
			raw := packed(t, "WwW.eXample.com", dns.TypeA, change)
			raw = append(raw, 0xde, 0xad) // whatever that is
			m := new(dns.Msg).SetReply(parsed(t, raw))
			m.AuthenticatedData, m.Compress = true, true
			m.Ns = []dns.RR{soa("example.com", 1)}
			reply, err := m.Pack()
			if err != nil {
				t.Fatal(err)
			}
			reply = append(reply, 0xbe, 0xef)
			next.Store(&reply)
			got := asked(t, network, map[string]string{"udp": s.udp, "tcp": s.tcp}[network], raw)
			if all := up.received(); !bytes.Equal(all[len(all)-1], raw) || !bytes.Equal(got, reply) {
				t.Errorf("%s by %s: the server got\n%x, want\n%x, the client\n%x, want\n%x", name, network, all[len(all)-1], raw, got, reply)
			}
		}
	}
	if n := testutil.ToFloat64(s.cfg.Metrics.requests[passed]); n != 10 {
		t.Errorf("%v queries were counted as passed, want 10", n)
	}
}

// What was cut short by UDP the client asks for again by TCP, which goes the same way.
func TestALongReplyComesByTCP(t *testing.T) {
	up := newUpstream(t, func(network string, raw []byte) [][]byte {
		return replying(func(m *dns.Msg) {
			for i := range 100 {
				m.Answer = append(m.Answer, &dns.TXT{Hdr: dns.RR_Header{Name: m.Question[0].Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET}, Txt: []string{strings.Repeat(string(rune('a'+i%26)), 100)}})
			}
			if network == "udp" {
				m.Truncate(512)
			}
		})(network, raw)
	})
	s := start(t, Config{Resolver: resolverOf(up.addr)})
	raw := packed(t, "long.example.com", dns.TypeTXT)
	if m := parsed(t, asked(t, "udp", s.udp, raw)); !m.Truncated {
		t.Errorf("by UDP %d records, and not truncated", len(m.Answer))
	}
	if m := parsed(t, asked(t, "tcp", s.tcp, raw)); m.Truncated || len(m.Answer) != 100 {
		t.Errorf("by TCP %d records, want 100", len(m.Answer))
	}
}

func TestATransferIsAllOfIt(t *testing.T) {
	up := newUpstream(t, func(network string, raw []byte) (out [][]byte) {
		for range 3 {
			out = append(out, replying(address("10.0.0.1"))(network, raw)...)
		}
		return out
	})
	s := start(t, Config{Resolver: resolverOf(netip.MustParseAddrPort("127.0.0.1:1"), up.addr)})
	c, err := net.Dial("tcp", s.tcp)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.Write(prefixed(packed(t, "example.com", dns.TypeAXFR)))
	for i := range 3 {
		if _, err := readPrefixed(c); err != nil {
			t.Fatalf("message %d of 3: %v", i+1, err)
		}
	}
}

// One connection asks for several names at once, of ours and of others.
func TestQueriesOfOneConnectionAreAllAnswered(t *testing.T) {
	up := newUpstream(t, replying(address("192.0.2.1")))
	s := start(t, Config{Resolver: resolverOf(up.addr)}, imported("cart", "shop", "240.240.0.1"))
	c, err := net.Dial("tcp", s.tcp)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var all []byte
	for _, name := range []string{"example.com", "cart.shop.mesh.internal", "example.com"} {
		all = append(all, prefixed(packed(t, name, dns.TypeA))...)
	}
	for i := range all { // in pieces
		c.Write(all[i : i+1])
	}
	for _, want := range []string{"192.0.2.1", "240.240.0.1", "192.0.2.1"} {
		b, err := readPrefixed(c)
		if err != nil {
			t.Fatal(err)
		}
		if m := parsed(t, b); len(m.Answer) != 1 || m.Answer[0].(*dns.A).A.String() != want {
			t.Errorf("answer %v, want %s", m.Answer, want)
		}
	}
}

func TestTheNextServerAnswersWhereOneDoesNot(t *testing.T) {
	good := replying(address("192.0.2.1"))
	for name, first := range map[string]func(string, []byte) [][]byte{
		"silent":   func(string, []byte) [][]byte { return nil },
		"SERVFAIL": replying(func(m *dns.Msg) { m.Rcode = dns.RcodeServerFailure }),
		"REFUSED":  replying(func(m *dns.Msg) { m.Rcode = dns.RcodeRefused }),
		"answers another question": func(n string, raw []byte) [][]byte {
			return replying(func(m *dns.Msg) { m.Question[0].Name = "x.example." })(n, raw)
		},
		"answers with another id": func(n string, raw []byte) [][]byte {
			b := replying(address("6.6.6.6"))(n, raw)[0]
			b[0] ^= 1
			return [][]byte{b, []byte("x"), raw}
		},
		"closed": nil,
	} {
		for _, network := range []string{"udp", "tcp"} {
			t.Run(name+" by "+network, func(t *testing.T) {
				t.Parallel()
				one := netip.MustParseAddrPort("127.0.0.1:1")
				if first != nil {
					one = newUpstream(t, first).addr
				}
				two := newUpstream(t, good)
				s := start(t, Config{Resolver: resolverOf(one, two.addr)})
				for range 2 {
					began := time.Now()
					m := parsed(t, asked(t, network, map[string]string{"udp": s.udp, "tcp": s.tcp}[network], packed(t, "example.com", dns.TypeA)))
					if len(m.Answer) != 1 || m.Answer[0].(*dns.A).A.String() != "192.0.2.1" {
						t.Fatalf("answer %v", m)
					}
					if took := time.Since(began); took > 4*time.Second {
						t.Errorf("after %v", took)
					}
				}
				if order := s.up.order(s.cfg.Resolver()); name == "silent" && order[0] != two.addr {
					t.Errorf("the silent server is asked first again: %v", order)
				}
			})
		}
	}
}

func TestTheFirstRefusalIsPassedOnWhereAllRefuse(t *testing.T) {
	one, two := newUpstream(t, replying(func(m *dns.Msg) { m.Rcode = dns.RcodeRefused })), newUpstream(t, replying(func(m *dns.Msg) { m.Rcode = dns.RcodeServerFailure }))
	s := start(t, Config{Resolver: resolverOf(one.addr, two.addr)})
	if m := parsed(t, asked(t, "udp", s.udp, packed(t, "example.com", dns.TypeA))); m.Rcode != dns.RcodeRefused {
		t.Errorf("answered %v, want REFUSED", m)
	}
	if len(two.received()) != 1 {
		t.Error("the second server was not asked")
	}
	s = start(t, Config{Resolver: resolverOf()})
	if m := parsed(t, asked(t, "udp", s.udp, packed(t, "example.com", dns.TypeA, edns(1232)))); m.Rcode != dns.RcodeServerFailure || !strings.Contains(m.String(), errNoServer.Error()) {
		t.Errorf("without servers: %v", m)
	}
}

func TestServersTakeTurnsWhereResolvConfSaysSo(t *testing.T) {
	one, two := newUpstream(t, replying(address("192.0.2.1"))), newUpstream(t, replying(address("192.0.2.1")))
	s := start(t, Config{Resolver: func() Resolver {
		return Resolver{Servers: []netip.AddrPort{one.addr, two.addr}, Timeout: defaultTimeout, Rotate: true}
	}})
	for range 6 {
		asked(t, "udp", s.udp, packed(t, "example.com", dns.TypeA))
	}
	if len(one.received()) != 3 || len(two.received()) != 3 {
		t.Errorf("%d and %d queries, want 3 each", len(one.received()), len(two.received()))
	}
}

// silentDial opens connections to servers that never say anything.
func silentDial(context.Context, string, netip.AddrPort) (net.Conn, error) {
	here, there := net.Pipe()
	go io.Copy(io.Discard, there)
	return here, nil
}

// A pod whose servers are gone takes no more than its places, and what is ours is answered all the while.
func TestAPodHasSoManyQueriesOutstanding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := still(nil, imported("cart", "shop", "240.240.0.1"))
		s.cfg.Resolver, s.up.dial = resolverOf(servers("10.96.0.10")...), silentDial
		var waiting sync.WaitGroup
		replies := make(chan []byte, maxOutstanding)
		began := time.Now()
		for range maxOutstanding {
			q, _, later := s.atOnce(packed(t, "example.com", dns.TypeA), true)
			if !later {
				t.Fatal("refused before all places were taken")
			}
			waiting.Go(func() { defer s.free(&q); replies <- s.wait(t.Context(), &q, "udp", 512) })
		}
		if _, reply, later := s.atOnce(packed(t, "example.com", dns.TypeA), true); later || rcode(reply) != dns.RcodeServerFailure {
			t.Errorf("one more waits too (%v), answered with %x", later, reply)
		}
		if _, reply, _ := s.atOnce(packed(t, "cart.shop.mesh.internal", dns.TypeA), true); reply == nil || rcode(reply) != 0 {
			t.Errorf("what is ours is answered with %x", reply)
		}
		waiting.Wait()
		if took := time.Since(began); took != 4500*time.Millisecond {
			t.Errorf("servers had %v, want 4.5s: the client waits 5", took)
		}
		for range maxOutstanding {
			if b := <-replies; rcode(b) != dns.RcodeServerFailure {
				t.Errorf("answered with %x", b)
			}
		}
		if _, _, later := s.atOnce(packed(t, "example.com", dns.TypeA), true); !later {
			t.Error("the places were not given back")
		}
	})
}

// Servers that are silent, as where all of a cluster's DNS is gone, must not cost each query of each pod the memory of the
// largest reply.
func TestAQueryThatWaitsForAServerTakesLittleMemory(t *testing.T) {
	const queries = minOutstanding
	server := newUpstream(t, func(string, []byte) [][]byte { return nil })
	s := still(nil)
	s.cfg.Resolver, s.up.dial = func() Resolver { return Resolver{Servers: []netip.AddrPort{server.addr}, Timeout: maxTimeout} }, dialAny
	inUse := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // what pools let go of
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := inUse()
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	for range queries {
		q, _, later := s.atOnce(packed(t, "example.com", dns.TypeA), true)
		if !later {
			t.Fatal("refused before all places were taken")
		}
		waiting.Go(func() { defer s.free(&q); s.wait(ctx, &q, "udp", 512) })
	}
	for limit := time.Now().Add(20 * time.Second); len(server.received()) < queries; time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("%d of %d queries have come", len(server.received()), queries)
		}
	}
	if each := (int64(inUse()) - int64(before)) / queries; each > queryMemory {
		t.Errorf("a query that waits takes %d bytes, want at most %d", each, queryMemory)
	}
	cancel()
	waiting.Wait()
}

// Where nobody listens the kernel says so, once: the next server is asked at once.
func TestTheNextServerIsAskedAtOnceWhereNobodyListens(t *testing.T) {
	nobody, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody.Close()
	server := newUpstream(t, replying(address("192.0.2.1")))
	s := still(nil)
	s.cfg.Resolver, s.up.dial = resolverOf(nobody.LocalAddr().(*net.UDPAddr).AddrPort(), server.addr), dialAny
	q, _, _ := s.atOnce(packed(t, "example.com", dns.TypeA), true)
	defer s.free(&q)
	var silent int
	s.up.failed = func(_ netip.AddrPort, err error) {
		if !errors.Is(err, syscall.ECONNREFUSED) {
			silent++
		}
	}
	if b := s.wait(t.Context(), &q, "udp", 512); rcode(b) != dns.RcodeSuccess || silent > 0 {
		t.Errorf("answered with %x, and %d servers said nothing; want an answer, and the first to refuse", b, silent)
	}
}

// A name of the cluster's that is known to be elsewhere is answered though the cluster's DNS is not there.
func TestAKnownNameDoesNotWaitForTheClustersDNS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := still(nil, imported("cart", "shop", "240.240.0.1"))
		s.cfg.Resolver, s.up.dial = resolverOf(servers("10.96.0.10")...), silentDial
		began := time.Now()
		q, _, later := s.atOnce(packed(t, "cart.shop.svc.cluster.local", dns.TypeA), true)
		if !later {
			t.Fatal("answered without the cluster")
		}
		m := parsed(t, s.wait(t.Context(), &q, "udp", 512))
		if len(m.Answer) != 1 || time.Since(began) != contestLimit {
			t.Errorf("after %v: %v", time.Since(began), m)
		}
	})
}

// Gateways that say nothing leave a name open: a denial would be kept, and believed.
func TestWithoutAWordOfGatewaysANameIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := still(nil)
		s.cfg.Ask = func(ctx context.Context, host string) bool { <-ctx.Done(); return false }
		began := time.Now()
		q, _, _ := s.atOnce(packed(t, "cart.shop.mesh.internal", dns.TypeA, edns(1232)), true)
		m := parsed(t, s.wait(t.Context(), &q, "udp", 512))
		if m.Rcode != dns.RcodeServerFailure || time.Since(began) != askLimit || m.IsEdns0() == nil || len(m.IsEdns0().Option) != 1 {
			t.Errorf("after %v: %v", time.Since(began), m)
		}
		s.cfg.Ask = func(context.Context, string) bool { return true }
		if m := parsed(t, s.wait(t.Context(), &q, "udp", 512)); m.Rcode != dns.RcodeNameError {
			t.Errorf("once they have said that it is nobody's: %v", m)
		}
	})
}

func TestAnIdleTCPConnectionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, sent := range map[string][]byte{"silent": nil, "in the length": {0}, "in the message": {0, 40, 1, 2, 3}} {
			s := still(nil, imported("cart", "shop", "240.240.0.1"))
			here, there := net.Pipe()
			began := time.Now()
			go s.stream(t.Context(), t.Context(), there)
			time.Sleep(3 * time.Second)
			go here.Write(prefixed(packed(t, "cart.shop.mesh.internal", dns.TypeA)))
			if _, err := readPrefixed(here); err != nil {
				t.Fatal(err)
			}
			here.Write(sent)
			if _, err := here.Read(make([]byte, 1)); !errors.Is(err, io.EOF) || time.Since(began) != 8*time.Second {
				t.Errorf("%s: ended with %v after %v, want 5s after the answer", name, err, time.Since(began))
			}
		}
	})
}

func TestAPodHasSoManyTCPConnections(t *testing.T) {
	s := start(t, Config{Resolver: resolverOf()}, imported("cart", "shop", "240.240.0.1"))
	var conns []net.Conn
	for range maxConns {
		c, err := net.Dial("tcp", s.tcp)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.Write(prefixed(packed(t, "cart.shop.mesh.internal", dns.TypeA)))
		if _, err := readPrefixed(c); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	c, err := net.Dial("tcp", s.tcp)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(4 * time.Second)) // idle ones end a second later
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
		t.Errorf("one more connection: %v", err)
	}
	conns[0].Close()
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// When its context ends nothing goes on, whatever was waited for.
func TestNothingGoesOnOnceItIsStopped(t *testing.T) {
	up := newUpstream(t, func(string, []byte) [][]byte { return nil })
	s := start(t, Config{Resolver: resolverOf(up.addr), Ask: func(ctx context.Context, _ string) bool { <-ctx.Done(); return false }})
	for _, server := range []string{"udp " + s.udp, "tcp " + s.tcp} {
		network, addr, _ := strings.Cut(server, " ")
		for _, name := range []string{"example.com", "cart.shop.mesh.internal", ""} {
			c, err := net.Dial(network, addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			switch raw := packed(t, "x."+name, dns.TypeA); {
			case name == "":
			case network == "tcp":
				c.Write(prefixed(raw))
			default:
				c.Write(raw)
			}
		}
	}
	for end := time.Now().Add(10 * time.Second); len(up.received()) < 2; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the server was not asked")
		}
	}
	began := time.Now()
	s.stop()
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("stopped after %v", took)
	}
	if len(s.slots) != 0 || len(s.conns) != 0 {
		t.Errorf("%d queries and %d connections are left", len(s.slots), len(s.conns))
	}
}

// lacking is a listener and a socket that fail for want of descriptors or memory, three times each.
type lacking struct {
	net.Listener
	net.PacketConn
	left int
}

func (l *lacking) fail() error {
	if l.left--; l.left < 0 {
		return net.ErrClosed
	}
	return syscall.EMFILE
}

func (l *lacking) Accept() (net.Conn, error)              { return nil, l.fail() }
func (l *lacking) ReadFrom([]byte) (int, net.Addr, error) { return 0, nil, l.fail() }
func (l *lacking) Close() error                           { return nil }

// A socket that fails for want of something is used until it is closed: the pod has no other.
func TestASocketThatFailsIsUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := still(nil)
		for name, serve := range map[string]func(*lacking) error{
			"UDP": func(l *lacking) error { return s.ServeUDP(t.Context(), udpOf{l}) },
			"TCP": func(l *lacking) error { return s.ServeTCP(t.Context(), tcpOf{l}) },
		} {
			l := &lacking{left: 3}
			if err := serve(l); !errors.Is(err, net.ErrClosed) || l.left != -1 {
				t.Errorf("%s: ended with %v, %d failures before the end", name, err, 3-l.left)
			}
		}
	})
}

type udpOf struct{ *lacking }

func (u udpOf) LocalAddr() net.Addr                { return nil }
func (u udpOf) SetDeadline(time.Time) error        { return nil }
func (u udpOf) SetReadDeadline(t time.Time) error  { return nil }
func (u udpOf) SetWriteDeadline(t time.Time) error { return nil }

type tcpOf struct{ *lacking }

func (tcpOf) Addr() net.Addr { return nil }

func BenchmarkAnswer(b *testing.B) {
	s := still([]string{"demo.svc.cluster.local", "svc.cluster.local", "cluster.local"}, imported("cart", "shop", "240.240.0.1"))
	for _, name := range []string{"cart.shop.mesh.internal", "cart.shop.mesh.internal.demo.svc.cluster.local"} {
		raw := packed(b, name, dns.TypeA, edns(1232))
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, reply, _ := s.atOnce(raw, true); reply == nil {
					b.Fatal("not answered")
				}
			}
		})
	}
}
