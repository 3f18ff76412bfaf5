package nodeproxy_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// mislead writes a copy of the discovery file in which old is new, for a
// process that is to have other ideas than the rest.
func mislead(t *testing.T, m *meshtest.Mesh, old, new string) string {
	t.Helper()
	m.Write()
	data, err := os.ReadFile(m.File())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), old) {
		t.Fatalf("the discovery file does not say %q", old)
	}
	path := filepath.Join(m.Dir(), "misled.yaml")
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(string(data), old, new)), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// refusedForIdentity says hello once, which must fail because of who the peer
// is, and must move nobody's health.
func refusedForIdentity(t *testing.T, p *pair, got string, expected ...string) {
	t.Helper()
	if _, err := meshtest.Hello(p.listen.hello); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client sees %v; want ECONNRESET", err)
	}
	line := p.client().Log.Await(t, "connection", "direction", "outbound", "result", "identity")
	for _, want := range append(expected, got) {
		if !strings.Contains(line.Text("error"), want) {
			t.Errorf("the log says %q; want it to name %q", line.Text("error"), want)
		}
	}
	for range 3 {
		meshtest.Hello(p.listen.hello)
	}
	for _, name := range []string{"node proxy east-1", "node proxy west-1", "gateway west/gw-1"} {
		if l := p.Process(name).Log.Find("outlier changed"); len(l) > 0 {
			t.Errorf("%s: an identity that does not match moved somebody's health: %v", name, l[0])
		}
	}
	for _, row := range p.client().Rows(t, "gateways") {
		if !row.Has("phase", "healthy", "health", 1) {
			t.Errorf("the client believes %v of the gateway; want full health", row)
		}
	}
}

func TestAGatewayOfAnotherIdentityIsRefused(t *testing.T) {
	t.Parallel()
	p := newPair(t, 1)
	p.pods[0].App(8080)
	path := mislead(t, p.Mesh, "isthmus-system/gateway-west", "isthmus-system/somebody-else")
	p.StartGateway("west", "gw-1", func(c *gateway.Config) { c.Discovery.File = path; c.Federation.Health = false })
	p.Start()
	refusedForIdentity(t, p, "/ns/isthmus-system/sa/somebody-else", "/ns/isthmus-system/sa/gateway-west")
}

func TestAPodOfAnotherIdentityIsRefused(t *testing.T) {
	t.Parallel()
	p := newPair(t, 1)
	p.pods[0].App(8080)
	path := mislead(t, p.Mesh, "serviceAccount: hello", "serviceAccount: somebody-else")
	p.StartNode("west", "west-1", func(c *nodeproxy.Config) { c.Discovery.File = path })
	p.Start()
	refusedForIdentity(t, p, "/ns/default/sa/somebody-else", "/ns/default/sa/hello")
}

func TestASessionIsNeverSharedBetweenSources(t *testing.T) {
	p := newPair(t, 1)
	cart := p.Pod("east", "east-1", "cart-1")
	at := cart.Outbound(hello)
	p.pods[0].App(8080)
	p.Start()
	for range 3 {
		for _, l := range []addr{p.listen.hello, at} {
			if _, err := meshtest.Hello(l); err != nil {
				t.Fatal(err)
			}
		}
	}
	gw := p.Process("gateway west/gw-1")
	if n := gw.State(t)["sessions"]; n != float64(2) {
		t.Errorf("the gateway has %v outer sessions; want one per source identity", n)
	}
	p.client().Stop(t)
	meshtest.Eventually(t, "the kept inner sessions end with the client", func() bool { return len(gw.Log.Find("tunnel")) == 2 })
	for _, pod := range []*meshtest.Pod{p.shop, cart} {
		if n := len(gw.Log.Find("tunnel", "peer", pod.Identity())); n != 1 {
			t.Errorf("%d inner sessions came as %s; want one of its own", n, pod.Identity())
		}
		meshtest.Eventually(t, "three inner tunnels as "+pod.Identity().String(), func() bool {
			return len(p.node(1).Log.Find("connection", "direction", "inbound", "peer", pod.Identity())) == 3
		})
	}
}
