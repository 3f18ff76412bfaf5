package nodeproxy

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

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

// A pod that takes long to accept speaks of itself: whom it names beside, it cannot have its client leave it for
// nobody, and what was left is that pod.
func TestAPodThatIsSlowCannotSpeakOfOthers(t *testing.T) {
	for name, whom := range map[string]func(liar, other *mesh.Workload) mesh.EndpointID{
		"itself":                  func(liar, _ *mesh.Workload) mesh.EndpointID { return liar.Endpoint },
		"nobody":                  func(_, _ *mesh.Workload) mesh.EndpointID { return 0 },
		"another pod":             func(_, other *mesh.Workload) mesh.EndpointID { return other.Endpoint },
		"a pod that nobody knows": func(_, _ *mesh.Workload) mesh.EndpointID { return 7 },
	} {
		for _, alone := range []bool{true, false} {
			for _, far := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, alone %v, far %v", name, alone, far), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { slowLiar(t, whom, alone, far) })
				})
			}
		}
	}
}

// slowLiar has connections come to a pod that is slow and names whom it wants to; alone, or beside one that serves at once.
func slowLiar(t *testing.T, whom func(liar, other *mesh.Workload) mesh.EndpointID, alone, far bool) {
	w := newDistant(2, 1, time.Millisecond)
	defer w.end()
	pods := w.pods
	if !far {
		pods = []*mesh.Workload{w.nearby("10.0.1.1"), w.nearby("10.0.1.2")}
	}
	liar, other := pods[0], pods[1]
	if alone {
		pods = pods[:1]
	}
	w.pods = pods
	w.discover()
	w.slow = func(pod *mesh.Workload) hbone.Header {
		if pod != liar {
			return nil
		}
		h := hbone.Header{header.NameSlow: isSlow}
		if id := whom(liar, other); id != 0 {
			h[header.NameEndpoint] = id.String()
		}
		return h
	}
	for i := range 20 {
		began := time.Now()
		if _, err := w.connect(i, time.Millisecond); err != nil {
			t.Errorf("connection %d: %v", i, err)
		}
		if took := time.Since(began); !alone && took >= 500*time.Millisecond {
			t.Errorf("connection %d took %v, though another pod serves at once", i, took)
		}
		time.Sleep(10 * time.Millisecond)
	}
	left, nobody := testutil.ToFloat64(w.client.metrics.hedges.WithLabelValues("withdrawn")), testutil.ToFloat64(w.client.metrics.hedges.WithLabelValues("nobody"))
	if alone && (left != 0 || nobody != 20) {
		t.Errorf("%v connections left the only pod, and %v found nobody elsewhere; want 0 and 20", left, nobody)
	}
	if !alone && (left == 0 || w.got[liar.Endpoint] != 0) {
		t.Errorf("%v connections left the slow pod, and %d stayed; want some, and none", left, w.got[liar.Endpoint])
	}
}

// nearby is a pod of the own network that serves.
func (w *distant) nearby(address string) *mesh.Workload {
	pod := &mesh.Workload{UID: "east/default/near-" + address, Name: "near-" + address, Namespace: "default", Network: "east", Node: "east-2",
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
