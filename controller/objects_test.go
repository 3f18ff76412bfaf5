package controller

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/controller/notices"
	"github.com/isthmus-mesh/isthmus/controller/vip"
	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/mesh"
)

func key(kind discovery.Kind, name string) discovery.Key {
	return discovery.Key{Kind: kind, Source: discovery.Cluster, Name: name}
}

func TestAddressesInTheRangesOfImportsAreProblems(t *testing.T) {
	o := newObjects("west", vip.DefaultRanges(), func() {})
	web := key(discovery.KindService, "demo/web")
	pod := key(discovery.KindWorkload, "demo/web-1")
	record := discovery.Service{Name: "web", Namespace: "demo", VIPs: []netip.Addr{netip.MustParseAddr("240.240.3.4")}, Ports: []discovery.ServicePort{{Port: 80, Protocol: "TCP"}}}
	o.everything()
	o.Apply(discovery.Change{Key: web, Record: record}, discovery.Change{Key: pod, Record: discovery.Workload{Addresses: []netip.Addr{netip.MustParseAddr("2001:2::9")}}})
	said := o.take()
	for _, at := range []notices.Object{{Kind: notices.Service, Namespace: "demo", Name: "web"}, {Kind: notices.Pod, Namespace: "demo", Name: "web-1"}} {
		if len(said[at]) != 1 || said[at][0].Reason != "AddressOverlap" || !strings.Contains(said[at][0].Message, "vips.ipv4") {
			t.Errorf("said of %s: %v; want the overlap and what to do", at, said[at])
		}
	}
	if got := o.overlaps(); len(got) != 2 {
		t.Errorf("overlaps are %q", got)
	}
	record.VIPs = []netip.Addr{netip.MustParseAddr("10.96.0.1")}
	o.Apply(discovery.Change{Key: web, Record: record}, discovery.Change{Key: pod})
	for at, list := range o.take() {
		if len(list) != 0 {
			t.Errorf("said of %s is still %v", at, list)
		}
	}
	if got := o.overlaps(); len(got) != 0 {
		t.Errorf("overlaps are %q still", got)
	}
}

func TestWhatAnExportComesTo(t *testing.T) {
	o := newObjects("west", vip.DefaultRanges(), func() {})
	n := vip.Name{Namespace: "demo", Name: "web"}
	web := key(discovery.KindService, "demo/web")
	if l := o.local(n); l.Exported || l.Why == "" {
		t.Errorf("of no service: %+v", l)
	}
	o.Apply(discovery.Change{Key: web, Faults: []discovery.Problem{{Out: true, Field: "ServiceExport", Value: "demo/web", Message: "exports a Service that is not there"}}})
	if l := o.local(n); l.Exists {
		t.Errorf("without a Service: %+v", l)
	}
	o.Apply(discovery.Change{Key: web, Faults: []discovery.Problem{{Out: true, Field: "spec.type", Value: "ExternalName"}}})
	if l := o.local(n); l.Type != "ExternalName" || l.Exported {
		t.Errorf("of an ExternalName: %+v", l)
	}
	record := discovery.Service{Name: "web", Namespace: "demo", Scope: "global", Ports: []discovery.ServicePort{{Name: "http", Port: 80, Protocol: "TCP"}, {Name: "dns", Port: 53, Protocol: "UDP"}}}
	record.Headless, record.Affinity = true, mesh.ClientIP
	o.Apply(discovery.Change{Key: web, Record: record, Faults: []discovery.Problem{{Field: "spec.clusterIP", Value: "None", Message: "headless"}}})
	if l := o.local(n); !l.Exported || !l.Export.Headless || l.Export.Affinity != "ClientIP" || len(l.Export.Ports) != 1 || len(l.Notes) != 1 {
		t.Errorf("of a headless one: %+v", l)
	}
	record.Scope = "cluster"
	o.Apply(discovery.Change{Key: web, Record: record})
	if l := o.local(n); l.Exported || l.Why == "" {
		t.Errorf("of one that stays in its cluster: %+v", l)
	}
}

// Random pods of two services come, change and go: what is known of their services is what a count of all pods says,
// and nothing is kept of pods that are gone.
func TestPodsOfExportAreCounted(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 10))
		o, truth := newObjects("west", vip.DefaultRanges(), func() {}), map[string]discovery.Workload{}
		names := []string{"web", "api"}
		for _, name := range names {
			o.Apply(discovery.Change{Key: key(discovery.KindService, "demo/"+name), Record: discovery.Service{Name: name, Namespace: "demo", Scope: "global", Created: 1_700_000_000, Ports: []discovery.ServicePort{{Port: 80, Protocol: "TCP"}}}})
		}
		for step := range 100 {
			pod := fmt.Sprint("demo/p", rng.IntN(4))
			c := discovery.Change{Key: key(discovery.KindWorkload, pod)}
			if delete(truth, pod); rng.IntN(3) > 0 {
				w := discovery.Workload{Protocol: []string{"", "TCP"}[rng.IntN(2)], Network: []string{"west", "west", "east"}[rng.IntN(3)]}
				for _, name := range names {
					if rng.IntN(2) == 0 {
						w.Services = append(w.Services, name+".demo.svc.cluster.local")
					}
				}
				c.Record, truth[pod] = w, w
			}
			o.Apply(c)
			for _, name := range names {
				pods, meshed := false, false
				for _, w := range truth {
					if slices.Contains(w.Services, name+".demo.svc.cluster.local") {
						pods, meshed = true, meshed || w.Protocol != "TCP" && w.Network == "west"
					}
				}
				if l := o.local(vip.Name{Namespace: "demo", Name: name}); !l.Exported || l.Pods != pods || l.Meshed != meshed || l.Export.Created.Unix() != 1_700_000_000 {
					t.Fatalf("seed %d, step %d: %s is %+v; want pods %v, in the mesh %v", seed, step, name, l, pods, meshed)
				}
			}
		}
		for pod := range truth {
			o.Apply(discovery.Change{Key: key(discovery.KindWorkload, pod)})
		}
		if len(o.pods)+len(o.members) > 0 {
			t.Fatalf("seed %d: without pods, %v and %v are kept", seed, o.pods, o.members)
		}
	}
}

// A process that does not lead keeps no names of pods that were wrong and are gone, however many come,
// and neither does one that leads no more; who leads then is told what is wrong by then.
func TestStandbyKeepsNothingOfPodsThatAreGone(t *testing.T) {
	o := newObjects("west", vip.DefaultRanges(), func() {})
	churn := func(life string) {
		for i := range 1000 {
			pod := key(discovery.KindWorkload, fmt.Sprintf("demo/%s-%d", life, i))
			o.Apply(discovery.Change{Key: pod, Faults: []discovery.Problem{{Field: "status.podIP", Value: "x", Message: "is no address"}}})
			o.Apply(discovery.Change{Key: pod})
		}
		for range 2000 {
			o.again(notices.Object{Kind: notices.Pod, Namespace: "demo", Name: life})
		}
	}
	churn("standby")
	if n := len(o.news); n != 0 {
		t.Errorf("before it ever led: %d names are kept", n)
	}
	stays := key(discovery.KindWorkload, "demo/stays")
	o.Apply(discovery.Change{Key: stays, Faults: []discovery.Problem{{Field: "status.podIP", Value: "x", Message: "is no address"}}})
	o.everything()
	if said := o.take(); len(said) != 1 || len(said[notices.Object{Kind: notices.Pod, Namespace: "demo", Name: "stays"}]) != 1 {
		t.Errorf("who begins to lead is told of %d objects; want the pod that is wrong alone", len(said))
	}
	o.Apply(discovery.Change{Key: stays})
	if said := o.take(); len(said) != 1 {
		t.Errorf("who leads is told %v; want that the pod is well", said)
	}
	churn("led")
	o.rest()
	churn("after")
	if n := len(o.news); n != 0 {
		t.Errorf("after it led: %d names are kept", n)
	}
}
