package nodeproxy

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const unroutedMesh = `trustDomain: cluster.local
networks: [{name: east}, {name: west}]
gateways:
  - {name: gw-1, network: east, address: "EAST:15008"}
  - {name: gw-1, network: west, address: "WEST:15008"}
services:
  - {name: hello, namespace: demo, SERVICE, ports: [{port: 80}]}
  - {name: own, namespace: demo, vips: [240.240.0.1], ports: [{port: 80}]}
workloads:
  - {uid: shop, namespace: demo, labels: {app: shop}, network: east, node: east-1, addresses: [10.99.1.2], services: [own.demo.svc.cluster.local]}
  - {uid: hello-1, namespace: demo, network: west, node: west-1, addresses: [10.99.2.2], services: [hello.demo.svc.cluster.local]}
`

// checked is what --check of a node proxy of east-1 warns of.
func checked(t *testing.T, mesh, more string) []string {
	t.Helper()
	dir := t.TempDir()
	path, list := filepath.Join(dir, "east.yaml"), filepath.Join(dir, "mesh.yaml")
	if err := os.WriteFile(list, []byte(mesh), 0o600); err != nil {
		t.Fatal(err)
	}
	text := "node: east-1\nnetwork: east\ndiscovery: {file: " + list + "}\nidentity: {source: ca, dir: ca}\n" + more
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, warnings, err := LoadConfig(path)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Concat(warnings, c.Warnings())
}

// What is understood and leads nowhere is said before a process has it.
func TestCheckWarnsOfAddressesThatLeadNowhere(t *testing.T) {
	const captured = "capture: {scope: vips}\n"
	for name, x := range map[string]struct {
		east, west, service, more string
		want                      []string // parts of each warning, in their order
	}{
		"well":                             {"10.99.1.1", "10.99.2.1", "global: true, vips: [240.240.0.9]", captured, nil},
		"no virtual address":               {"10.99.1.1", "10.99.2.1", "global: true", captured, []string{"service hello.demo.svc.cluster.local leads to other networks and has no virtual address,", "give it vips, such as 240.240.0.2 of capture.ranges, in the discovery file"}},
		"nothing is captured":              {"10.99.1.1", "10.99.2.1", "global: true", "", nil},
		"it stays in its network":          {"10.99.1.1", "10.99.2.1", "scope: cluster", captured, nil},
		"its address stays in its network": {"10.99.1.1", "10.99.2.1", "scope: global, vips: [240.240.0.9]", captured, []string{"has only virtual addresses that lead to pods of the own network alone (240.240.0.9),", "set takeover: true"}},
		"its address is a pod's":           {"10.99.1.1", "10.99.2.1", "global: true, vips: [10.99.1.2]", captured, []string{"service hello.demo.svc.cluster.local has the virtual address 10.99.1.2, and that is that of workload shop,", "such as 240.240.0.2"}},
		"its address is a gateway's":       {"10.99.1.1", "10.99.2.1", "global: true, vips: [10.99.2.1]", captured, []string{"that of gateway gw-1 of network west,"}},
		"its address is a loopback one":    {"10.99.1.1", "10.99.2.1", "global: true, vips: [127.0.0.9]", captured, []string{"a loopback address, which is the pod itself"}},
		"a pod elsewhere has its address":  {"10.99.1.1", "10.99.2.1", "global: true, vips: [10.99.2.2]", captured, nil},
		"all gateways are on loopback":     {"127.20.1.1", "127.20.2.1", "global: true", "", nil},
		"one gateway is on loopback":       {"127.20.1.1", "10.99.2.1", "global: true", "", []string{"gateway gw-1 of network east is at 127.20.1.1:15008, a loopback address, and gateway gw-1 of network west at 10.99.2.1:15008 is not:"}},
		"captured pods dial loopback":      {"127.20.1.1", "127.20.2.1", "global: true, vips: [240.240.0.9]", captured, []string{"gateway gw-1 of network west is at 127.20.2.1:15008, a loopback address, and captured pods dial it from within their own network namespaces"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := checked(t, strings.NewReplacer("EAST", x.east, "WEST", x.west, "SERVICE", x.service).Replace(unroutedMesh), x.more)
			if len(got) != min(len(x.want), 1) {
				t.Fatalf("warnings are %q, want those with %q", got, x.want)
			}
			for _, part := range x.want {
				if !strings.Contains(got[0], part) {
					t.Errorf("it warns %q, want %q in it", got[0], part)
				}
			}
		})
	}
}
