package nodeproxy_test

import (
	"net"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// A workload of the node that is not in the mesh (protocol TCP), as gateways and controllers
// in Kubernetes are, is no business of its node proxy: it does not listen for it, and does not
// wait for a certificate that nobody would give it.
func TestAWorkloadOutsideTheMeshIsNotServed(t *testing.T) {
	m := meshtest.New(t)
	m.Networks("east")
	m.Gateway("east", "gw-1")
	inside, outside := m.Pod("east", "east-1", "inside-1"), m.Pod("east", "east-1", "outside-1")
	outside.Edit(func(w *discovery.Workload) { w.Protocol = "TCP" })
	m.Start()
	dial := func(p *meshtest.Pod) error {
		c, err := net.DialTimeout("tcp", p.At(15008).String(), time.Second)
		if err == nil {
			c.Close()
		}
		return err
	}
	if err := dial(inside); err != nil {
		t.Errorf("nobody listens for a workload of the mesh: %v", err)
	}
	if dial(outside) == nil {
		t.Error("somebody listens for a workload that is not in the mesh")
	}
	if metrics := m.Process("node proxy east-1").Metric(t, "isthmus_identity_missing"); metrics != 0 {
		t.Errorf("%v identities are missing, want none", metrics)
	}
	// One that joins is served, and one that leaves no more.
	outside.Edit(func(w *discovery.Workload) { w.Protocol = "HBONE" })
	inside.Edit(func(w *discovery.Workload) { w.Protocol = "TCP" })
	m.Write()
	meshtest.Eventually(t, "who joined is served, and who left is not", func() bool { return dial(outside) == nil && dial(inside) != nil })
}
