package nodeproxy

import (
	"strings"
	"testing"
)

// A policy in a namespace that is misspelt closes nothing.
func TestCheckWarnsOfPoliciesInNoNamespace(t *testing.T) {
	mesh := strings.NewReplacer("EAST", "10.99.1.1", "WEST", "10.99.2.1", "SERVICE", "global: true").Replace(unroutedMesh)
	for namespace, want := range map[string]string{"demo": "", "dmeo": "PeerAuthentication dmeo/mtls selects no workload,", "istio-system": ""} {
		got := checked(t, mesh+"policies:\n  - {apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: mtls, namespace: "+namespace+"}, spec: {mtls: {mode: STRICT}}}\n", "")
		if want == "" && len(got) > 0 || want != "" && (len(got) != 1 || !strings.Contains(got[0], want)) {
			t.Errorf("in namespace %s: warnings are %q, want %q", namespace, got, want)
		}
	}
}
