package gateway_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

func kubeconfig(t *testing.T, server string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: %q}}]\ncontexts: [{name: c, context: {cluster: c}}]\n", server)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A gateway that has not read its cluster yet does not know its pods: it is not ready,
// tells nobody anything of them, and says what it waits for and why.
func TestGatewayIsNotReadyBeforeItKnowsItsCluster(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close() // nobody is there
	s := newSite(t, 1)
	s.Write()
	gw := s.StartGateway("west", "gw-1", func(c *gateway.Config) { c.Discovery.Kube.Kubeconfig = kubeconfig(t, "http://"+address) })
	meshtest.Eventually(t, "the API server is missed", func() bool {
		status, body := gw.Get(t, "/healthz/ready")
		var said struct{ Pending []string }
		json.Unmarshal([]byte(body), &said)
		return status == http.StatusServiceUnavailable && slices.Contains(said.Pending, "kubernetes") && strings.Contains(body, "connection refused")
	})
	if v := gw.Metric(t, "isthmus_kubernetes_synced"); v != 0 {
		t.Errorf("isthmus_kubernetes_synced is %v; want 0", v)
	}
	if v := gw.Metric(t, `isthmus_kubernetes_failing{list="pods"}`); v != 1 {
		t.Errorf("isthmus_kubernetes_failing of pods is %v; want 1", v)
	}
	cluster, _ := gw.State(t)["kubernetes"].(map[string]any)
	if !meshtest.Line(cluster).Has("synced", false, "server", "http://"+address) {
		t.Errorf("/state says %v", cluster)
	}
}

func TestKubeconfigThatCannotBeIsRefusedAtStart(t *testing.T) {
	odd := filepath.Join(t.TempDir(), "odd")
	if err := os.WriteFile(odd, []byte("- no kubeconfig\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"/nowhere/kubeconfig": "no such file", odd: "kubectl --kubeconfig"} {
		c := gateway.DefaultConfig()
		c.Discovery.Kube.Kubeconfig = path
		_, err := c.Validate()
		if err == nil || !strings.Contains(err.Error(), "discovery.kube.kubeconfig: ") || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v; want the field, the path and %q", path, err, want)
		}
	}
}
