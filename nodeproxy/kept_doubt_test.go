package nodeproxy

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// While a failure is not explained the gateway chooses for each connection, on a session of its own: one handshake
// each, and the turns of the gateway are those of connections.
func TestWhileTheGatewayChoosesAConnectionCostsOneHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDistant(3, 1, time.Millisecond)
		defer w.end()
		w.refuse = func(pod *mesh.Workload) (int, hbone.Header) {
			if pod != w.pods[0] {
				return 0, nil
			}
			return 503, hbone.Header{header.NameReason: string(header.ReasonRefused), header.NameEndpoint: pod.Endpoint.String()}
		}
		for i := range 100 {
			if _, err := w.connect(i, time.Millisecond); err != nil {
				t.Error(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if n := w.handshakes(); n > 120 {
			t.Errorf("%d handshakes with pods for 100 connections", n)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, p := range w.pods[1:] {
			if n := w.got[p.Endpoint]; n < 30 {
				t.Errorf("a healthy pod, one of two, got %d of 100 connections", n)
			}
		}
	})
}
