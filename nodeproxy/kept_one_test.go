package nodeproxy

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// All sessions that the pool opens under one ID of a set are with one endpoint: when that
// leaves, no connection goes on to it by another session.
func TestABurstIsWithOneEndpointUnderOneSessionID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDistant(4, 1, 40*time.Millisecond)
		defer w.end()
		w.tellHealth()
		n := 1200
		if underRace {
			n = 60 // more crash its runtime in bubbles; make test runs all of it without
		}
		if _, errs := w.crowd(n, 1e6, time.Second); len(errs) > 0 {
			t.Errorf("%d failed: %v", len(errs), errs[0])
		}
		time.Sleep(10 * time.Second)
		for _, gone := range w.pods {
			w.mu.Lock()
			w.out[gone.Endpoint] = true
			w.mu.Unlock()
			w.discover()
			time.Sleep(15 * time.Second)
			w.forget()
			_, errs := w.crowd(n/2, 1e6, time.Second)
			w.mu.Lock()
			got := w.got[gone.Endpoint]
			w.mu.Unlock()
			if got > 0 || len(errs) > 0 {
				t.Errorf("%d of %d connections went to %s, which gateways call gone for 15 s (%d failed)", got, n/2, gone.UID, len(errs))
			}
			w.comeBack(gone)
			time.Sleep(10 * time.Second)
		}
	})
}

// The same of an identity that may no longer answer.
func TestABurstIsWithOneIdentityUnderOneSessionID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDistant(4, 1, 40*time.Millisecond)
		defer w.end()
		for _, p := range w.pods[:2] {
			p.Identity = torturedID("other")
		}
		w.discover()
		n := 1200
		if underRace {
			n = 60 // more crash its runtime in bubbles; make test runs all of it without
		}
		if _, errs := w.crowd(n, 1e6, time.Second); len(errs) > 0 {
			t.Fatal(errs[0])
		}
		time.Sleep(5 * time.Second)
		w.mu.Lock()
		w.out[w.pods[0].Endpoint], w.out[w.pods[1].Endpoint] = true, true
		w.mu.Unlock()
		w.discover()
		time.Sleep(30 * time.Second)
		w.forget()
		_, errs := w.crowd(n/2, 1e6, time.Second)
		w.mu.Lock()
		defer w.mu.Unlock()
		if got := w.got[w.pods[0].Endpoint] + w.got[w.pods[1].Endpoint]; got > 0 || len(errs) > 0 {
			t.Errorf("%d of %d connections went to pods of an identity that has not been the service's for 30 s (%d failed)", got, n/2, len(errs))
		}
	})
}

// A connection that is resolved by a new snapshot reaches nobody whose identity that
// does not have, though nobody has told the set of it yet.
func TestAConnectionOfANewSnapshotReachesNoOldIdentity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDistant(3, 1, 40*time.Millisecond)
		defer w.end()
		if _, errs := w.crowd(50, 20, 10*time.Millisecond); len(errs) > 0 {
			t.Fatal(errs[0])
		}
		old := w.client.store.Current()
		parts := mesh.Parts{Workloads: []*mesh.Workload{old.Workload(torturedUID)}, Gateways: w.gateways, Services: []*mesh.Service{old.Service(distantHost)}, Members: map[string][]string{}}
		for _, p := range w.pods {
			next := *p
			next.UID += "-new"
			next.Endpoint, next.Identity = mesh.EndpointIDOf("west", next.UID), torturedID("successor")
			parts.Workloads = append(parts.Workloads, &next)
			parts.Members[distantHost] = append(parts.Members[distantHost], next.UID)
		}
		w.client.store.Swap(mesh.NewSnapshot(2, parts))
		before := w.handshakes()
		w.forget()
		_, err := w.connect(1, 10*time.Millisecond)
		w.mu.Lock()
		got := len(w.got)
		w.mu.Unlock()
		if got > 0 || w.handshakes() == before {
			t.Errorf("a connection reached a pod whose identity the service no longer has (error: %v)", err)
		}
	})
}

// When gateways move, the sessions with the same pods are opened anew once, and the
// connections that come meanwhile wait for them.
func TestConnectionsShareSessionsWhileGatewaysMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDistant(10, 2, 40*time.Millisecond)
		defer w.end()
		w.crowd(400, 40, 100*time.Millisecond)
		before := w.handshakes()
		for i, g := range w.gateways {
			moved := *g
			a := moved.Address.Addr().As4()
			a[3] += 100
			moved.Address = netip.AddrPortFrom(netip.AddrFrom4(a), 15008)
			w.gateways[i] = &moved
			w.listen(moved.Address.String())
		}
		w.discover()
		connections := 1000
		if underRace {
			connections = 150 // as above
		}
		if _, errs := w.crowd(connections, 1000, 100*time.Millisecond); len(errs) > 0 {
			t.Errorf("%d failed: %v", len(errs), errs[0])
		}
		if n := w.handshakes() - before; n > 60 {
			t.Errorf("%d handshakes with 10 pods for %d connections within a second of the move", n, connections)
		}
	})
}
