package nodeproxy_test

import (
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

func TestWordsThatDiscoveryDoesNotKnowAreRefusedAtStart(t *testing.T) {
	p := newPair(t, 1)
	p.Write()
	otherCA := t.TempDir()
	if _, err := identity.InitCA(otherCA, spiffeid.RequireTrustDomainFromString("other.example")); err != nil {
		t.Fatal(err)
	}
	to := func(to string) func(*nodeproxy.Config) {
		return func(c *nodeproxy.Config) { c.Outbound[0].To = to }
	}
	for _, c := range []struct {
		name string
		edit func(*nodeproxy.Config)
		want []string
	}{
		{"network", func(c *nodeproxy.Config) { c.Network = "esat" }, []string{"network: ", `"esat"`, `did you mean "east"?`}},
		{"node", func(c *nodeproxy.Config) { c.Node = "eats-1" }, []string{"node: ", `"eats-1"`, `did you mean "east-1"?`, "nodes"}},
		{"trust domain", func(c *nodeproxy.Config) { c.TrustDomain = "cluster.locl" }, []string{"trustDomain: ", `"cluster.locl"`, `"cluster.local"`}},
		{"trust domain of the CA", func(c *nodeproxy.Config) { c.Identity.Dir = otherCA }, []string{"identity.dir: ", `"other.example"`, `"cluster.local"`}},
		{"workload", func(c *nodeproxy.Config) { c.Outbound[0].Workload = "east/default/shop-2" }, []string{"outbound[0].workload: ", `"east/default/shop-2"`, `did you mean "east/default/shop-1"?`}},
		{"workload of another node", func(c *nodeproxy.Config) { c.Outbound[0].Workload = p.pods[0].UID }, []string{"outbound[0].workload: ", `network "west"`, "own node"}},
		{"workload of a SOCKS listener", func(c *nodeproxy.Config) { c.Socks[0].Workload = "shop" }, []string{"socks[0].workload: ", `"shop"`, p.shop.UID}},
		{"service", to("helo.default.svc.cluster.local:80"), []string{"outbound[0].to: ", "helo.default", `did you mean "hello.default.svc.cluster.local"?`}},
		{"port of a service", to("hello.default.svc.cluster.local:8080"), []string{"outbound[0].to: ", "8080", "80"}},
		{"address", to("10.99.99.99:80"), []string{"outbound[0].to: ", "10.99.99.99", "address"}},
		{"several at once", func(c *nodeproxy.Config) {
			c.Node, c.TrustDomain, c.Socks[0].Workload = "east-2", "x.example", "nobody"
		}, []string{"trustDomain: ", "node: ", "socks[0].workload: "}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := p.NodeConfig("east", "east-1")
			c.edit(&cfg)
			_, err := nodeproxy.New(cfg, zerolog.Nop())
			if err == nil {
				t.Fatal("it starts")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not name %q", err, want)
				}
			}
		})
	}
	if c, err := meshtest.Dial(p.listen.hello); err == nil {
		c.Close()
		t.Error("something listens although nothing may have started")
	}
}

func TestANodeWithoutWorkloadsStartsIfDiscoveryNamesIt(t *testing.T) {
	m := meshtest.New(t)
	m.Networks("east")
	m.Config.Networks[0].Nodes = []string{"east-9"}
	m.Write()
	m.StartNode("east", "east-9").AwaitReady(t)
}

func TestADestinationThatNobodyServesNowIsNoTypo(t *testing.T) {
	p := newPair(t, 1)
	for _, pod := range p.pods {
		pod.Remove()
	}
	p.Write()
	p.StartNode("east", "east-1").AwaitReady(t)
}
