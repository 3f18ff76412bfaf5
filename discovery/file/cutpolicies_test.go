package file

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/isthmus-mesh/isthmus/policy"
)

// The first load has nothing to compare with: a file that is cut off anywhere is no file, or lists no pod
// that it leaves open, if policies stand before workloads and labels before addresses, as docs/configuration.md
// says.
func TestAFirstFileThatIsCutOffLeavesNoPodOpen(t *testing.T) {
	const text = `trustDomain: cluster.local
rootNamespace: mesh-root
networks:
  - name: west
policies:
  - apiVersion: security.istio.io/v1
    kind: AuthorizationPolicy
    metadata:
      name: deny
      namespace: shop
    spec:
      selector:
        matchLabels:
          app: cart
      action: DENY
      rules:
        - {}
workloads:
  - uid: cart-1
    namespace: shop
    labels:
      app: cart
    network: west
    addresses:
      - 10.0.0.1
`
	pods := 0
	for n := range len(text) {
		path := filepath.Join(t.TempDir(), "mesh.yaml")
		if err := os.WriteFile(path, []byte(text[:n+1]), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Load(path)
		if err != nil {
			continue
		}
		for _, w := range s.Workloads() {
			pods++
			if d := s.Policies().For(policy.Workload{Namespace: w.Namespace, Labels: w.Labels}).Decide(policy.Connection{}); d.Allowed() {
				t.Errorf("cut off after %d bytes, %q: %s", n+1, text[max(0, n-20):n+1], d)
			}
		}
	}
	if pods == 0 {
		t.Error("no cut has a pod: the test proves nothing")
	}
}
