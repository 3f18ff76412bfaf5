package wds

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"pgregory.net/rapid"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/policy"
)

const own = "a"

// draw has short names for what rapid draws.
type draw struct{ *rapid.T }

func (d draw) n(most int) int        { return rapid.IntRange(0, most).Draw(d.T, "n") }
func (d draw) yes() bool             { return rapid.Bool().Draw(d.T, "yes") }
func (d draw) of(s ...string) string { return rapid.SampledFrom(s).Draw(d.T, "of") }
func (d draw) some(s ...string) (out []string) {
	for _, x := range s {
		if d.n(2) == 0 {
			out = append(out, x)
		}
	}
	return out
}

var (
	hosts = []string{"s0.n0.svc.cluster.local", "s1.n0.svc.cluster.local", "s2.n1.svc.cluster.local", "www.example.com"}
	words = []string{"", "PreferNetwork", "PreferClose", "PreferSameZone", "PreferSameNode", "PreferRegion", "isthmus/RegionFirst", "Any", "StrictNode"}
)

// change draws a change of one record.
func (d draw) change() discovery.Change {
	gone := d.n(4) == 0
	key := func(kind discovery.Kind, source discovery.Source, name string) discovery.Key {
		return discovery.Key{Kind: kind, Source: source, Name: name}
	}
	var k discovery.Key
	var r discovery.Record
	switch d.n(9) {
	case 0:
		n := d.of("b", "c")
		k, r = key(discovery.KindNetwork, discovery.Cluster, n), discovery.Network{Name: n, Segment: d.of("", "east")}
	case 1, 2:
		i := d.n(3)
		n := []string{own, "b", "b", "c"}[i]
		name := fmt.Sprintf("gw%d", i)
		g := discovery.Gateway{Name: name, Network: n, Address: netip.MustParseAddrPort(fmt.Sprintf("10.9.%d.1:15008", i)), Drained: d.yes(), Group: d.of("", "g1"), Locality: discovery.Locality{Region: d.of("", "eu")}, ServiceAccount: d.of("", "edge/gw")}
		if d.yes() {
			g.MoreAddresses = []netip.AddrPort{netip.MustParseAddrPort(fmt.Sprintf("10.9.%d.2:15008", i)), netip.MustParseAddrPort(fmt.Sprintf("10.9.%d.3:15009", i))}
			g.QUICAddresses = []netip.AddrPort{netip.MustParseAddrPort("10.8.0.1:443")}
			g.TrustDomain = d.of("", "other.example")
		}
		if d.yes() {
			g.FederationAddress = netip.MustParseAddrPort(fmt.Sprintf("10.7.%d.1:15009", i))
			g.Sources = []netip.Prefix{netip.MustParsePrefix("10.7.0.0/24")}
		}
		source := discovery.Told
		if n == own {
			source = discovery.Cluster
		}
		k, r = key(discovery.KindGateway, source, n+"/"+name), g
	case 3, 4:
		i := d.n(3)
		s := discovery.Service{Name: fmt.Sprintf("s%d", i), Namespace: fmt.Sprintf("n%d", i/2), Scope: d.of("", "cluster", "segment", "global", "global-only"), Takeover: d.yes(), TrafficDistribution: d.of(words...), PublishNotReady: d.yes()}
		if s.Takeover && s.Scope == "" {
			s.Takeover = false
		}
		if i == 3 {
			s.Hostname = hosts[i]
		}
		s.Inherited = discovery.Inherited{Namespace: d.of(words...), Mesh: d.of("", "Any")}
		s.Aliases = d.some("x.example.com", "y.example.com")
		for _, v := range d.some("10.96.0.1", "240.0.0.1", "fd00::1") {
			if s.Name == "s0" {
				s.VIPs = append(s.VIPs, netip.MustParseAddr(v))
			}
		}
		s.Ports = []discovery.ServicePort{{Port: 80, Name: d.of("", "http"), TargetPort: uint16(d.n(1) * 8080)}, {Port: 443, TargetName: d.of("", "tls")}}
		if d.yes() {
			s.Ports = append(s.Ports, discovery.ServicePort{Port: 53, Protocol: "UDP"})
		}
		k, r = key(discovery.KindService, discovery.Cluster, s.Name), s
	case 5:
		i := d.n(1)
		s := discovery.Service{Name: fmt.Sprintf("s%d", i), Namespace: "n0", Scope: "global", VIPs: []netip.Addr{netip.MustParseAddr(fmt.Sprintf("241.0.0.%d", i+1))}, Aliases: []string{fmt.Sprintf("s%d.n0.svc.clusterset.local", i)}, Ports: []discovery.ServicePort{{Port: 80, Name: "http"}}}
		k, r = key(discovery.KindService, discovery.Told, "import/"+s.Name), s
	case 6, 7:
		i := d.n(9)
		w := discovery.Workload{UID: fmt.Sprintf("pod-%d", i), Name: d.of("", "web"), Namespace: d.of("n0", "n1"), ServiceAccount: d.of("", "web"), Network: d.of(own, own, own, "b"), Node: d.of("", "n1", "n1", "n2"), Cluster: d.of("", "c1"), State: d.of("", "ready", "notReady", "terminating", "serving"),
			Addresses: []netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.1.0.%d", i+1))}, Protocol: d.of("", "TCP"), Locality: discovery.Locality{Region: d.of("", "eu"), Zone: d.of("", "z1")}}
		if d.yes() {
			w.Addresses = append(w.Addresses, netip.MustParseAddr(fmt.Sprintf("fd01::%d", i+1)))
			c := uint32(d.n(4) + 1)
			w.Capacity = &c
		}
		if w.Network == own { // other networks are listed as remote services: see discovery.Config.ListFor
			w.Services = d.some(hosts...)
		}
		w.Ports = []discovery.NamedPort{{Name: "tls", Port: uint16(8443 + d.n(1))}}
		w.Labels = map[string]string{"app": d.of("x", "y")}
		if w.Node != "" && d.n(3) == 0 {
			w.Scheduled, w.Outside, w.Addresses, w.Services = true, d.yes(), nil, nil
		}
		k, r = key(discovery.KindWorkload, discovery.Cluster, w.UID), w
	case 8:
		n, i := d.of("b", "c"), d.n(2)
		c := uint32(d.n(5))
		s := discovery.Share{Network: n, Name: fmt.Sprintf("s%d", i), Namespace: fmt.Sprintf("n%d", i/2), Scope: d.of("", "segment", "global"), TrafficDistribution: d.of(words...), Capacity: &c, Headless: d.yes(), Affinity: mesh.Affinity(d.of("", "ClientIP")), Ports: []discovery.SharePort{{Port: 80, Name: d.of("", "http")}, {Port: uint16(443 + d.n(1))}}}
		if d.yes() {
			s.Created = time.Unix(1_700_000_000+int64(d.n(3)), 0).UTC()
		}
		if c > 0 {
			s.Identities = append([]string{"spiffe://cluster.local/ns/n0/sa/web"}, d.some("spiffe://cluster.local/ns/n0/sa/api", "spiffe://other.example/ns/n0/sa/web")...)
		}
		k, r = key(discovery.KindShare, discovery.Told, n+"/"+s.Name), s
	default:
		k, r = d.policy()
	}
	if gone {
		return discovery.Change{Key: k}
	}
	return discovery.Change{Key: k, Record: r}
}

// policy draws an AuthorizationPolicy or a PeerAuthentication.
func (d draw) policy() (discovery.Key, discovery.Record) {
	name, ns := d.of("p", "q"), d.of("n0", "n1", "istio-system")
	spec := map[string]any{}
	if d.yes() {
		spec["selector"] = map[string]any{"matchLabels": map[string]any{"app": d.of("x", "y")}}
	}
	kind := d.of(policy.KindAuthorization, policy.KindAuthorization, policy.KindPeerAuthentication)
	if kind == policy.KindPeerAuthentication {
		spec["mtls"] = map[string]any{"mode": d.of("STRICT", "PERMISSIVE", "UNSET")}
		if spec["selector"] != nil && d.yes() {
			spec["portLevelMtls"] = map[string]any{"8080": map[string]any{"mode": d.of("STRICT", "PERMISSIVE")}}
		}
	} else {
		spec["action"] = d.of("ALLOW", "DENY")
		rules := []any{}
		for range d.n(2) {
			rule := map[string]any{}
			if d.yes() {
				from := []any{}
				for range d.n(1) + 1 {
					from = append(from, map[string]any{"source": map[string]any{d.of("principals", "notPrincipals"): []any{d.of("cluster.local/ns/n0/sa/web", "cluster.local/ns/n0/*", "*/sa/web", "*")}, d.of("namespaces", "ipBlocks"): []any{"10.1.0.0/28"}}})
				}
				rule["from"] = from
			}
			if d.yes() {
				rule["to"] = []any{map[string]any{"operation": map[string]any{d.of("ports", "notPorts"): []any{"8080"}}}}
			}
			if d.yes() {
				rule["when"] = []any{map[string]any{"key": d.of("source.ip", "destination.ip"), d.of("values", "notValues"): []any{"10.1.0.1", "10.1.0.3/32"}}, map[string]any{"key": "source.namespace", "values": []any{"n0"}}}
			}
			if d.n(4) == 0 {
				rule["to"] = []any{map[string]any{"operation": map[string]any{"methods": []any{"GET"}}}}
			}
			rules = append(rules, rule)
		}
		spec["rules"] = rules
	}
	tree := map[string]any{"apiVersion": "security.istio.io/v1", "kind": kind, "metadata": map[string]any{"name": name, "namespace": ns, "resourceVersion": strconv.Itoa(d.n(3))}, "spec": spec}
	if kind == policy.KindAuthorization && d.n(4) == 0 {
		tree["metadata"].(map[string]any)["annotations"] = map[string]any{"istio.io/dry-run": "true"}
	}
	return discovery.Key{Kind: discovery.KindPolicy, Source: discovery.Cluster, Name: kind + "/" + ns + "/" + name}, discovery.Policy(tree)
}

// server is a gateway: records, their snapshot, and the resources of it.
type server struct {
	builder *discovery.Builder
	encoder *Encoder
	snap    *mesh.Snapshot
	held    map[Ref]Resource
}

func newServer(changes ...discovery.Change) *server {
	s := &server{builder: discovery.NewBuilder(0), encoder: NewEncoder(own, false), held: map[Ref]Resource{}}
	s.apply(append([]discovery.Change{
		{Key: discovery.Key{Kind: discovery.KindNetwork, Source: discovery.Cluster, Name: own}, Record: discovery.Network{Name: own, Segment: "east"}},
		{Key: discovery.RootNamespaceKey(), Record: discovery.RootNamespace{Name: "istio-system"}},
	}, changes...)...)
	return s
}

func (s *server) apply(changes ...discovery.Change) Batch {
	s.builder.Apply(changes...)
	snap, what, _ := s.builder.Commit()
	b := s.encoder.Update(snap, what)
	s.snap = snap
	s.take(b)
	return b
}

func (s *server) take(b Batch) {
	if b.Whole {
		clear(s.held)
	}
	for _, r := range b.Remove {
		delete(s.held, r)
	}
	for _, r := range b.Put {
		s.held[Ref{r.Type, r.Name}] = r
	}
}

// client is a node proxy: what it holds, and its snapshot.
type client struct {
	node    string
	follows map[string]bool // keys of services
	decoder *Decoder
	builder *discovery.Builder
	held    map[Ref][]byte
	snap    *mesh.Snapshot
}

func newClient(node string) *client {
	c := &client{node: node, follows: map[string]bool{}, decoder: NewDecoder(Config{Network: own, Node: node, TrustDomain: "cluster.local"}), builder: discovery.NewBuilder(0), held: map[Ref][]byte{}}
	return c
}

// sync brings the client to what the server has for it.
func (c *client) sync(t interface{ Fatalf(string, ...any) }, s *server) {
	want := map[string]bool{}
	for _, k := range NodeKeys(s.snap, own, c.node) {
		want[k] = true
	}
	maps.Copy(want, c.follows)
	next := map[Ref]Resource{}
	for ref, r := range s.held {
		if slices.ContainsFunc(r.Keys, func(k string) bool { return want[k] }) {
			next[ref] = r
		}
	}
	byName := func(a, b Ref) int { return strings.Compare(a.Type+a.Name, b.Type+b.Name) }
	for _, ref := range slices.SortedFunc(maps.Keys(next), byName) {
		r := next[ref]
		if old, has := c.held[ref]; has && bytes.Equal(old, r.Body) {
			continue
		}
		c.held[ref] = r.Body
		changes, err := c.decoder.Put(r.Type, r.Name, r.Body)
		if err != nil {
			t.Fatalf("put: %v", err)
		}
		c.builder.Apply(changes...)
	}
	for _, ref := range slices.SortedFunc(maps.Keys(c.held), byName) {
		if _, still := next[ref]; !still {
			delete(c.held, ref)
			c.builder.Apply(c.decoder.Remove(ref.Type, ref.Name)...)
		}
	}
	c.snap, _, _ = c.builder.Commit()
}

func (c *client) follow(service string, on bool) {
	if delete(c.follows, service); on {
		c.follows[service] = true
	}
	c.builder.Apply(c.decoder.Follow(service, on)...)
}

// seen is a service as a node proxy must have it.
func seen(svc *mesh.Service) mesh.Service {
	if svc == nil {
		return mesh.Service{}
	}
	out := *svc
	out.Headless, out.Affinity, out.Created, out.Home, out.ExportDistribution = false, "", 0, false, ""
	return out
}

// seenPod is a workload as a node proxy must have it: with the named ports of its services.
func seenPod(s *mesh.Snapshot, w *mesh.Workload) (out mesh.Workload, targets []uint16) {
	out = *w
	out.Labels, out.Ports = nil, nil
	for _, svc := range s.ServicesOf(w.UID) {
		for _, p := range svc.Ports {
			targets = append(targets, w.Target(p))
		}
	}
	return out, targets
}

func names(list []*mesh.Workload) (out []string) {
	for _, w := range list {
		out = append(out, w.UID)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func hostnames(list []*mesh.Service) (out []string) {
	for _, s := range list {
		out = append(out, s.Hostname)
	}
	return out
}

// agree fails if the client has something else than the server has for it.
func agree(t *rapid.T, s *server, c *client) {
	same := func(what string, got, want any) {
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%s:\n got %+v\nwant %+v\nproblems of the client: %v", what, got, want, c.builder.Problems())
		}
	}
	same("networks", c.snap.AllNetworks(), s.snap.AllNetworks())
	for _, n := range s.snap.ListNetworks() {
		got := c.snap.ListNetworks()[slices.IndexFunc(c.snap.ListNetworks(), func(o mesh.Network) bool { return o.Name == n.Name })]
		same("segment of "+n.Name, got.Segment, n.Segment)
		same("gateways of "+n.Name, c.snap.Gateways(n.Name), s.snap.Gateways(n.Name))
	}
	for key := range c.follows {
		host := key[strings.IndexByte(key, '/')+1:]
		svc, got := s.snap.Named(host), c.snap.Named(host)
		same("service "+host, seen(got), seen(svc))
		if svc == nil {
			continue
		}
		same("members of "+host, names(c.snap.Members(got, own)), names(s.snap.Members(svc, own)))
		for _, w := range s.snap.Members(svc, own) {
			want, _ := seenPod(s.snap, w)
			has, _ := seenPod(c.snap, c.snap.Workload(w.UID))
			same("pod "+w.UID, has, want)
			for _, p := range svc.Ports {
				same("target", c.snap.Workload(w.UID).Target(p), w.Target(p))
			}
		}
		for _, n := range []string{"b", "c"} {
			got, _ := c.snap.Share(got, n)
			var want *mesh.Export
			if x, ok := s.snap.Share(svc, n); ok && (s.snap.Reaches(svc, own, n) || s.snap.Imports(svc, own, n)) {
				want = x.Export
			}
			same(host+" of "+n, got.Export, want)
		}
	}
	for _, svc := range c.snap.Services() {
		if !c.follows[keyOf(svc)] { // of others only the pods of the node are known: they must not pass for all members
			for _, w := range c.snap.Members(svc, own) {
				same("node of "+w.UID+", a member of "+svc.Hostname, w.Node, c.node)
			}
		}
	}
	same("pods of the node", names(c.snap.OnNode(own, c.node)), names(s.snap.OnNode(own, c.node)))
	same("scheduled", names(c.snap.ScheduledOn(own, c.node)), names(s.snap.ScheduledOn(own, c.node)))
	same("outside", names(c.snap.OutsideOn(own, c.node)), names(s.snap.OutsideOn(own, c.node)))
	for _, w := range s.snap.OnNode(own, c.node) {
		want, wantTargets := seenPod(s.snap, w)
		got, targets := seenPod(c.snap, c.snap.Workload(w.UID))
		same("pod "+w.UID, got, want)
		same("services of "+w.UID, hostnames(c.snap.ServicesOf(w.UID)), hostnames(s.snap.ServicesOf(w.UID)))
		same("targets of "+w.UID, targets, wantTargets)
	}
	for _, w := range slices.Concat(s.snap.OnNode(own, c.node), s.snap.ScheduledOn(own, c.node)) {
		has := c.snap.Workload(w.UID)
		if has == nil {
			has = c.snap.Scheduled(w.UID)
		}
		got, want := c.snap.Policies().For(policyWorkload(has)), s.snap.Policies().For(policyWorkload(w))
		for _, conn := range connections {
			same(fmt.Sprintf("decision about %v for %s", conn, w.UID), got.Decide(conn), want.Decide(conn))
			same("dry run", got.DryRun(conn), want.DryRun(conn))
		}
	}
}

// connections are what policies are asked about.
var connections = func() (out []policy.Connection) {
	for _, id := range []string{"", "spiffe://cluster.local/ns/n0/sa/web", "spiffe://cluster.local/ns/n1/sa/web", "spiffe://other.example/ns/n0/sa/api"} {
		for _, from := range []string{"10.1.0.1", "10.2.0.1"} {
			for _, to := range []string{"10.1.0.3:8080", "10.1.0.4:8443"} {
				c := policy.Connection{From: netip.MustParseAddr(from), Destination: netip.MustParseAddrPort(to)}
				if id != "" {
					c.Source = spiffeid.RequireFromString(id)
				}
				out = append(out, c)
			}
		}
	}
	return out
}()

// TestNodeProxyHasWhatGatewayHas: after any changes, resources are those of an encoder that starts now, and a
// node proxy builds from them what the gateway has for it.
func TestNodeProxyHasWhatGatewayHas(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		d := draw{r}
		s, c := newServer(), newClient("n1")
		for range d.n(30) {
			switch d.n(5) {
			case 0:
				i := d.n(3)
				c.follow(ServiceKey(fmt.Sprintf("n%d", i/2), hosts[i]), d.yes())
			case 1:
				s.take(s.encoder.SetUnhealthy(d.of("pod-1", RemoteUID("b", "n0", hosts[0])), d.yes()))
			}
			var changes []discovery.Change
			for range d.n(4) {
				changes = append(changes, d.change())
			}
			s.apply(changes...)
			fresh := NewEncoder(own, false)
			fresh.unhealthy = s.encoder.unhealthy
			want := map[Ref]Resource{}
			for _, x := range fresh.Update(s.snap, discovery.Everything()).Put {
				want[Ref{x.Type, x.Name}] = x
			}
			for ref, x := range s.held {
				if strings.Contains(ref.Name, "/"+strictPrefix) && want[ref].Name == "" {
					want[ref] = x // stays until the next whole update
				}
			}
			for ref, x := range want {
				if got := s.held[ref]; !reflect.DeepEqual(got, x) {
					r.Fatalf("resource %v:\n got %+v\nwant %+v", ref, got, x)
				}
			}
			for ref := range s.held {
				if want[ref].Name == "" {
					r.Fatalf("resource %v is left", ref)
				}
			}
			c.sync(r, s)
			agree(r, s, c)
		}
	})
}
