//go:build linux

package names

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// resolveEnv makes the test binary a program that resolves a name by Go's own resolver.
const resolveEnv = "NAMES_TEST_RESOLVE"

func TestMain(m *testing.M) {
	if name := os.Getenv(resolveEnv); name != "" {
		a, err := (&net.Resolver{PreferGo: true}).LookupHost(context.Background(), name)
		fmt.Println(strings.Join(a, "\n"), err)
		return
	}
	os.Exit(m.Run())
}

// Programs of a pod resolve names of the mesh as they are, with glibc, curl and Go's own resolver and
// what Kubernetes writes into resolv.conf, and its servers hear nothing of it.
func TestProgramsOfAPodResolveNamesOfTheMesh(t *testing.T) {
	if _, err := exec.LookPath("ip"); os.Geteuid() != 0 || err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("network namespaces need root and the command ip")
		}
		t.Skip("NOT TESTED: network namespaces need root and the command ip")
	}
	space, err := netspace.New("names")
	if err != nil {
		t.Fatal(err)
	}
	defer space.Close()
	if err := space.Segment("s", map[string][]string{"pod": {"10.77.0.2"}, "dns": {"10.77.0.10"}}); err != nil {
		t.Fatal(err)
	}
	if err := space.IP("pod", "addr add 240.240.0.1/32 dev lo"); err != nil {
		t.Fatal(err)
	}
	up := clusterDNS(t, space)
	serveIn(t, space)
	web, err := space.Listen("pod", "240.240.0.1:80")
	if err != nil {
		t.Fatal(err)
	}
	go http.Serve(web, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "hello", r.Host) }))
	defer web.Close()

	conf := filepath.Join(space.Dir, "resolv.conf")
	if err := os.WriteFile(conf, []byte("search demo.svc.cluster.local svc.cluster.local cluster.local\nnameserver 127.0.0.1\noptions ndots:5\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		env  string
		want string
		cost []string // what the cluster's DNS is asked
	}{
		{args: []string{"getent", "ahosts", "cart.shop.mesh.internal"}, want: "240.240.0.1"},
		{args: []string{"getent", "ahostsv6", "cart.shop.mesh.internal"}, want: "::ffff:240.240.0.1"},
		{args: []string{"getent", "ahosts", "cart.shop.svc.clusterset.local"}, want: "240.240.0.1"},
		{args: []string{"getent", "ahosts", "none.shop.mesh.internal"}, want: ""},
		{args: []string{"curl", "-sS", "http://cart.shop.mesh.internal/"}, want: "hello cart.shop.mesh.internal"},
		{args: []string{os.Args[0]}, env: resolveEnv + "=cart.shop.mesh.internal", want: "240.240.0.1"},
		{args: []string{os.Args[0]}, env: resolveEnv + "=none.shop.mesh.internal", want: "no such host"},
		{args: []string{"getent", "ahostsv4", "web.demo"}, want: "10.96.0.7", cost: []string{
			"web.demo.demo.svc.cluster.local", "web.demo.svc.cluster.local"}},
		{args: []string{"getent", "ahostsv4", "cart.shop"}, want: "240.240.0.1", cost: []string{
			"cart.shop.demo.svc.cluster.local", "cart.shop.svc.cluster.local"}},
	} {
		name := strings.Join(append(slices.Clone(c.args[1:]), c.env), " ")
		before := len(up.list())
		p := &netspace.Process{Host: "pod", Args: c.args, Log: filepath.Join(space.Dir, "out"), Names: conf}
		if c.env != "" {
			p.Env = []string{c.env}
		}
		os.Remove(p.Log)
		if err := space.Start(p, func() error { return nil }); err != nil {
			t.Fatal(err)
		}
		<-p.Ended()
		if out := netspace.Tail(p.Log); !strings.Contains(out, c.want) || c.want == "" && out != "" {
			t.Errorf("%s: %q, want %q", name, out, c.want)
		}
		if cost := up.list()[before:]; !slices.Equal(slices.Compact(cost), c.cost) {
			t.Errorf("%s: the cluster's DNS was asked for %q, want %q", name, cost, c.cost)
		}
	}
}

// counted is what a DNS server was asked.
type counted struct {
	mu    sync.Mutex
	names []string
}

func (c *counted) list() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.names)
}

// clusterDNS serves the names of the cluster, which are one, on host dns.
func clusterDNS(t *testing.T, space *netspace.Space) *counted {
	var c counted
	conn, err := space.ListenPacket("dns", "10.77.0.10:53")
	if err != nil {
		t.Fatal(err)
	}
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		name := strings.TrimSuffix(q.Question[0].Name, ".")
		c.mu.Lock()
		c.names = append(c.names, name)
		c.mu.Unlock()
		m := new(dns.Msg).SetReply(q)
		switch {
		case name != "web.demo.svc.cluster.local":
			m.Rcode = dns.RcodeNameError
		case q.Question[0].Qtype == dns.TypeA:
			address("10.96.0.7")(m)
		}
		w.WriteMsg(m)
	})}
	go server.ActivateAndServe()
	t.Cleanup(func() { server.Shutdown() })
	return &c
}

// serveIn answers on host pod where its resolv.conf leads.
func serveIn(t *testing.T, space *netspace.Space) {
	snap := snapshotOf(imported("cart", "shop", "240.240.0.1"))
	s := New(Config{
		Snapshot: func() *mesh.Snapshot { return snap },
		Resolver: func() Resolver {
			return ParseResolvConf("search demo.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.77.0.10\n")
		},
		Dial: func(ctx context.Context, network string, server netip.AddrPort) (c net.Conn, err error) {
			err = space.In("pod", func() (err error) {
				c, err = dialAny(ctx, network, server)
				return err
			})
			return c, err
		},
		Metrics: NewMetrics(prometheus.NewRegistry()), Log: zerolog.Nop(),
	})
	conn, err := space.ListenPacket("pod", "127.0.0.1:53")
	if err != nil {
		t.Fatal(err)
	}
	l, err := space.Listen("pod", "127.0.0.1:53")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { s.ServeUDP(ctx, conn) })
	running.Go(func() { s.ServeTCP(ctx, l) })
	t.Cleanup(func() { cancel(); running.Wait() })
}
