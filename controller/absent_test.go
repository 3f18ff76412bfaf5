package controller

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/discovery/kube"
	"github.com/isthmus-mesh/isthmus/discovery/kube/owned"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/peer"
)

// A cluster without the custom resources of the Multi-Cluster Services API is a choice: no problem
// is made of it, which would stand for ever.
func TestNoServiceImportsAreNoProblem(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := "{apiVersion: v1, kind: Config, current-context: x, clusters: [{name: x, cluster: {server: '" + server.URL + "'}}], contexts: [{name: x, context: {cluster: x, user: x}}], users: [{name: x, user: {}}]}"
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	client, err := owned.Open(kube.Config{Kubeconfig: kubeconfig}, "isthmus-system", zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	c := &Controller{client: client, source: &kube.Source{}, imports: client.Imports(), declared: client.Exports(), exports: newExports(nil, "", nil)}
	c.objects = newObjects("west", Config{}.VIPs.ranges(), func() {})
	c.stream = healthstream.NewClient(healthstream.ClientConfig{Observe: true, Network: "west", Log: zerolog.Nop(), Metrics: peer.NewMetrics(prometheus.NewRegistry())})
	var running sync.WaitGroup
	running.Go(func() { c.imports.Run(t.Context()) })
	t.Cleanup(func() { server.Close(); running.Wait() })
	absent := func() bool { _, absent, _ := c.imports.Status(); return absent }
	for until := time.Now().Add(10 * time.Second); !absent(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("it is not known that there are none: %v", client.Failing())
		}
	}
	if got := c.findings(); len(got) > 0 {
		t.Errorf("problems %q; want none", got)
	}
}
