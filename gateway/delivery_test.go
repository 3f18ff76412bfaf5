package gateway

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/gateway/picker"
)

// rebuild gives the believer another mesh of pods, by their UIDs and states.
func (b *believer) rebuild(t *testing.T, revision uint64, pods map[string]string) {
	t.Helper()
	c := discovery.DefaultConfig()
	c.Networks = []discovery.Network{{Name: "west"}}
	c.Services = []discovery.Service{{Name: "hello", Global: true, Ports: []discovery.ServicePort{{Name: "a", Port: 80, TargetPort: 8080}}}}
	for uid, state := range pods {
		w := discovery.Workload{UID: uid, Network: "west", Node: "west-1", Services: []string{"hello.default.svc.cluster.local"},
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 0, uid[6]})}}
		w.State = state
		c.Workloads = append(c.Workloads, w)
	}
	snap, problems := discovery.Build(revision, c)
	if problems != nil {
		t.Fatal(problems)
	}
	b.store.Swap(snap)
	b.backends.forget(snap, time.Now())
	b.deliveries.revised(discovery.Everything(), time.Now())
}

// A pod that is left out is named with its cause, for as long as others need to know.
func TestExceptionsHaveTheirCausesAndLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBeliever(t)
		expect := func(when string, ready, healthy uint32, cause record.Cause) {
			t.Helper()
			time.Sleep(time.Second) // so that nothing is put off
			h := b.last()
			want := []record.Exception{{Endpoint: b.pod.Endpoint, Cause: cause}}
			if cause == 0 {
				want = nil
			}
			if h.Ready != ready || h.Healthy != healthy || len(h.Exceptions) != len(want) || len(want) > 0 && h.Exceptions[0] != want[0] {
				t.Errorf("%s: %+v; want %d of %d and %v", when, h, healthy, ready, want)
			}
		}
		expect("at first", 2, 2, 0)
		for range b.cfg.OutlierDetection.FailureThreshold {
			b.backends.Asked(b.pod, picker.Broken, attemptUnreachable, time.Now(), time.Now())
		}
		b.deliveries.touched(time.Now(), b.pod)
		expect("unreachable", 2, 1, record.Hop)
		b.witnessed(federation.Ejected, true)
		expect("and sick", 2, 1, record.Witness)
		b.witnessed(federation.Healthy, true)
		b.backends.Asked(b.pod, picker.Answers, "", time.Now(), time.Now())
		b.deliveries.touched(time.Now(), b.pod)
		expect("healed", 2, 2, 0)
		b.rebuild(t, 2, map[string]string{"hello-1": "notReady", "hello-2": ""})
		expect("not ready", 1, 1, record.NotReady)
		b.rebuild(t, 3, map[string]string{"hello-1": "terminating", "hello-2": ""})
		expect("terminating", 1, 1, record.Terminating)
		b.rebuild(t, 4, map[string]string{"hello-2": ""})
		expect("gone", 1, 1, record.Gone)
		time.Sleep(record.Linger - 2*time.Second)
		b.deliveries.expire(time.Now())
		expect("gone for a while", 1, 1, record.Gone)
		time.Sleep(2 * time.Second)
		b.deliveries.expire(time.Now())
		expect("gone for good", 1, 1, 0)
	})
}
