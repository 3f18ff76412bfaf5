package lab

import (
	"os"
	"path/filepath"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/drill/scenario"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
)

func TestDiscoveryFilesAreAMesh(t *testing.T) {
	s := tinyScenario(t)
	dir := t.TempDir()
	l := scenario.NewLayout(s, 77)
	if err := writeConfigs(dir, l, s.Arms[0]); err != nil {
		t.Fatal(err)
	}
	for _, network := range []string{"east", "west"} {
		path := filepath.Join(dir, meshFile(network))
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		c := discovery.DefaultConfig()
		if err := strictyaml.Decode(path, data, &c); err != nil {
			t.Fatal(err)
		}
		snap, problems := discovery.Build(1, c)
		if len(problems) > 0 {
			t.Fatalf("%s: %v", network, problems)
		}
		svc := snap.Service(hostname("echo"))
		if svc == nil || len(snap.Members(svc, "west")) != 3 {
			t.Fatalf("%s: service %v, want three members on west", network, svc)
		}
		for _, g := range l.Gateways {
			direct := snap.Gateways(g.Network)[0].Federation == g.Address
			if direct != (g.Network == network) {
				t.Errorf("%s reaches gossip of %s directly: %v", network, g.Name, direct)
			}
		}
		for _, p := range l.Pods {
			w := snap.Workload(p.Name)
			if w == nil || w.Endpoint.String() != p.Endpoint {
				t.Errorf("%s: endpoint of %s differs from what discovery makes of it", network, p.Name)
			}
		}
	}
}

// The transport of an arm is that of its gateways and node proxies.
func TestArmSetsTransport(t *testing.T) {
	s := tinyScenario(t)
	l := scenario.NewLayout(s, 77)
	for _, transport := range []string{"", "quic"} {
		dir, arm := t.TempDir(), s.Arms[0]
		arm.Lines.Transport = transport
		if err := writeConfigs(dir, l, arm); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{l.Gateways[0].Name, l.Nodes[0].Name} {
			data, err := os.ReadFile(filepath.Join(dir, name+".yaml"))
			if err != nil {
				t.Fatal(err)
			}
			var got struct{ Lines struct{ Transport string } }
			if err := yaml.Unmarshal(data, &got); err != nil || got.Lines.Transport != transport {
				t.Errorf("%s: lines.transport %q, %v, want %q", name, got.Lines.Transport, err, transport)
			}
		}
	}
}
