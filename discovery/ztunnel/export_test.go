package ztunnel

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/isthmus-mesh/isthmus/discovery/file"
	"github.com/isthmus-mesh/isthmus/mesh"
)

var update = flag.Bool("update", false, "rewrite the *.out.yaml files")

// TestTranslation: case.out.yaml is what node n1 of case.in.yaml must know.
// Rewritten by make golden, reviewed as code.
func TestTranslation(t *testing.T) {
	files, err := filepath.Glob("testdata/*.in.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("found %d cases (%v)", len(files), err)
	}
	for _, in := range files {
		t.Run(strings.TrimSuffix(filepath.Base(in), ".in.yaml"), func(t *testing.T) {
			got := export(t, load(t, in))
			golden := strings.TrimSuffix(in, ".in.yaml") + ".out.yaml"
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func load(t *testing.T, path string) *mesh.Snapshot {
	t.Helper()
	s, err := file.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func export(t *testing.T, s *mesh.Snapshot) []byte {
	t.Helper()
	c, err := Export(s, "n1")
	if err != nil {
		t.Fatal(err)
	}
	b, err := c.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestSameMeshGivesSameBytes(t *testing.T) {
	first := export(t, load(t, "testdata/split.in.yaml"))
	for range 20 {
		if next := export(t, load(t, "testdata/split.in.yaml")); !bytes.Equal(first, next) {
			t.Fatalf("first\n%s\nthen\n%s", first, next)
		}
	}
}

// Each gateway that is referred to must be a workload of its own, and nothing
// else of another network may have an address.
func TestOnlyGatewaysOfOtherNetworksHaveAddresses(t *testing.T) {
	var c Config
	if err := yaml.Unmarshal(export(t, load(t, "testdata/split.in.yaml")), &c); err != nil {
		t.Fatal(err)
	}
	gateways := map[string]bool{}
	for _, w := range c.Workloads {
		if strings.HasPrefix(w.UID, "NetworkGateway/") {
			gateways[w.Network+"/"+w.WorkloadIPs[0]] = true
		} else if w.Network != "a" && len(w.WorkloadIPs) > 0 {
			t.Errorf("%s of network %s has addresses %s, want none", w.UID, w.Network, w.WorkloadIPs)
		}
	}
	for _, w := range c.Workloads {
		if g := w.NetworkGateway; g != nil && !gateways[g.Destination] {
			t.Errorf("%s goes through %s, which is no workload (have %v)", w.UID, g.Destination, gateways)
		}
	}
}

// As at node proxies, a network all of whose gateways are drained is still reached.
func TestDrainedGatewaysAreUsedWhileTheirNetworkHasNoOther(t *testing.T) {
	in, err := os.ReadFile("testdata/split.in.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const serving = `address: "[2001:db8::9]:15008"`
	if !bytes.Contains(in, []byte(serving)) {
		t.Fatal("split.in.yaml has no gateway of c that serves")
	}
	path := filepath.Join(t.TempDir(), "mesh.yaml")
	if err := os.WriteFile(path, bytes.Replace(in, []byte(serving), []byte(serving+", drained: true"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	through := map[string][]string{}
	for name, mesh := range map[string]string{"one is drained": "testdata/split.in.yaml", "all are drained": path} {
		var c Config
		if err := yaml.Unmarshal(export(t, load(t, mesh)), &c); err != nil {
			t.Fatal(err)
		}
		for _, w := range c.Workloads {
			if w.Name == "pay" && w.Network == "c" && w.NetworkGateway != nil {
				through[name] = append(through[name], w.NetworkGateway.Destination)
			}
		}
	}
	if got := through["one is drained"]; !slices.Equal(got, []string{"c/2001:db8::9"}) {
		t.Errorf("with one drained pay goes through %q", got)
	}
	if got := through["all are drained"]; len(got) != 2 {
		t.Errorf("with all drained pay goes through %q, want both gateways of c", got)
	}
}

func TestSharesAddUpAndNoneIsZero(t *testing.T) {
	for total := uint32(1); total < 20; total++ {
		for n := 1; n < 8; n++ {
			var sum uint32
			for i := range n {
				part := share(total, n, i)
				if part == 0 {
					t.Errorf("gateway %d of %d has no share of %d", i, n, total)
				}
				sum += part
			}
			if want := max(total, uint32(n)); sum != want {
				t.Errorf("shares of %d over %d gateways add up to %d, want %d", total, n, sum, want)
			}
		}
	}
}

func TestNodeMustBelongToOneNetwork(t *testing.T) {
	s := load(t, "testdata/split.in.yaml")
	for node, want := range map[string]string{
		"":       `node "": no workload runs there: name one of both, n1`,
		"nobody": `node "nobody": no workload runs there: name one of both, n1`,
		"both":   `node "both": it has workloads on networks b, c: give each node its own name`,
	} {
		if _, err := Export(s, node); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("node %q: error %v, want %q", node, err, want)
		}
	}
}

// A policy of a file that is called as a mode is exported takes nothing from it.
func TestAPolicyThatIsCalledAsAModeIs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mesh.yaml")
	if err := os.WriteFile(path, []byte(`
networks: [{name: west}]
policies:
  - {apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: strict, namespace: demo}, spec: {mtls: {mode: STRICT}}}
  - {apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: isthmus_strict, namespace: demo}, spec: {selector: {matchLabels: {app: x}}, rules: [{}]}}
workloads:
  - {uid: x, namespace: demo, labels: {app: x}, network: west, node: n1, addresses: [10.0.0.1]}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Export(load(t, path), "n1")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{}
	for _, a := range c.Policies {
		names[a.Namespace+"/"+a.Name] += a.Action
	}
	if len(c.Policies) != 2 || names["demo/isthmus_strict"] != "Allow" || names["demo/isthmus_strict_"] != "Deny" || !slices.Equal(c.Workloads[0].AuthorizationPolicies, []string{"demo/isthmus_strict", "demo/isthmus_strict_"}) {
		t.Errorf("policies %v, of the workload %v", names, c.Workloads[0].AuthorizationPolicies)
	}
}
