package nodeproxy_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
	"github.com/isthmus-mesh/isthmus/nodeproxy/names"
)

// resolved asks the node proxy of a pod, in the pod's place, and returns the reply.
func resolved(t *testing.T, at, name string, kind uint16) *dns.Msg {
	t.Helper()
	q := new(dns.Msg).SetQuestion(dns.Fqdn(name), kind)
	q.SetEdns0(1232, false)
	m, _, err := (&dns.Client{Timeout: 10 * time.Second}).Exchange(q, at)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return m
}

func addressIn(m *dns.Msg) string {
	for _, rr := range m.Answer {
		if a, ok := rr.(*dns.A); ok {
			return a.A.String()
		}
	}
	return ""
}

// A node proxy that knows nothing of a name asks its gateways before it answers a pod; without one of
// them it denies nothing.
func TestANameIsDeniedWhenGatewaysDoNotKnowItAlone(t *testing.T) {
	m := meshtest.New(t)
	m.Networks("east")
	m.Service("hello", 80, 8080)
	m.Service("other", 80, 8080)
	m.EditService("other", func(s *discovery.Service) { s.VIPs = append(s.VIPs, netip.MustParseAddr("240.240.0.7")) })
	m.Gateway("east", "gw-1")
	withoutFile(t, m, "gw-1")
	shop := m.Pod("east", "east-1", "shop-1")
	other := m.Pod("east", "east-3", "other-1", "other")
	other.App(8080)
	m.Write()

	cfg := m.NodeConfig("east", "east-1")
	m.EachNode(&cfg)
	p, err := nodeproxy.New(cfg, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := conn.LocalAddr().String()
	server := nodeproxy.NamesOf(p, shop.UID, []netip.Addr{netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("fd00::1")}, func() names.Resolver { return names.ParseResolvConf("nameserver 127.0.0.1\n") },
		func(context.Context, string, netip.AddrPort) (net.Conn, error) { return nil, errors.New("no network") })
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { p.Run(ctx) })
	running.Go(func() { server.ServeUDP(ctx, conn) })
	defer running.Wait()
	defer cancel()

	const known, none = "other.default.mesh.internal", "none.default.mesh.internal"
	for _, name := range []string{known, none} {
		if r := resolved(t, at, name, dns.TypeA); r.Rcode != dns.RcodeServerFailure {
			t.Errorf("%s before any gateway has said anything: %v", name, r)
		}
	}
	g := m.StartGateway("east", "gw-1")
	g.AwaitReady(t)
	meshtest.Eventually(t, "the gateway is asked", func() bool {
		return addressIn(resolved(t, at, known, dns.TypeA)) == "240.240.0.7"
	})
	if r := resolved(t, at, none, dns.TypeA); r.Rcode != dns.RcodeNameError || len(r.Ns) != 1 {
		t.Errorf("%s, that nobody has: %v", none, r)
	}
	if r := resolved(t, at, known, dns.TypeAAAA); r.Rcode != 0 || len(r.Answer) != 0 || len(r.Ns) != 1 {
		t.Errorf("%s has no IPv6 address: %v", known, r)
	}
	if r := resolved(t, at, "hello.default.mesh.internal", dns.TypeA); r.Rcode != 0 && r.Rcode != dns.RcodeNameError || len(r.Answer) != 0 {
		t.Errorf("a service without an address: %v", r)
	}
	// the cluster's DNS is not there, and what is known is answered all the same
	if r := resolved(t, at, "other.default.svc.cluster.local", dns.TypeA); addressIn(r) != "240.240.0.7" {
		t.Errorf("by its name in the cluster: %v", r)
	}

	// a name that nobody has asked for before, once the gateway is gone
	g.Stop(t)
	meshtest.Eventually(t, "nothing is denied without a gateway", func() bool {
		return resolved(t, at, "late.default.mesh.internal", dns.TypeA).Rcode == dns.RcodeServerFailure
	})
	if r := resolved(t, at, known, dns.TypeA); addressIn(r) != "240.240.0.7" {
		t.Errorf("%s without the gateway: %v", known, r)
	}
}

// A file says all that there is: nobody is asked.
func TestAFileSaysWhichNamesThereAre(t *testing.T) {
	m := meshtest.New(t)
	m.Networks("east")
	m.Service("other", 80, 8080)
	m.EditService("other", func(s *discovery.Service) { s.VIPs = append(s.VIPs, netip.MustParseAddr("240.240.0.7")) })
	shop := m.Pod("east", "east-1", "shop-1")
	m.Write()
	cfg := m.NodeConfig("east", "east-1")
	cfg.Federation.Health = false
	p, err := nodeproxy.New(cfg, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := nodeproxy.NamesOf(p, shop.UID, []netip.Addr{netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("fd00::1")}, func() names.Resolver { return names.Resolver{} }, nil)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { p.Run(ctx) })
	running.Go(func() { server.ServeUDP(ctx, conn) })
	defer running.Wait()
	defer cancel()
	for name, want := range map[string]int{"other.default.mesh.internal": dns.RcodeSuccess, "none.default.mesh.internal": dns.RcodeNameError} {
		if r := resolved(t, conn.LocalAddr().String(), name, dns.TypeA); r.Rcode != want {
			t.Errorf("%s: %v, want %s", name, r, dns.RcodeToString[want])
		}
	}
}
