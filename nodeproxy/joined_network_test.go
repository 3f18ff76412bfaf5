package nodeproxy

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// One of a network's two gateways loses its way to the pods, while a burst waits for the
// sessions that are opened: the network keeps its part of the connections, by the other one.
func TestABurstByOneBrokenGatewayHidesNoNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDistant(8, 2, 40*time.Millisecond)
		defer w.end()
		north := &mesh.Gateway{Name: "gw-3", Network: "north", Identity: torturedID("gateway"), Address: netip.MustParseAddrPort("10.4.0.1:15008")}
		w.gateways = append(w.gateways, north)
		for _, p := range w.pods[4:] {
			p.Network = "north"
		}
		w.listen(north.Address.String())
		w.answers(w.gateways[0].Address.String(), func(ctx context.Context, in *hbone.Incoming) {
			time.Sleep(2 * time.Second)
			in.Refuse(503, hbone.Header{header.NameReason: string(header.ReasonUnreachable)})
		})
		w.answers(w.gateways[1].Address.String(), w.serving(w.pods[:4]))
		w.answers(north.Address.String(), w.serving(w.pods[4:]))
		w.discover()
		if _, errs := w.crowd(60, 1e6, 100*time.Millisecond); len(errs) > 0 {
			t.Errorf("%d failed: %v", len(errs), errs[0])
		}
		began := time.Now()
		for {
			w.forget()
			w.crowd(100, 20, 100*time.Millisecond)
			west, all := 0, 0
			w.mu.Lock()
			for i, p := range w.pods {
				if all += w.got[p.Endpoint]; i < 4 {
					west += w.got[p.Endpoint]
				}
			}
			w.mu.Unlock()
			t.Logf("%3.0f s after the burst: %d of %d connections go to west", time.Since(began).Seconds(), west, all)
			if west*4 > all {
				break
			}
			if time.Since(began) > 10*time.Second && !t.Failed() {
				t.Errorf("west, of which gw-2 serves all pods, has had %d of %d connections for %v; it has half of the pods", west, all, time.Since(began).Round(time.Second))
			}
			if time.Since(began) > 5*time.Minute {
				break
			}
		}
	})
}
