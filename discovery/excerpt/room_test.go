package excerpt

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/isthmus-mesh/isthmus/discovery"
	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
)

// taken is a Held that a gateway has told to, message by message, as they come from the
// wire.
func taken(t *testing.T, messages ...*pb.Excerpt) (*Held, error) {
	t.Helper()
	h := NewHeld(modelNetwork, modelNode, "cluster.local")
	h.Lead("gw-1")
	return h, take(t, h, messages...)
}

func take(t *testing.T, h *Held, messages ...*pb.Excerpt) error {
	t.Helper()
	for _, m := range messages {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		m := &pb.Excerpt{}
		if err := proto.Unmarshal(b, m); err != nil {
			t.Fatal(err)
		}
		if _, _, err := h.Take(m, all, time.Unix(1e9, 0)); err != nil {
			return err
		}
	}
	return nil
}

func begin() *pb.Excerpt {
	return &pb.Excerpt{Whole: true, Base: &pb.Base{TrustDomain: "cluster.local", Networks: []*pb.ExcerptNetwork{{Name: modelNetwork}}}}
}

func ownPod(i int, services ...string) *pb.ExcerptWorkload {
	return &pb.ExcerptWorkload{Uid: fmt.Sprintf("u%d", i), Namespace: "shop", Node: modelNode, Services: services}
}

// A gateway that was stolen makes up what it likes: a node proxy holds what there is room for,
// and says which bound it was.
func TestAGatewayCannotFillANodeProxy(t *testing.T) {
	long := func(i int) string { return fmt.Sprintf("%0230d.example.com", i) }
	aliases := make([]string, maxListed)
	for i := range aliases {
		aliases[i] = long(i)
	}
	services := make([]string, maxMembers)
	for i := range services {
		services[i] = long(i)
	}
	for what, x := range map[string]struct {
		object func(i int) *pb.Excerpt
		n      int
		bound  string
	}{
		"pods of its node": {func(i int) *pb.Excerpt {
			return &pb.Excerpt{Workloads: []*pb.ExcerptWorkload{ownPod(i)}, End: true}
		}, MaxLocal + 10, "2000 workloads of this node"},
		"large pods of its node": {func(i int) *pb.Excerpt {
			return &pb.Excerpt{Workloads: []*pb.ExcerptWorkload{ownPod(i, services...)}, End: true}
		}, 200, "64 MiB in all"},
		"large services of its pods": {func(i int) *pb.Excerpt {
			s := fmt.Sprintf("s%d.shop.svc.cluster.local", i)
			return &pb.Excerpt{Workloads: []*pb.ExcerptWorkload{ownPod(i, s)}, Services: []*pb.ExcerptService{{Name: fmt.Sprintf("s%d", i), Namespace: "shop", Aliases: aliases}}, End: true}
		}, 400, "64 MiB in all"},
		"services that are followed": {func(i int) *pb.Excerpt {
			s := fmt.Sprintf("s%d.shop.svc.cluster.local", i)
			return &pb.Excerpt{Names: []*pb.ExcerptName{{Asked: s, Service: s}}, Services: []*pb.ExcerptService{{Name: fmt.Sprintf("s%d", i), Namespace: "shop"}}, End: true}
		}, MaxServices + 10, "4000 services"},
	} {
		m := begin()
		m.End = true
		h, err := taken(t, m)
		if err != nil {
			t.Fatal(err)
		}
		for i := range x.n {
			if err := take(t, h, x.object(i)); err != nil {
				t.Fatal(err)
			}
		}
		if h.bytes > MaxBytes || h.here > MaxLocal || len(h.services) > MaxServices+MaxLocal {
			t.Errorf("%s: it holds %d bytes, %d pods of its node, %d services", what, h.bytes, h.here, len(h.services))
		}
		if st := h.Status(); st.LeftOut == 0 || st.Bound != x.bound {
			t.Errorf("%s: %d are left out, for %q; want the bound %q to be named", what, st.LeftOut, st.Bound, x.bound)
		}
	}
}

// A change that never ends is refused, however little each message says.
func TestAChangeThatNeverEndsIsRefused(t *testing.T) {
	for what, m := range map[string]*pb.Excerpt{"nothing": {}, "empty objects": {Names: make([]*pb.ExcerptName, 1000)}, "what is gone": {GoneWorkloads: make([]string, 10_000)}} {
		for i := range m.Names {
			m.Names[i] = &pb.ExcerptName{}
		}
		h, err := taken(t, begin())
		n := 0
		for ; err == nil && n < 200_000; n++ {
			_, _, err = h.Take(m, all, time.Unix(1e9, 0))
		}
		if err == nil || !strings.Contains(err.Error(), "more than 33554432 bytes") {
			t.Errorf("%s: %d messages are staged: %v", what, n, err)
		}
	}
}

// Services of this node's pods have room however many are followed, and what had none is asked
// for once there is.
func TestWhatWasLeftOutIsAskedForWhenThereIsRoom(t *testing.T) {
	now := time.Unix(1e9, 0)
	follows := map[string]bool{}
	h := NewHeld(modelNetwork, modelNode, "cluster.local")
	asked := 0
	k := NewKeeper(h, func(...discovery.Change) {}, func(s string) bool { return follows[s] }, func() time.Time { return now })
	k.Reread = func() { asked++; k.Lead("gw-1") }
	whole := func(n int) {
		m := begin()
		for i := range n {
			s := fmt.Sprintf("s%d.shop.svc.cluster.local", i)
			if follows[s] {
				m.Names = append(m.Names, &pb.ExcerptName{Asked: s, Service: s})
				m.Services = append(m.Services, &pb.ExcerptService{Name: fmt.Sprintf("s%d", i), Namespace: "shop"})
			}
		}
		m.End = true
		if _, err := k.Take(m); err != nil {
			t.Fatal(err)
		}
		if _, err := k.Take(&pb.Excerpt{Services: []*pb.ExcerptService{{Name: "own", Namespace: "shop"}}, Workloads: []*pb.ExcerptWorkload{ownPod(1, "own.shop.svc.cluster.local")}, End: true}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range MaxServices + 5 {
		follows[fmt.Sprintf("s%d.shop.svc.cluster.local", i)] = true
	}
	k.Lead("gw-1")
	whole(MaxServices + 5)
	if _, own := h.services["own.shop.svc.cluster.local"]; !own || h.Status().LeftOut != 5 {
		t.Fatalf("the service of this node's pod is held: %v; %d are left out of %d", own, h.Status().LeftOut, MaxServices+5)
	}
	for range 10 {
		now = now.Add(time.Second)
		k.Tend()
	}
	if asked > 0 {
		t.Fatalf("asked %d times again without room", asked)
	}
	for i := range MaxServices / 5 {
		delete(follows, fmt.Sprintf("s%d.shop.svc.cluster.local", i))
	}
	for range 100 {
		now = now.Add(time.Second)
		k.Tend()
	}
	if asked < 1 || asked > 2 {
		t.Fatalf("asked %d times again in 100 s; want once a minute", asked)
	}
	whole(MaxServices + 5)
	if got := h.Status(); got.LeftOut != 0 || got.Bound != "" || got.Services != len(follows)+1 {
		t.Errorf("%+v; want all %d", got, len(follows)+1)
	}
}

// A service that there was no room for has room once a pod of this node is its member: it is asked
// for then, though the gateway, which has told it, does not tell it again with the pod.
func TestAServiceThatWasLeftOutIsAskedForWhenAPodOfThisNodeIsItsMember(t *testing.T) {
	now := time.Unix(1e9, 0)
	h, asked := NewHeld(modelNetwork, modelNode, "cluster.local"), 0
	k := NewKeeper(h, func(...discovery.Change) {}, all, func() time.Time { return now })
	k.Reread = func() { asked++; k.Lead("gw-1") }
	tell := func(m *pb.Excerpt) {
		t.Helper()
		m.End = true
		if _, err := k.Take(m); err != nil {
			t.Fatal(err)
		}
	}
	pass := func() {
		for range 5 {
			now = now.Add(time.Second)
			k.Tend()
		}
	}
	name := func(i int) string { return fmt.Sprintf("s%d.shop.svc.cluster.local", i) }
	whole := func(pods ...*pb.ExcerptWorkload) {
		m := begin()
		for i := range MaxServices {
			m.Names = append(m.Names, &pb.ExcerptName{Asked: name(i), Service: name(i)})
			m.Services = append(m.Services, &pb.ExcerptService{Name: fmt.Sprintf("s%d", i), Namespace: "shop"})
		}
		tell(m)
		last := &pb.Excerpt{Services: []*pb.ExcerptService{{Name: fmt.Sprintf("s%d", MaxServices), Namespace: "shop"}}}
		last.Names = []*pb.ExcerptName{{Asked: name(MaxServices), Service: name(MaxServices)}}
		last.Workloads = pods
		tell(last)
	}
	k.Lead("gw-1")
	whole()
	elsewhere := ownPod(2, name(MaxServices))
	elsewhere.Node = "n-9"
	tell(&pb.Excerpt{Workloads: []*pb.ExcerptWorkload{ownPod(1, name(0)), elsewhere}})
	if pass(); asked > 0 || h.Status().LeftOut != 1 {
		t.Fatalf("asked %d times again without room; %d are left out, want 1", asked, h.Status().LeftOut)
	}
	pod := ownPod(3, name(MaxServices))
	tell(&pb.Excerpt{Workloads: []*pb.ExcerptWorkload{pod}})
	if pass(); asked != 1 {
		t.Fatalf("a pod of this node is a member of a service that was left out, which is asked for %d times, want once", asked)
	}
	whole(elsewhere, pod)
	if _, held := h.services[name(MaxServices)]; !held || h.Status().LeftOut != 0 {
		t.Errorf("it is held: %v; %d are left out, want none", held, h.Status().LeftOut)
	}
	now = now.Add(rereadEvery)
	if pass(); asked != 1 {
		t.Errorf("it is held, and asked for again")
	}
}

// Another gateway that lists fewer gateways, networks or services takes them away after a
// while alone.
func TestAnotherGatewayTakesNothingAwayAtOnce(t *testing.T) {
	now := time.Unix(1e9, 0)
	h := NewHeld(modelNetwork, modelNode, "cluster.local")
	gateway := func(n byte) discovery.Gateway {
		return discovery.Gateway{Name: fmt.Sprintf("gw-%d", n), Network: modelNetwork, Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 168, 0, n}), 15008)}
	}
	whole := func(networks []string, names []named, gateways ...discovery.Gateway) {
		b := base{trustDomain: "cluster.local", gateways: gateways}
		for _, n := range networks {
			b.networks = append(b.networks, discovery.Network{Name: n})
		}
		c := change{whole: true, base: &b, names: names, services: map[string]discovery.Service{}, pods: ownPods("a")}
		for _, n := range names {
			if n.host != "" {
				c.services[n.host] = discovery.Service{Name: strings.Split(n.host, ".")[0], Namespace: "shop"}
			}
		}
		h.take(c, all, now)
		h.changes()
	}
	var asked, nothing []named
	for i := range 5 {
		n := fmt.Sprintf("s%d.shop.svc.cluster.local", i)
		asked, nothing = append(asked, named{n, target{host: n}}), append(nothing, named{asked: n})
	}
	h.Lead("gw-1")
	whole([]string{"east", "west"}, asked, gateway(1), gateway(2))
	h.Lead("gw-2")
	for range 2 { // and once more
		whole([]string{"east"}, nothing, gateway(2))
		if len(h.base.networks) != 2 || len(h.base.gateways) != 2 || len(h.services) != 5 {
			t.Fatalf("%d networks, %d gateways, %d services; want what the last one listed to stay", len(h.base.networks), len(h.base.gateways), len(h.services))
		}
	}
	if h.mass == "" {
		t.Error("5 of 5 services are missing, and nobody is told")
	}
	h.Settle(now.Add(LongDoubt - time.Second))
	for _, n := range asked {
		if !h.Means(n.asked) {
			t.Errorf("%s means nothing, while much is in doubt", n.asked)
		}
	}
	if len(h.services) != 5 || len(h.base.gateways) != 2 {
		t.Errorf("%d services, %d gateways; want them to be kept while much is in doubt", len(h.services), len(h.base.gateways))
	}
	h.Settle(now.Add(LongDoubt))
	if len(h.base.networks) != 1 || len(h.base.gateways) != 1 || len(h.services) != 0 || len(h.doubted) != 0 {
		t.Errorf("%d networks, %d gateways, %d services, %d in doubt; want 1, 1, 0, 0", len(h.base.networks), len(h.base.gateways), len(h.services), len(h.doubted))
	}
	// One at the same address has taken its place.
	h.Lead("gw-3")
	now = now.Add(time.Hour)
	moved := gateway(2)
	moved.Name = "gw-9"
	whole([]string{"east"}, nil, moved)
	if len(h.base.gateways) != 1 {
		t.Errorf("gateways %v; want the one alone that has the address now", h.base.gateways)
	}
}

// Whatever gateways tell, also what makes no sense together: what is counted as it comes and
// goes is what a look at all of it finds.
func TestBooksAreRightWhateverIsTold(t *testing.T) {
	for seed := range uint64(1000) {
		w := newWorld(t, seed)
		h, pick := w.held, w.r.IntN
		host := func() string { return fmt.Sprintf("s%d.shop.svc.cluster.local", pick(4)) }
		for range 40 {
			c := change{whole: pick(3) == 0, services: map[string]discovery.Service{}, pods: map[string]discovery.Workload{}, scheduled: map[string]discovery.Workload{}}
			if pick(3) == 0 {
				c.base = &base{networks: []discovery.Network{{Name: modelNetwork}}[:pick(2)]}
			}
			for range pick(4) {
				switch n := host(); pick(9) {
				case 6:
					p := discovery.Workload{UID: fmt.Sprintf("p%d", pick(5)), Node: modelNode}
					c.scheduled[p.UID] = p
				case 7:
					h.Announce(fmt.Sprintf("p%d", pick(5)), []netip.Addr{netip.MustParseAddr("10.0.0.1")})
				case 8:
					h.Forget(fmt.Sprintf("p%d", pick(5)))
				case 0:
					c.names = append(c.names, named{host(), target{host: n}})
				case 1:
					c.names = append(c.names, named{asked: n})
				case 2:
					c.services[n] = discovery.Service{Name: n, Aliases: make([]string, pick(3))}
				case 3:
					c.goneServices = append(c.goneServices, n)
				case 4:
					p := discovery.Workload{UID: fmt.Sprintf("p%d", pick(5)), Node: []string{modelNode, "n1"}[pick(2)]}
					for range pick(4) {
						p.Services = append(p.Services, host()) // perhaps twice
					}
					c.pods[p.UID] = p
				case 5:
					c.gonePods = append(c.gonePods, fmt.Sprintf("p%d", pick(5)))
				}
			}
			w.steps = append(w.steps, fmt.Sprintf("%+v", c))
			if pick(4) == 0 {
				h.Lead("gw")
			}
			h.take(c, all, w.now)
			w.checkBooks()
			w.now = w.now.Add(time.Duration(pick(8)) * time.Second)
			h.Settle(w.now)
			w.checkBooks()
			h.Prune(func(asked string) bool { return pick(6) > 0 })
			w.checkBooks()
		}
	}
}

// A node proxy that starts from what it saved has the services of its own pods, however many others it followed.
func TestServicesOfOwnPodsHaveRoomAfterARestart(t *testing.T) {
	m := begin()
	m.Workloads = []*pb.ExcerptWorkload{ownPod(1, "own.shop.svc.cluster.local")}
	m.Services = []*pb.ExcerptService{{Name: "own", Namespace: "shop"}}
	for i := range MaxServices - 1 {
		s := fmt.Sprintf("s%d.shop.svc.cluster.local", i)
		m.Names = append(m.Names, &pb.ExcerptName{Asked: s, Service: s})
		m.Services = append(m.Services, &pb.ExcerptService{Name: fmt.Sprintf("s%d", i), Namespace: "shop"})
	}
	m.End = true
	h, err := taken(t, m)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 { // services of more pods, which need no room of the others
		s := fmt.Sprintf("more%d.shop.svc.cluster.local", i)
		if err := take(t, h, &pb.Excerpt{Workloads: []*pb.ExcerptWorkload{ownPod(2+i, s)}, Services: []*pb.ExcerptService{{Name: fmt.Sprintf("more%d", i), Namespace: "shop"}}, End: true}); err != nil {
			t.Fatal(err)
		}
	}
	if st := h.Status(); st.LeftOut != 0 || st.Services != MaxServices+100 {
		t.Fatalf("it has %d services, %d are left out", st.Services, st.LeftOut)
	}
	data, err := h.Save(time.Unix(1e9, 0))
	if err != nil {
		t.Fatal(err)
	}
	again := NewHeld(modelNetwork, modelNode, "cluster.local")
	if _, _, _, err := again.Restore(data); err != nil {
		t.Fatal(err)
	}
	if st := again.Status(); st.LeftOut != 0 || st.Services != MaxServices+100 {
		t.Errorf("restored, it has %d services, and %d are left out for %q; want what was held", st.Services, st.LeftOut, st.Bound)
	}
}

// So have the pods of its own node, which take no room of the others.
func TestOwnPodsTakeNoRoomOfOthersAfterARestart(t *testing.T) {
	h := NewHeld(modelNetwork, modelNode, "cluster.local")
	put := func(i int, node string) {
		h.putPod(discovery.Workload{UID: fmt.Sprint("pod-", i), Name: fmt.Sprint("pod-", i), Network: modelNetwork, Node: node, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})}})
	}
	for i := range MaxWorkloads {
		put(i, "elsewhere")
	}
	for i := range 200 {
		put(MaxWorkloads+i, modelNode)
	}
	if st := h.Status(); st.LeftOut != 0 || len(h.pods) != MaxWorkloads+200 {
		t.Fatalf("it has %d pods, %d are left out", len(h.pods), st.LeftOut)
	}
	data, err := h.Save(time.Unix(1e9, 0))
	if err != nil {
		t.Fatal(err)
	}
	again := NewHeld(modelNetwork, modelNode, "cluster.local")
	if _, _, _, err := again.Restore(data); err != nil {
		t.Fatal(err)
	}
	if st := again.Status(); st.LeftOut != 0 || len(again.pods) != MaxWorkloads+200 {
		t.Errorf("restored, it has %d pods, and %d are left out for %q; want what was held", len(again.pods), st.LeftOut, st.Bound)
	}
}
