package excerpt

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/isthmus-mesh/isthmus/discovery"
	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// cluster is a network of nodes with 30 pods each, of services with ten pods each.
func cluster(pods int) (v *view, records []discovery.Change) {
	records = []discovery.Change{{Key: discovery.Key{Kind: discovery.KindNetwork, Name: modelNetwork}, Record: discovery.Network{Name: modelNetwork}}}
	for s := range max(1, pods/10) {
		host := hostnameOf(fmt.Sprintf("svc-%d", s), "shop")
		records = append(records, discovery.Change{Key: discovery.Key{Kind: discovery.KindService, Name: host}, Record: discovery.Service{Name: fmt.Sprintf("svc-%d", s), Namespace: "shop", Global: s%2 == 0,
			VIPs: []netip.Addr{netip.AddrFrom4([4]byte{240, 240, byte(s >> 8), byte(s)})}, Ports: []discovery.ServicePort{{Name: "http", Port: 80, TargetPort: 8080}}}})
	}
	for p := range pods {
		w := podOf(p, pods)
		records = append(records, discovery.Change{Key: discovery.Key{Kind: discovery.KindWorkload, Name: w.UID}, Record: w})
	}
	v = newView()
	v.apply(records...)
	return v, records
}

func podOf(p, pods int) discovery.Workload {
	return discovery.Workload{UID: fmt.Sprintf("8f2c1d3e-0000-4000-8000-%012d", p), Name: fmt.Sprintf("svc-%d-7d9f8b6c5d-%05d", p%max(1, pods/10), p), Namespace: "shop", ServiceAccount: fmt.Sprintf("sa-%d", p%max(1, pods/10)), Network: modelNetwork, Node: fmt.Sprintf("n%d", p/30),
		Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(p >> 16), byte(p >> 8), byte(p)})}, Locality: discovery.Locality{Region: "eu-central-1", Zone: "eu-central-1a"}, Services: []string{hostnameOf(fmt.Sprintf("svc-%d", p%max(1, pods/10)), "shop")}}
}

// A record that has gone through the wire comes to the same objects.
func TestWhatIsToldIsWhatTheGatewayHas(t *testing.T) {
	two := uint32(2)
	v := newView()
	if _, news := v.apply(
		discovery.Change{Key: discovery.Key{Kind: discovery.KindNetwork, Name: "n"}, Record: discovery.Network{Name: modelNetwork, Segment: "a"}},
		discovery.Change{Key: discovery.Key{Kind: discovery.KindNetwork, Name: "m"}, Record: discovery.Network{Name: "west"}},
		discovery.Change{Key: discovery.Key{Kind: discovery.KindGateway, Name: "g"}, Record: discovery.Gateway{Name: "gw-1", Network: modelNetwork, Address: netip.MustParseAddrPort("192.0.2.1:443"), FederationAddress: netip.MustParseAddrPort("[fd00::1]:15008"),
			ServiceAccount: "mesh/gate", Locality: discovery.Locality{Region: "r", Zone: "z", Subzone: "s"}, Drained: true, Sources: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}},
		discovery.Change{Key: discovery.Key{Kind: discovery.KindService, Name: "s"}, Record: discovery.Service{Name: "web", Namespace: "shop", Hostname: "www.example.com", Aliases: []string{"w"}, VIPs: []netip.Addr{netip.MustParseAddr("240.240.0.1"), netip.MustParseAddr("2001:2::1")},
			Scope: "segment", Takeover: true, PublishNotReady: true, Inherited: discovery.Inherited{Namespace: "PreferClose"},
			Ports:  []discovery.ServicePort{{Name: "a", Port: 80, TargetPort: 8080}, {Name: "b", Port: 81}, {Name: "c", Port: 82, TargetName: "metrics"}, {Name: "d", Port: 53, Protocol: "UDP"}},
			Import: &discovery.Import{Aliases: []string{"web.shop.svc.clusterset.local"}, VIPs: []netip.Addr{netip.MustParseAddr("240.240.0.9"), netip.MustParseAddr("2001:2::9")}, Ports: []discovery.ServicePort{{Name: "a", Port: 80}, {Name: "z", Port: 90}}}}},
		discovery.Change{Key: discovery.Key{Kind: discovery.KindWorkload, Name: "w"}, Record: discovery.Workload{UID: "w1", Name: "web-1", Namespace: "shop", ServiceAccount: "web", Network: modelNetwork, Node: modelNode, Cluster: "c1",
			Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::7")}, Locality: discovery.Locality{Region: "r", Zone: "z", Subzone: "s"}, State: "serving", Capacity: &two, Ports: []discovery.NamedPort{{Name: "metrics", Port: 9090}},
			Services: []string{"www.example.com"}, Protocol: "TCP"}},
	); len(news.Appeared) > 0 {
		t.Fatal(news.Appeared)
	}
	h, got := NewHeld(modelNetwork, modelNode, "cluster.local"), newView()
	h.Lead("gw-1")
	r := NewIndex(modelNetwork, v.snap).Add(modelNode, nil, func() {})
	for _, m := range r.Take() {
		changes, _, err := h.Take(m, func(string) bool { return false }, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if _, news := got.apply(changes...); len(news.Appeared) > 0 {
			t.Errorf("problems %v", news.Appeared)
		}
	}
	for what, pair := range map[string][2]any{
		"gateways": {got.snap.Gateways(modelNetwork), v.snap.Gateways(modelNetwork)}, "services": {got.snap.Services(), v.snap.Services()}, "workloads": {got.snap.Workloads(), v.snap.Workloads()},
		"segment": {got.snap.ListNetworks()[0].Segment, "a"}, "node": {got.snap.Nodes(modelNetwork), []string{modelNode}},
	} {
		if !reflect.DeepEqual(pair[0], pair[1]) {
			t.Errorf("%s: got %+v, want %+v", what, pair[0], pair[1])
		}
	}
}

// A pod that changes wakes the node proxies that use it, and no others.
func TestAChangeElsewhereCostsNothing(t *testing.T) {
	const pods = 3000
	v, _ := cluster(pods)
	x := NewIndex(modelNetwork, v.snap)
	woken := map[int]int{}
	var readers []*Reader
	for n := range 100 {
		readers = append(readers, x.Add(fmt.Sprintf("n%d", n), []string{hostnameOf(fmt.Sprintf("svc-%d", n), "shop")}, func() { woken[n]++ }))
		readers[n].Take()
	}
	clear(woken)
	w := podOf(65, pods) // on n2, of svc-65
	w.State = "notReady"
	changes, _ := v.apply(discovery.Change{Key: discovery.Key{Kind: discovery.KindWorkload, Name: w.UID}, Record: w})
	x.Revise(v.snap, changes)
	if want := map[int]int{2: 1, 65: 1}; !reflect.DeepEqual(woken, want) {
		t.Errorf("woken %v, want %v", woken, want)
	}
	for n, r := range readers {
		messages := r.Take()
		if n != 2 && n != 65 {
			if messages != nil {
				t.Errorf("node %d is told %v", n, messages)
			}
			continue
		}
		if size := proto.Size(messages[0]); len(messages) != 1 || size > 250 || len(messages[0].GetWorkloads()) != 1 {
			t.Errorf("node %d is told %d bytes: %v", n, size, messages)
		}
	}
	for _, r := range readers {
		r.End()
	}
	if n := len(x.readers) + len(x.byNode) + len(x.byName) + len(x.byHost) + len(x.byPod); n > 0 {
		t.Errorf("%d entries are left of readers that have ended", n)
	}
}

// What is too much at once waits; the rest does not.
func TestMuchThatAnotherGatewayDoesNotListIsKeptLonger(t *testing.T) {
	v, records := cluster(90) // nodes n0 to n2
	h, now := NewHeld(modelNetwork, modelNode, "cluster.local"), time.Unix(1e9, 0)
	take := func(x *Index) (gone int) {
		h.Lead("gw")
		for _, m := range x.Add(modelNode, nil, func() {}).Take() {
			changes, _, err := h.Take(m, func(string) bool { return true }, now)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range changes {
				if c.Record == nil {
					gone++
				}
			}
		}
		return gone
	}
	take(NewIndex(modelNetwork, v.snap))
	empty := newView()
	empty.apply(records[0])
	if gone := take(NewIndex(modelNetwork, empty.snap)); gone > 0 || len(h.pods) != 30 || !strings.Contains(h.mass, "does not list 30 of 30 workloads") {
		t.Errorf("%d objects gone at once, %d pods held, %q", gone, len(h.pods), h.mass)
	}
	now = now.Add(LongDoubt - time.Second)
	h.Settle(now)
	if len(h.pods) != 30 {
		t.Errorf("%d pods are held before the doubt has ended", len(h.pods))
	}
	now = now.Add(time.Second)
	if h.Settle(now); len(h.pods)+len(h.services) != 0 || h.mass != "" {
		t.Errorf("%d pods and %d services are held, %q", len(h.pods), len(h.services), h.mass)
	}
}

func TestWhatIsSavedIsRestored(t *testing.T) {
	v, _ := cluster(90)
	host := hostnameOf("svc-8", "shop")
	h := NewHeld(modelNetwork, modelNode, "cluster.local")
	h.Lead("gw-1")
	node := newView()
	for _, m := range NewIndex(modelNetwork, v.snap).Add(modelNode, []string{host}, func() {}).Take() {
		changes, _, err := h.Take(m, func(string) bool { return true }, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		node.apply(changes...)
	}
	at := time.Unix(1e9, 0)
	data, err := h.Save(at)
	if err != nil {
		t.Fatal(err)
	}
	next, got := NewHeld(modelNetwork, modelNode, "cluster.local"), newView()
	changes, asked, when, err := next.Restore(data)
	if err != nil || !when.Equal(at) || !reflect.DeepEqual(asked, []string{host}) || !next.Told() {
		t.Fatalf("asked for %v at %v, %v", asked, when, err)
	}
	got.apply(changes...)
	if !reflect.DeepEqual(got.snap.Workloads(), node.snap.Workloads()) || !reflect.DeepEqual(got.snap.Services(), node.snap.Services()) {
		t.Error("what is restored is not what was held")
	}
	for what, c := range map[string]struct {
		data []byte
		held *Held
		want string
	}{
		"another node":         {data, NewHeld(modelNetwork, "n1", "cluster.local"), `it is of node "n0"`},
		"another network":      {data, NewHeld("west", modelNode, "cluster.local"), `of network "east"`},
		"another trust domain": {data, NewHeld(modelNetwork, modelNode, "example.org"), `in trust domain "cluster.local"`},
		"another format":       {[]byte(strings.Replace(string(data), "cache/1", "cache/9", 1)), NewHeld(modelNetwork, modelNode, "cluster.local"), "its format is"},
		"cut off":              {data[:len(data)-5], NewHeld(modelNetwork, modelNode, "cluster.local"), "damaged"},
		"a bit":                {[]byte(strings.Replace(string(data), "10.0.0.8", "10.0.0.9", 1)), NewHeld(modelNetwork, modelNode, "cluster.local"), "damaged"},
		"something else":       {[]byte("hello"), NewHeld(modelNetwork, modelNode, "cluster.local"), "damaged"},
		"nothing":              {nil, NewHeld(modelNetwork, modelNode, "cluster.local"), "damaged"},
	} {
		if changes, _, _, err := c.held.Restore(c.data); err == nil || !strings.Contains(err.Error(), c.want) || len(changes) > 0 || c.held.Told() {
			t.Errorf("%s: %d changes, %v; want %q", what, len(changes), err, c.want)
		}
	}
}

// Whatever a gateway tells, and whatever is in a cache: no panic, and discovery takes what
// comes of it.
func FuzzTake(f *testing.F) {
	v, _ := cluster(60)
	for _, m := range NewIndex(modelNetwork, v.snap).Add(modelNode, []string{hostnameOf("svc-5", "shop"), "nosuch", "240.240.0.1"}, func() {}).Take() {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, []byte{})
	}
	f.Fuzz(func(t *testing.T, one, two []byte) {
		h, node, now := NewHeld(modelNetwork, modelNode, "cluster.local"), newView(), time.Unix(1e9, 0)
		h.Lead("gw")
		for _, b := range [][]byte{one, two} {
			m := &pb.Excerpt{}
			if proto.Unmarshal(b, m) != nil {
				continue
			}
			changes, _, _ := h.Take(m, func(s string) bool { return len(s)%2 == 0 }, now)
			node.apply(changes...)
			h.Lead("other")
		}
		node.apply(h.Settle(now.Add(LongDoubt))...)
		if data, err := h.Save(now); err != nil {
			t.Errorf("save: %v", err)
		} else if _, _, _, err := NewHeld(modelNetwork, modelNode, "cluster.local").Restore(data); err != nil {
			t.Errorf("restore: %v", err)
		}
		NewHeld(modelNetwork, modelNode, "cluster.local").Restore(one)
		for _, w := range node.snap.Workloads() {
			if w.Network != modelNetwork {
				t.Errorf("a gateway has told of %s on network %s", w.UID, w.Network)
			}
		}
	})
}

var sinkSnapshot *mesh.Snapshot

// A pod of 20 000 changes: what it costs the gateway beside the snapshot, by how many of
// 1000 node proxies use it.
func BenchmarkAPodChanges(b *testing.B) {
	const pods = 20_000
	for _, users := range []int{0, 1, 50, 1000} {
		b.Run(fmt.Sprintf("users=%d", users), func(b *testing.B) {
			v, _ := cluster(pods)
			x := NewIndex(modelNetwork, v.snap)
			var readers []*Reader
			for n := range 1000 {
				var asked []string
				for s := range 20 {
					asked = append(asked, hostnameOf(fmt.Sprintf("svc-%d", 700+(n*7+s)%1000), "shop"))
				}
				if n < users {
					asked[0] = hostnameOf("svc-3", "shop")
				}
				readers = append(readers, x.Add(fmt.Sprintf("n%d", 1+n), asked, func() {}))
				readers[n].Take()
			}
			w := podOf(3, pods)
			bytes, ready := 0, false
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				if ready = !ready; ready {
					w.State = "ready"
				} else {
					w.State = "notReady"
				}
				changes, _ := v.apply(discovery.Change{Key: discovery.Key{Kind: discovery.KindWorkload, Name: w.UID}, Record: w})
				sinkSnapshot = v.snap
				b.StartTimer()
				x.Revise(v.snap, changes)
				for _, r := range readers[:users] {
					for _, m := range r.Take() {
						body, _ := proto.Marshal(m)
						bytes += len(body)
					}
				}
			}
			b.ReportMetric(float64(bytes)/float64(b.N), "bytes/op")
		})
	}
}

// A node proxy that asks for 20 services of a large cluster attaches.
func BenchmarkEverything(b *testing.B) {
	const pods = 20_000
	v, _ := cluster(pods)
	x := NewIndex(modelNetwork, v.snap)
	var asked []string
	for s := range 20 {
		asked = append(asked, hostnameOf(fmt.Sprintf("svc-%d", 100*s), "shop"))
	}
	b.ReportAllocs()
	bytes := 0
	for b.Loop() {
		r := x.Add("n7", asked, func() {})
		for _, m := range r.Take() {
			body, _ := proto.Marshal(m)
			bytes += len(body)
		}
		r.End()
	}
	b.ReportMetric(float64(bytes)/float64(b.N), "bytes/op")
}
