package excerpt

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/isthmus-mesh/isthmus/discovery"
	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/policy"
)

const (
	modelNetwork = "east"
	modelNode    = "n0"
)

// view is a Builder and what it has built.
type view struct {
	b    *discovery.Builder
	snap *mesh.Snapshot
}

func newView() *view {
	v := &view{b: discovery.NewBuilder(0)}
	v.snap, _, _ = v.b.Commit()
	return v
}

func (v *view) apply(c ...discovery.Change) (changes discovery.Changes, news discovery.News) {
	v.b.Apply(c...)
	v.snap, changes, news = v.b.Commit()
	return changes, news
}

// replica is a gateway: what it has heard of the cluster, which comes late.
type replica struct {
	*view
	index *Index
	heard int  // changes of the world
	knows bool // that it has all policies
}

// world is a cluster, its gateways and one node proxy.
type world struct {
	t       *testing.T
	r       *rand.Rand
	now     time.Time
	log     []discovery.Change // of the cluster, all of them
	objects map[discovery.Key]discovery.Record
	etcd

	replicas []*replica
	leader   *replica // nil: none
	reader   *Reader
	pending  []*pb.Excerpt // on its way to the node proxy

	held    *Held
	follows map[string]bool
	node    *view
	steps   []string
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, r: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1e9, 0), objects: map[discovery.Key]discovery.Record{}, follows: map[string]bool{}, node: newView(),
		etcd: etcd{version: 1, newest: map[string]uint64{}, dead: map[string]uint64{}, deleted: map[string]uint64{}},
		held: NewHeld(modelNetwork, modelNode, "cluster.local")}
	w.say(discovery.Change{Key: discovery.Key{Kind: discovery.KindNetwork, Name: modelNetwork}, Record: discovery.Network{Name: modelNetwork}})
	w.say(discovery.Change{Key: discovery.Key{Kind: discovery.KindNetwork, Name: "west"}, Record: discovery.Network{Name: "west"}})
	for range 3 {
		w.replicas = append(w.replicas, nil)
		w.restart(len(w.replicas) - 1)
	}
	return w
}

// say is a change of the cluster.
func (w *world) say(c discovery.Change) {
	if c.Record == nil {
		delete(w.objects, c.Key)
	} else {
		w.objects[c.Key] = c.Record
	}
	w.log = append(w.log, c)
	w.versions = append(w.versions, w.version)
}

// restart makes a gateway one that has just read the cluster, at some moment lately.
func (w *world) restart(i int) {
	g := &replica{view: newView(), heard: max(2, w.quiet, len(w.log)-w.r.IntN(6))}
	if old := w.replicas[i]; old != nil && w.leader == old {
		w.lead(nil)
	}
	g.knows = w.r.IntN(3) > 0
	g.apply(append(slices.Clone(w.log[:g.heard]), w.rootOf(g)...)...)
	g.index = NewIndex(modelNetwork, g.snap)
	g.index.AwaitCluster()
	w.replicas[i] = g
}

// hear brings a gateway n changes further.
func (w *world) hear(g *replica, n int) {
	to := min(len(w.log), g.heard+n)
	news := slices.Clone(w.log[g.heard:to])
	g.heard = to
	changes, _ := g.apply(append(news, w.rootOf(g)...)...)
	if !changes.Empty() {
		g.index.Revise(g.snap, changes)
	}
}

// lead makes g the gateway that tells the node proxy.
func (w *world) lead(g *replica) {
	if w.reader != nil {
		w.reader.End()
	}
	w.leader, w.reader, w.pending = g, nil, nil
	if g == nil {
		return
	}
	w.held.Lead("gw")
	w.reader = g.index.Add(modelNode, slices.Collect(maps.Keys(w.follows)), func() {})
}

// tell brings what is due, n messages of it.
func (w *world) tell(n int) {
	if w.reader == nil {
		return
	}
	if len(w.pending) == 0 {
		w.pending = w.reader.Take()
	}
	for ; n > 0 && len(w.pending) > 0; n-- {
		body, err := proto.Marshal(w.pending[0])
		if err != nil {
			w.t.Fatal(err)
		}
		m := &pb.Excerpt{}
		if err := proto.Unmarshal(body, m); err != nil {
			w.t.Fatal(err)
		}
		w.pending = w.pending[1:]
		another := w.held.anew
		w.bring(w.held.Prune(func(s string) bool { return w.follows[s] }))
		before, gateways := w.neededStill(), w.node.snap.Gateways(modelNetwork)
		policies := w.policiesOfPods()
		changes, _, err := w.held.Take(m, func(s string) bool { return w.follows[s] }, w.now)
		if err != nil {
			w.t.Fatalf("take: %v", err)
		}
		w.bring(changes)
		if another && !w.held.anew {
			w.checkNothingLost(before)
			for _, g := range gateways {
				w.checkGateway(g)
			}
			w.checkPolicies(policies)
		}
	}
}

func (w *world) bring(changes []discovery.Change) {
	_, news := w.node.apply(changes...)
	w.checkAge()
	for _, p := range news.Appeared {
		_, doubted := w.held.doubted[thing{p.Object.Kind, p.Object.Name}]
		if doubted || p.Object.Kind == discovery.KindService && !w.held.firm(p.Object.Name) {
			continue // two that are in doubt may claim one thing
		}
		w.t.Fatalf("a problem at the node proxy: %s: %s %s\n%s", p.Object, p.Field, p.Message, w.story())
	}
}

func (w *world) story() string { return strings.Join(w.steps[max(0, len(w.steps)-60):], "\n") }

// neededStill lists the pods that the node proxy has and needs by names that mean the same by
// the leader, or nothing: one that leads elsewhere leads elsewhere at once.
func (w *world) neededStill() (uids []string) {
	x := w.leader.index
	for uid, p := range w.held.pods {
		needed := p.Node == modelNode
		for name, t := range w.held.names {
			is := x.resolve(x.snap, name)
			needed = needed || (is == t || is == target{}) && (t.uid == uid || slices.Contains(p.Services, t.host))
		}
		if needed {
			uids = append(uids, uid)
		}
	}
	return uids
}

// checkNothingLost looks whether the first word of another gateway has taken away what a
// gateway still lists that the node proxy needs.
func (w *world) checkNothingLost(before []string) {
	for _, uid := range before {
		for i, g := range w.replicas {
			if p := g.snap.Workload(uid); p != nil && p.Network == modelNetwork && w.node.snap.Workload(uid) == nil {
				w.t.Fatalf("pod %s vanished with a change of the leader, and gateway %d lists it\n%s", uid, i, w.story())
			}
		}
	}
}

// checkGateway looks whether the first word of another gateway has taken away a gateway that some
// gateway still lists, and of whose address no other one has come.
func (w *world) checkGateway(g *mesh.Gateway) {
	for _, x := range w.node.snap.Gateways(modelNetwork) {
		if x.Name == g.Name || x.Federation == g.Federation {
			return
		}
	}
	for i, r := range w.replicas {
		if slices.ContainsFunc(r.snap.Gateways(modelNetwork), func(x *mesh.Gateway) bool { return x.Name == g.Name }) {
			w.t.Fatalf("gateway %s vanished with a change of the leader, and gateway %d lists it\n%s", g.Name, i, w.story())
		}
	}
}

// expected names what the node proxy needs of s: the slow obvious twin of Index and Held.
func (w *world) expected(s *mesh.Snapshot) (out []string) {
	services, pods := map[string]bool{}, map[string]bool{}
	for _, p := range s.Workloads() {
		if p.Network != modelNetwork {
			continue
		}
		if p.Node == modelNode {
			pods[p.UID] = true
			for _, svc := range s.ServicesOf(p.UID) {
				services[svc.Hostname] = true
			}
		}
	}
	for k, r := range w.objects { // of the cluster: what is not of its network, or wrong, is outside
		if p, is := r.(discovery.Workload); is && p.Node == modelNode && (p.Network != modelNetwork || p.Outside) {
			out = append(out, "outside "+k.Name)
		}
	}
	for _, p := range s.ScheduledOn(modelNetwork, modelNode) {
		out = append(out, "scheduled "+p.UID)
		if _, announced := w.held.announced[p.UID]; announced {
			pods[p.UID] = true
		}
	}
	if w.follows[TakenOver] {
		for _, svc := range s.Services() {
			if svc.Takeover && svc.Exported() && slices.ContainsFunc(svc.VIPs, func(a netip.Addr) bool { return a.As16()[12] != 240 }) {
				services[svc.Hostname] = true
			}
		}
	}
	for name := range w.follows {
		svc := s.Service(name)
		if a, err := netip.ParseAddr(name); err == nil {
			svc = s.ServiceAt(a)
			if p := s.WorkloadAt(modelNetwork, a); svc == nil && p != nil {
				pods[p.UID] = true
			}
		}
		if own, ok := strings.CutSuffix(name, ".svc.cluster.local"); svc == nil && ok {
			svc = s.Service(own + ".mesh.internal")
		}
		if svc == nil {
			continue
		}
		services[svc.Hostname] = true
		for _, p := range s.Members(svc, modelNetwork) {
			pods[p.UID] = true
		}
	}
	for _, o := range s.Policies().Objects() {
		if slices.ContainsFunc(slices.Concat(s.Workloads(), s.ScheduledOn(modelNetwork, modelNode)), func(p *mesh.Workload) bool {
			return p.Network == modelNetwork && p.Node == modelNode && s.Policies().Concerns(o, policy.Workload{Namespace: p.Namespace, Labels: p.Labels})
		}) {
			out = append(out, "policy "+o.Text())
		}
	}
	for h := range services {
		out = append(out, "service "+h)
	}
	for p := range pods {
		out = append(out, "pod "+p)
	}
	slices.Sort(out)
	return out
}

// checkQuiet brings everybody up to date and compares.
func (w *world) checkQuiet() {
	for _, g := range w.replicas {
		w.hear(g, len(w.log))
		w.know(g)
	}
	if w.leader == nil {
		w.lead(w.replicas[0])
	}
	w.tell(1000)
	w.tell(1000)
	for range 2 { // what is gone after a while is remembered for a while
		w.now = w.now.Add(LongDoubt)
		w.bring(w.held.Settle(w.now))
	}
	w.bring(w.held.Prune(func(s string) bool { return w.follows[s] }))
	truth, got := w.replicas[0].snap, w.node.snap
	var have []string
	for _, s := range got.Services() {
		have = append(have, "service "+s.Hostname)
		if want := truth.Named(s.Hostname); want != nil && !reflect.DeepEqual(want, s) {
			w.t.Fatalf("service %+v at the node proxy, %+v at the gateway\n%s", s, want, w.story())
		}
	}
	for _, p := range got.Workloads() {
		have = append(have, "pod "+p.UID)
		want := truth.Workload(p.UID)
		if want != nil && want.Node != modelNode { // whose labels are nobody's business
			other := *want
			want, other.Labels = &other, nil
		}
		if a, is := w.held.announced[p.UID]; want != nil && is && a.before != nil { // this node knows better
			other := *want
			want, other.Addresses = &other, a.addresses
		}
		if want != nil { // which ports it has is compared by what leads there
			other := *want
			want, other.Ports = &other, p.Ports
		}
		if want != nil && !reflect.DeepEqual(want, p) {
			w.t.Fatalf("pod %+v at the node proxy, %+v at the gateway\n%s", p, want, w.story())
		}
	}
	for uid := range w.held.scheduled {
		have = append(have, "scheduled "+uid)
	}
	if len(got.ScheduledOn(modelNetwork, modelNode)) > 0 {
		w.t.Fatalf("a pod without an address is in the snapshot of a node proxy\n%s", w.story())
	}
	for _, p := range got.OutsideOn(modelNetwork, modelNode) {
		have = append(have, "outside "+p.UID)
	}
	for _, o := range got.Policies().Objects() {
		have = append(have, "policy "+o.Text())
	}
	if truth.Policies().Root() != got.Policies().Root() {
		w.t.Fatalf("root namespace %q, want %q", got.Policies().Root(), truth.Policies().Root())
	}
	slices.Sort(have)
	if want := w.expected(truth); !slices.Equal(have, want) {
		w.t.Fatalf("the node proxy has\n%v\nwant\n%v\n%s", have, want, w.story())
	}
	for name := range w.follows { // all members of what is followed, and of a local service those that are known
		if svc := truth.Service(name); svc != nil {
			if a, b := members(truth, svc), members(got, svc); !slices.Equal(a, b) {
				w.t.Fatalf("members of %s: %v at the node proxy, %v at the gateway\n%s", name, b, a, w.story())
			}
		}
	}
	for _, p := range truth.OnNode(modelNetwork, modelNode) {
		if a, b := hosts(truth, p.UID), hosts(got, p.UID); !slices.Equal(a, b) {
			w.t.Fatalf("services of local pod %s: %v at the node proxy, %v at the gateway\n%s", p.UID, b, a, w.story())
		}
	}
	if !reflect.DeepEqual(truth.Gateways(modelNetwork), got.Gateways(modelNetwork)) {
		w.t.Fatalf("gateways %v, want %v", got.Gateways(modelNetwork), truth.Gateways(modelNetwork))
	}
	if n := len(w.held.doubted) + len(w.held.early) + len(w.held.withdrawn) + len(w.held.older) + len(w.held.deleted); n > 0 {
		w.t.Fatalf("%d things are in doubt still\n%s", n, w.story())
	}
	w.quiet = len(w.log) // what was before a backup was restored nobody finds any more
	w.restored, w.newest, w.dead = false, map[string]uint64{}, map[string]uint64{}
}

// firmSlowly and localSlowly are the slow obvious twins of Held.firm and Held.local.
func (h *Held) firmSlowly(host string) bool {
	in := func(x thing) bool { _, is := h.doubted[x]; return is }
	if in(thing{discovery.KindService, host}) {
		return false
	}
	for asked, t := range h.names {
		if t.host == host && !in(thing{name: asked}) {
			return true
		}
	}
	for uid, p := range h.pods {
		if p.Node == h.node && slices.Contains(p.Services, host) && !in(thing{discovery.KindWorkload, uid}) {
			return true
		}
	}
	for _, p := range h.early {
		if p.Node == h.node && slices.Contains(p.Services, host) {
			return true
		}
	}
	return false
}

func (h *Held) localSlowly(host string) bool {
	is := func(p discovery.Workload) bool { return p.Node == h.node && slices.Contains(p.Services, host) }
	return slices.ContainsFunc(slices.Collect(maps.Values(h.pods)), is) || slices.ContainsFunc(slices.Collect(maps.Values(h.early)), is)
}

// checkBooks counts anew what Held counts as it comes and goes.
func (w *world) checkBooks() {
	h := w.held
	hosts := slices.Concat(slices.Collect(maps.Keys(h.services)), slices.Collect(maps.Keys(h.backs)), slices.Collect(maps.Keys(h.hosts)))
	for _, host := range hosts {
		if got, want := h.firm(host), h.firmSlowly(host); got != want {
			w.t.Fatalf("service %s is firm: %v, want %v: %+v\n%s", host, got, want, h.backs[host], w.story())
		}
		if got, want := h.local(host), h.localSlowly(host); got != want {
			w.t.Fatalf("service %s is local: %v, want %v: %+v\n%s", host, got, want, h.backs[host], w.story())
		}
	}
	here, bytes := 0, h.base.cost()
	for _, p := range h.pods {
		if bytes += costOfWorkload(p); p.Node == h.node {
			here++
		}
	}
	for _, p := range h.early {
		bytes += costOfWorkload(p)
	}
	for uid, p := range h.scheduled {
		if bytes += costOfWorkload(p); p.Node != h.node || len(p.Addresses) > 0 {
			w.t.Fatalf("%s waits for an address: %+v\n%s", uid, p, w.story())
		}
	}
	for uid := range h.outside {
		bytes += costOfOutside(uid)
	}
	for uid, p := range h.pods {
		if len(p.Addresses) == 0 && w.leader != nil {
			w.t.Fatalf("%s is held without an address\n%s", uid, w.story())
		}
	}
	for _, s := range h.services {
		bytes += costOfService(s)
	}
	for _, p := range h.policies {
		bytes += costOfPolicy(p)
	}
	for _, p := range h.older {
		bytes += costOfPolicy(p.heldPolicy)
	}
	if h.here != here || h.bytes != bytes {
		w.t.Fatalf("%d pods here and %d bytes, want %d and %d\n%s", h.here, h.bytes, here, bytes, w.story())
	}
	if len(h.left) > 0 || h.bound != "" {
		w.t.Fatalf("%v are left out for %q", h.left, h.bound)
	}
}

func members(s *mesh.Snapshot, svc *mesh.Service) (out []string) {
	for _, p := range s.Members(svc, modelNetwork) {
		out = append(out, fmt.Sprint(p.UID, targets(svc, p)))
	}
	return out
}

// targets are where the ports of svc lead at p.
func targets(svc *mesh.Service, p *mesh.Workload) (out []uint16) {
	for _, port := range svc.Ports {
		out = append(out, p.Target(port))
	}
	return out
}

func hosts(s *mesh.Snapshot, uid string) (out []string) {
	for _, svc := range s.ServicesOf(uid) {
		out = append(out, fmt.Sprint(svc.Hostname, targets(svc, s.Workload(uid))))
	}
	return out
}

// step does something at random.
func (w *world) step(pods, services, uid int) (next int) {
	pick := func(n int) int { return w.r.IntN(n) }
	host := func(i int) string { return fmt.Sprintf("s%d.default.svc.cluster.local", i) }
	switch k := pick(27); {
	case k >= 24: // the node proxy hears of an address by its node, or that it is none any more
		i := pick(pods)
		if id := fmt.Sprintf("p%d", i); pick(3) > 0 {
			w.steps = append(w.steps, "address of "+id+" is announced")
			w.bring(w.held.Announce(id, []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(pick(2)), byte(i + 1)})})) // 1: of a sandbox that no gateway knows
		} else {
			w.steps = append(w.steps, "address of "+id+" is forgotten")
			w.bring(w.held.Forget(id))
		}
	case k >= 20:
		w.stepPolicy(pick)
	case k < 6: // a pod comes or changes
		i := pick(pods)
		if pick(3) == 0 {
			uid++
		}
		network := modelNetwork
		if pick(12) == 0 {
			network = []string{"west", "north"}[pick(2)] // nobody lists north
		}
		p := discovery.Workload{UID: fmt.Sprintf("p%d", i), Network: network, Node: fmt.Sprintf("n%d", pick(3)), ServiceAccount: fmt.Sprintf("a%d", pick(3)), Namespace: namespacesOfTests[i%2], Labels: labelsOfTests[pick(3)],
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})}, State: []string{"ready", "ready", "notReady", "serving", "terminating"}[pick(5)]}
		for s := range services {
			if _, there := w.objects[discovery.Key{Kind: discovery.KindService, Name: host(s)}]; there && pick(2) == 0 {
				p.Services = append(p.Services, host(s))
			}
		}
		p.Ports = []discovery.NamedPort{{Name: "web", Port: uint16(8000 + pick(2))}, {Name: "admin", Port: 9000}}
		if pick(4) == 0 {
			p.Scheduled, p.Addresses, p.Services, p.State = true, nil, nil, "notReady"
			p.Outside = pick(3) == 0
		}
		w.steps = append(w.steps, fmt.Sprintf("pod %s on %s %s %s %v scheduled: %v outside: %v", p.UID, p.Network, p.Node, p.State, p.Services, p.Scheduled, p.Outside))
		w.say(discovery.Change{Key: discovery.Key{Kind: discovery.KindWorkload, Name: p.UID}, Record: p})
	case k < 8:
		id := fmt.Sprintf("p%d", pick(pods))
		w.steps = append(w.steps, "pod "+id+" goes")
		w.say(discovery.Change{Key: discovery.Key{Kind: discovery.KindWorkload, Name: id}})
	case k < 10: // a service comes, goes or changes
		i := pick(services)
		c := discovery.Change{Key: discovery.Key{Kind: discovery.KindService, Name: host(i)}}
		if pick(3) > 0 {
			s := discovery.Service{Name: fmt.Sprintf("s%d", i), Namespace: "default", Global: pick(2) == 0, Ports: []discovery.ServicePort{{Port: uint16(80 + pick(2)), TargetPort: 8080}}}
			if name := []string{"", "web", "admin"}[pick(3)]; name != "" {
				s.Ports[0].TargetPort, s.Ports[0].TargetName = 0, name
			}
			if pick(2) == 0 {
				s.VIPs = []netip.Addr{netip.AddrFrom4([4]byte{byte(240 - 230*pick(2)), 240, 0, byte(i + 1)})}
			}
			if pick(2) == 0 {
				s.Aliases = []string{"www.example.com"}
			}
			c.Record = s
		} else {
			for k, r := range w.objects { // of a service that is gone nobody is a member, or there is a problem
				if p, is := r.(discovery.Workload); is && slices.Contains(p.Services, host(i)) {
					p.Services = slices.DeleteFunc(slices.Clone(p.Services), func(s string) bool { return s == host(i) })
					w.say(discovery.Change{Key: k, Record: p})
				}
			}
		}
		w.steps = append(w.steps, fmt.Sprintf("service %d is %+v", i, c.Record))
		w.say(c)
	case k < 11:
		name := fmt.Sprintf("gw%d", pick(3))
		c := discovery.Change{Key: discovery.Key{Kind: discovery.KindGateway, Name: "east/" + name}}
		if pick(2) == 0 {
			i := pick(3) // one may come at the address of another that goes
			at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 168, 0, byte(i)}), 15008)
			for k, r := range w.objects {
				if g, is := r.(discovery.Gateway); is && g.Address == at && g.Name != name {
					w.say(discovery.Change{Key: k})
				}
			}
			c.Record = discovery.Gateway{Name: name, Network: modelNetwork, Address: at, Drained: pick(2) == 0}
		}
		w.steps = append(w.steps, fmt.Sprintf("gateway %s is %+v", name, c.Record))
		w.say(c)
	case k < 14:
		i := pick(len(w.replicas))
		n := pick(4)
		w.steps = append(w.steps, fmt.Sprintf("gateway %d hears %d", i, n))
		w.hear(w.replicas[i], n)
	case k < 15:
		i := pick(len(w.replicas))
		w.steps = append(w.steps, fmt.Sprintf("gateway %d restarts", i))
		w.restart(i)
	case k < 16:
		i := pick(len(w.replicas) + 1)
		w.steps = append(w.steps, fmt.Sprintf("gateway %d leads", i))
		if i == len(w.replicas) {
			w.lead(nil)
		} else {
			w.lead(w.replicas[i])
		}
	case k < 17:
		name := []string{host(pick(services)), host(pick(services)), "www.example.com", "s0.default.mesh.internal", fmt.Sprintf("240.240.0.%d", 1+pick(services)), fmt.Sprintf("10.0.0.%d", 1+pick(pods)), "nosuch.example.com", TakenOver}[pick(8)]
		w.steps = append(w.steps, fmt.Sprintf("%s followed: %v", name, !w.follows[name]))
		if w.follows[name] && name != TakenOver { // who captures does so to its end
			delete(w.follows, name)
			if w.reader != nil {
				w.reader.Unfollow(name)
			}
			if pick(2) == 0 {
				w.bring(w.held.Prune(func(s string) bool { return w.follows[s] }))
			}
		} else {
			w.bring(w.held.Prune(func(s string) bool { return w.follows[s] }))
			w.follows[name] = true
			if w.reader != nil {
				w.reader.Follow(name)
			}
		}
	case k < 19:
		w.steps = append(w.steps, "told")
		w.tell(1 + pick(3))
	default:
		w.now = w.now.Add(time.Duration(pick(12)) * time.Second)
		w.steps = append(w.steps, "time passes")
		w.bring(w.held.Settle(w.now))
	}
	return uid
}

// Whatever happens to pods, services, gateways and streams: when it is quiet a node proxy
// has what it needs of the cluster, and nothing else; and when another gateway leads, that
// takes nothing away that any gateway still lists.
func TestANodeProxyHasWhatItNeedsWhateverHappens(t *testing.T) {
	seeds := manySeeds
	if testing.Short() {
		seeds = min(seeds, 300)
	}
	for seed := range seeds {
		w := newWorld(t, uint64(seed))
		uid := 0
		for range 3 {
			for range 60 {
				uid = w.step(8, 4, uid)
				w.checkBooks()
			}
			w.checkQuiet()
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}
