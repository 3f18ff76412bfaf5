package nodeproxy_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// seeing writes a discovery file that lists, of west's pods, the first so many from one on.
func (p *pair) seeing(t *testing.T, first, n int) string {
	t.Helper()
	all := p.Config.Workloads
	p.Config.Workloads = slices.DeleteFunc(slices.Clone(all), func(w discovery.Workload) bool {
		return slices.ContainsFunc(p.pods, func(x *meshtest.Pod) bool { return x.UID == w.UID }) && !slices.ContainsFunc(p.pods[first:first+n], func(x *meshtest.Pod) bool { return x.UID == w.UID })
	})
	p.Write()
	b, err := os.ReadFile(p.File())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "mesh.yaml")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	p.Config.Workloads = all
	p.Write()
	return file
}

// sees is a gateway of west that lists n of its pods, the first from one on.
type sees struct {
	name, group string
	first, n    int
}

// ready is how many pods of west the client's node proxy knows to be ready, once so many
// gateways there have said it.
func (p *pair) ready(t *testing.T, gateways int) (n string) {
	t.Helper()
	for _, s := range p.client().Rows(t, "followedServices") {
		networks, _ := s["networks"].([]any)
		for _, x := range networks {
			x, _ := x.(map[string]any)
			ports, _ := x["ports"].([]any)
			if instances, _ := x["instances"].([]any); x["network"] != "west" || len(instances) < gateways {
				continue
			}
			for _, port := range ports {
				if port, _ := port.(map[string]any); fmt.Sprint(port["port"]) == "80" {
					n = fmt.Sprint(port["ready"])
				}
			}
		}
	}
	return n
}

// What gateways of west deliver together: groups add up, and of each the best counts.
func TestGroupsOfGatewaysAddUpAndTheBestOfEachCounts(t *testing.T) {
	for name, c := range map[string]struct {
		gateways []sees
		ready    string
		both     bool // connections reach pods of both
	}{
		"disjoint":          {[]sees{{"gw-1", "a", 0, 3}, {"gw-2", "b", 3, 1}}, "4", true},
		"two of one group":  {[]sees{{"gw-1", "a", 0, 3}, {"gw-2", "a", 0, 2}, {"gw-3", "b", 3, 1}}, "4", false},
		"no group is named": {[]sees{{"gw-1", "", 0, 3}, {"gw-2", "", 3, 1}}, "3", false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, 4)
			p.Gateway("east", "gw-e")
			for _, g := range c.gateways[1:] {
				p.Gateway("west", g.name)
			}
			for _, pod := range p.pods {
				pod.App(8080)
			}
			groups := map[string]string{"gw-e": ""}
			for _, g := range c.gateways {
				file := p.seeing(t, g.first, g.n)
				groups[g.name] = g.group
				p.StartGateway("west", g.name, func(c *gateway.Config) { c.Federation.Group, c.Discovery.File = g.group, file })
			}
			p.Start()
			got := map[string]bool{}
			hello := func() {
				name, err := meshtest.Hello(p.listen.hello)
				if err != nil {
					t.Fatal(err)
				}
				got[name] = true
			}
			hello()
			meshtest.Eventually(t, c.ready+" ready pods", func() bool { return p.ready(t, len(c.gateways)) == c.ready })
			if c.both {
				meshtest.Eventually(t, "connections to pods of both groups", func() bool { hello(); return got["hello-4"] && len(got) > 1 })
			}
			meshtest.Eventually(t, "the group of each gateway at east", func() bool {
				got := map[string]string{}
				for _, i := range p.Process("gateway east/gw-e").Rows(t, "instances") {
					got[i.Text("gateway")] = i.Text("group")
				}
				return maps.Equal(got, groups)
			})
		})
	}
}
