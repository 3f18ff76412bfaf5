package nodeproxy

import (
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// A pod that refuses speaks of itself: whom it names beside, it cannot have avoided, and
// the connection goes to others.
func TestAPodThatRefusesCannotHaveOthersAvoided(t *testing.T) {
	for _, x := range []struct {
		status int
		reason header.Reason
	}{{503, header.ReasonRefused}, {503, header.ReasonTimeout}, {404, header.ReasonNotLocal}} {
		t.Run(string(x.reason), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newDistant(3, 1, time.Millisecond)
				defer w.end()
				liar := w.pods[0]
				n := 0
				w.refuse = func(pod *mesh.Workload) (int, hbone.Header) {
					if pod != liar {
						return 0, nil
					}
					w.mu.Lock()
					defer w.mu.Unlock()
					n++
					return x.status, hbone.Header{header.NameReason: string(x.reason), header.NameEndpoint: w.pods[1+n%2].Endpoint.String()}
				}
				failed := 0
				for i := range 100 {
					if _, err := w.connect(i, time.Millisecond); err != nil {
						failed++
					}
					time.Sleep(10 * time.Millisecond)
				}
				w.mu.Lock()
				defer w.mu.Unlock()
				t.Logf("%d of 100 failed; the liar refused %d; served %v", failed, n, w.got)
				if failed > 0 {
					t.Errorf("%d of 100 connections failed, though two of three pods are well", failed)
				}
				if x.status == 503 && n > 20 {
					t.Errorf("the pod that refuses was asked %d times", n)
				}
			})
		})
	}
}

// A gateway speaks of pods of its own network, and where it has nothing to offer of none: whom
// it names, it cannot have itself asked again, or pods of another network avoided.
func TestAGatewayThatOffersNothingCannotChooseByNames(t *testing.T) {
	for name, whom := range map[string]func(near, far *mesh.Workload) mesh.EndpointID{
		"nobody":                   func(_, _ *mesh.Workload) mesh.EndpointID { return 0 },
		"a pod of another network": func(near, _ *mesh.Workload) mesh.EndpointID { return near.Endpoint },
		"a pod of its own":         func(_, far *mesh.Workload) mesh.EndpointID { return far.Endpoint },
		"a pod that nobody knows":  func(_, _ *mesh.Workload) mesh.EndpointID { return 7 },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newDistant(1, 1, time.Millisecond)
				defer w.end()
				near := w.nearby("10.0.1.1")
				h := hbone.Header{header.NameReason: string(header.ReasonUnknownService)}
				if id := whom(near, w.pods[0]); id != 0 {
					h[header.NameEndpoint] = id.String()
				}
				w.refused = func() (int, hbone.Header) { return 404, h }
				anywhere := *distantService
				anywhere.Distribution = mesh.Any
				w.pods[0].Capacity = 50
				w.client.store.Swap(mesh.NewSnapshot(2, mesh.Parts{Workloads: append(slices.Clone(w.sources), near, w.pods[0]), Gateways: w.gateways,
					Members: map[string][]string{distantHost: {near.UID, w.pods[0].UID}}, Services: []*mesh.Service{&anywhere}}))
				w.client.rediscover(w.client.data)
				failed := 0
				for i := range 100 {
					if _, err := w.connect(i, time.Millisecond); err != nil {
						failed++
					}
					time.Sleep(10 * time.Millisecond)
				}
				if failed > 0 {
					t.Errorf("%d of 100 connections failed, though a pod of the own network is well", failed)
				}
			})
		})
	}
}

// nearby is a pod of the own network that serves.
func (w *distant) nearby(address string) *mesh.Workload {
	pod := &mesh.Workload{UID: "east/default/near", Name: "near", Namespace: "default", Network: "east", Node: "east-2",
		Addresses: []netip.Addr{netip.MustParseAddr(address)}, Capacity: 1, Identity: torturedID("far")}
	pod.Endpoint = mesh.EndpointIDOf("east", pod.UID)
	l, err := w.net.Listen(address + ":15008")
	if err != nil {
		panic(err)
	}
	w.listeners[address] = l
	w.work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			w.work.Go(func() { w.serve(pod, conn) })
		}
	})
	return pod
}
