//go:build linux

package capture

import (
	"errors"
	"syscall"
	"testing"
	"time"
)

// A policy of destination.ip is about the address that the client has connected to, whichever of the pod's that is.
func TestPoliciesSeeTheAddressThatWasConnectedTo(t *testing.T) {
	w := newWorldAll(t)
	four, six := addresses["shop-1"]+":8080", v6(addresses["shop-1"])+":8080"
	w.write(t, "mesh.yaml", `policies:
  - {apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: not-six, namespace: demo}, spec: {action: DENY, rules: [{when: [{key: destination.ip, values: ["fd71::/16"]}]}, {from: [{source: {ipBlocks: ["10.71.2.1/32"]}}]}]}}
`+mesh)
	w.until(t, 10*time.Second, "node-b", four, func(_ string, err error) bool { return err != nil }) // it is in force
	if _, err := w.call("gateway", four); err != nil {
		t.Errorf("at %s: %v", four, err)
	}
	if text, err := w.call("gateway", six); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("at %s, which is forbidden: %q, %v", six, text, err)
	}
}
