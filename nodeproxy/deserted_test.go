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

// Policies go by the port on which the application listens: who names that of the service denies nothing.
func TestCheckWarnsOfPoliciesForPortsOfServices(t *testing.T) {
	mesh := strings.NewReplacer("EAST", "10.99.1.1", "WEST", "10.99.2.1", "SERVICE", "global: true", "vips: [240.240.0.1], ports: [{port: 80}]", "ports: [{port: 80, targetPort: 8080}]").Replace(unroutedMesh)
	for port, want := range map[string]string{"8080": "", "7070": "", "80": "AuthorizationPolicy demo/a names port 80, which is that of a service, and its pods listen on 8080:"} {
		got := checked(t, mesh+"policies:\n  - {apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: a, namespace: demo}, spec: {selector: {matchLabels: {app: shop}}, action: DENY, rules: [{to: [{operation: {ports: ['"+port+"']}}]}]}}\n", "")
		if want == "" && len(got) > 0 || want != "" && (len(got) != 1 || !strings.Contains(got[0], want)) {
			t.Errorf("port %s: warnings are %q, want %q", port, got, want)
		}
	}
}
