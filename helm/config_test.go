package helm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/controller"
	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
`

// inContainer gives the test the environment of the chart's containers, a directory with what writes
// files into it, and a kubeconfig there.
func inContainer(t *testing.T) (dir string, write func(name, text string) string, api string) {
	t.Helper()
	dir = t.TempDir()
	write = func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	api = write("kubeconfig", kubeconfig)
	t.Setenv("ISTHMUS_GATEWAY_NAME", "isthmus-gateway-5d9c-x2x4")
	t.Setenv("ISTHMUS_DIAL_FROM", "10.1.2.3")
	t.Setenv("NODE_NAME", "node-1")
	t.Setenv("POD_NAME", "isthmus-controller-5d9c-x2x4")
	return dir, write, api
}

// What the chart writes into ConfigMaps is what the processes take, with the environment
// that the chart sets.
func TestProcessesTakeTheConfigurationThatIsRendered(t *testing.T) {
	dir, write, api := inContainer(t)
	load := map[string]func(path string) error{
		"controller.yaml": func(path string) error { _, _, err := controller.LoadConfig(path); return err },
		"gateway.yaml":    func(path string) error { _, _, err := gateway.LoadConfig(path); return err },
		"nodeproxy.yaml":  func(path string) error { _, _, err := nodeproxy.LoadConfig(path); return err },
	}
	for _, name := range cases(t) {
		seen := map[string]bool{}
		for _, o := range rendered(t, name) {
			for key, text := range o.Data {
				if o.Kind != "ConfigMap" || load[key] == nil {
					continue
				}
				seen[key] = true
				// Outside a pod there is no API server of its own.
				text = strings.Replace(text, "inCluster: true", "kubeconfig: "+api, 1)
				text = strings.ReplaceAll(text, "/var/lib/isthmus", dir) // a volume
				text = strings.ReplaceAll(text, "/host/proc", "/proc")   // likewise
				if err := load[key](write(name+"-"+key, text)); err != nil {
					t.Errorf("%s: %s: %v", name, key, err)
				}
			}
		}
		if !seen["gateway.yaml"] {
			t.Errorf("%s has no gateway.yaml: %v", name, seen)
		}
	}
}
