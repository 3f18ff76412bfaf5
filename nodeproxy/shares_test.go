package nodeproxy_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// East's file has no pod of west, only what west has of the service, and its gateway:
// traffic flows, and of three pods a sick one is left out alone.
func TestAShareNeedsNoListOfPods(t *testing.T) {
	p := newPair(t, 3)
	p.Gateway("east", "gw-1")
	for _, pod := range p.pods[1:] {
		pod.App(8080)
	}
	sick := p.pods[0].App(8080)
	p.Write()
	east := filepath.Join(p.Dir(), "east.yaml")
	writeEast(t, p, east)
	for _, r := range []*meshtest.Process{
		p.StartGateway("west", "gw-1"), p.StartNode("west", "west-1"), p.StartNode("west", "west-2"), p.StartNode("west", "west-3"),
		p.StartGateway("east", "gw-1", func(c *gateway.Config) { c.Discovery.File = east }),
		p.StartNode("east", "east-1", func(c *nodeproxy.Config) { c.Discovery.File = east }),
	} {
		r.AwaitReady(t)
	}
	const workers = 4
	flow := meshtest.Flow(t, p.listen.hello, workers)
	meshtest.Eventually(t, "all three answer", func() bool {
		return flow.Answered("hello-1") > 0 && flow.Answered("hello-2") > 0 && flow.Answered("hello-3") > 0
	})
	sick.Close() // its port refuses from now on
	awaitNone(t, flow, "hello-1")
	before := []int{flow.Answered("hello-2"), flow.Answered("hello-3")}
	meshtest.Eventually(t, "the others answer on", func() bool {
		return flow.Answered("hello-2") > before[0]+10 && flow.Answered("hello-3") > before[1]+10
	})
	if _, failed := flow.Stop(); len(failed) > workers { // those that the application had taken end with it
		t.Errorf("%d connections failed, the first: %v", len(failed), failed[0])
	}
	// Nobody there has heard of a pod of west but by its ID.
	line := p.client().Log.Await(t, "connection", "direction", "outbound", "result", "ok")
	if !line.Has("network", "west") || line["endpoint"] == "" || line["workload"] != "" && line["workload"] != nil {
		t.Errorf("access log %v, want an endpoint of west without a name", line)
	}
}

// writeEast writes the discovery file without the pods of west.
func writeEast(t *testing.T, p *pair, path string) {
	t.Helper()
	data, err := os.ReadFile(p.File())
	if err != nil {
		t.Fatal(err)
	}
	var file map[string]any
	if err := yaml.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	file["workloads"] = slices.DeleteFunc(file["workloads"].([]any), func(w any) bool { return w.(map[string]any)["network"] == "west" })
	file["shares"] = []any{map[string]any{"network": "west", "name": "hello", "capacity": 3, "identities": []string{identityOf(p.pods[0].UID, p.Config)},
		"ports": []any{map[string]any{"port": 80}, map[string]any{"port": 81}}}}
	if data, err = yaml.Marshal(file); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(data), "hello-1") {
		t.Fatalf("east's file lists a pod of west:\n%s", data)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// identityOf is that of a workload in config.
func identityOf(uid string, config discovery.Config) string {
	s, _ := discovery.Build(1, config)
	return s.Workload(uid).Identity.String()
}
