package wds

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	pb "github.com/isthmus-mesh/isthmus/control/wds/wdspb"
	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/policy"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// answers reads the resources of a file.
func answers(t testing.TB, file string) (out []Resource) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range strings.Split(string(b), "\n---\n") {
		m := &pb.Address{}
		if err := prototext.Unmarshal([]byte(text), m); err != nil {
			t.Fatal(err)
		}
		name := m.GetWorkload().GetUid()
		if s := m.GetService(); s != nil {
			name = ServiceKey(s.GetNamespace(), s.GetHostname())
		}
		out = append(out, Resource{Type: TypeAddress, Name: name, Body: marshal(m)})
	}
	return out
}

// TestIstiodRecords: istiod.out.json are the records of istiod.in.txtpb.
func TestIstiodRecords(t *testing.T) {
	config := Config{Network: "net-a", Node: "n1", TrustDomain: "cluster.local", Istiod: true, Lookup: func(host string) []netip.Addr { return []netip.Addr{netip.MustParseAddr("10.9.0.7")} }}
	list := answers(t, "testdata/istiod.in.txtpb")
	var first []byte
	for turn := range 2 { // the order does not matter
		d, b := NewDecoder(config), discovery.NewBuilder(0)
		b.Apply(d.Start()...)
		d.Follow(Everything, true)
		records := map[string]any{}
		for _, r := range list {
			changes, err := d.Put(r.Type, r.Name, r.Body)
			if err != nil {
				t.Fatal(err)
			}
			b.Apply(changes...)
			for _, c := range changes {
				if delete(records, c.Key.String()); c.Record != nil || len(c.Faults) > 0 {
					records[c.Key.String()] = map[string]any{"record": c.Record, "faults": c.Faults}
				}
			}
		}
		got, err := json.MarshalIndent(records, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if turn == 0 {
			first = append(got, '\n')
			slices.Reverse(list)
			istiodSnapshot(t, b)
		} else if !bytes.Equal(first, append(got, '\n')) {
			t.Errorf("in reverse order:\n%s\nfirst:\n%s", got, first)
		}
	}
	const golden = "testdata/istiod.out.json"
	if *update {
		if err := os.WriteFile(golden, first, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(golden); err != nil || !bytes.Equal(first, want) {
		t.Errorf("got\n%s\nwant\n%s (%v)", first, want, err)
	}
}

// istiodSnapshot checks what a node proxy has of the answers.
func istiodSnapshot(t *testing.T, b *discovery.Builder) {
	t.Helper()
	s, _, _ := b.Commit()
	for _, p := range b.Problems() {
		if p.Field != "waypoint" && p.Field != "hostname" {
			t.Errorf("problem: %v: %v", p.Object, p)
		}
	}
	svc := s.Service("web.demo.svc.cluster.local")
	if svc == nil || s.ServiceAt(netip.MustParseAddr("10.96.0.1")) != svc || svc.Distribution != mesh.PreferSameZone || !svc.Everywhere(svc.Hostname) {
		t.Fatalf("service %+v", svc)
	}
	for uid, targets := range map[string][]uint16{"cluster-a//Pod/demo/web-1": {8080, 19090}, "cluster-a//Pod/demo/web-2": {8081, 0}} {
		w := s.Workload(uid)
		if w == nil || w.Target(svc.Ports[0]) != targets[0] || w.Target(svc.Ports[1]) != targets[1] {
			t.Errorf("workload %s: %+v: want targets %v", uid, w, targets)
		}
	}
	share, ok := s.Share(svc, "net-b")
	if !ok || share.Capacity != 2 || len(share.Identities) != 2 || len(share.Gateways) != 2 || share.Gateways[0].Address.String() != "10.9.0.1:15009" || share.Gateways[1].Address.String() != "10.9.0.7:15008" {
		t.Errorf("remote service %+v with gateways %+v", share.Export, share.Gateways)
	}
	if s.Service("outside.example.com") != nil || s.Workload("cluster-a//Pod/kube-system/dns-1") != nil {
		t.Error("a service that is passed through, or a pod of the node's network, is used")
	}
}

// stripped returns r without our extensions, as a stock istiod would send it.
func stripped(r Resource) Resource {
	switch r.Type {
	case TypeAddress:
		m := &pb.Address{}
		if err := proto.Unmarshal(r.Body, m); err != nil {
			panic(err)
		}
		if w := m.GetWorkload(); w != nil {
			w.Extensions = nil
		} else {
			m.GetService().Extensions = nil
		}
		r.Body = marshal(m)
	case TypeAuthorization:
		m := &pb.Authorization{}
		if err := proto.Unmarshal(r.Body, m); err != nil {
			panic(err)
		}
		m.Extensions = nil
		r.Body = marshal(m)
	}
	return r
}

// TestStockFieldsCarryPoliciesAndMembers: by Istio's fields alone, as a stock ztunnel reads them, pods have the same
// services, targets and state, and connections the same decision.
func TestStockFieldsCarryPoliciesAndMembers(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		d := draw{r}
		var changes []discovery.Change
		for range d.n(40) {
			changes = append(changes, d.change())
		}
		s := newServer(changes...)
		c := Config{Network: own, Node: "n1", TrustDomain: "cluster.local", Istiod: true}
		decoder, b := NewDecoder(c), discovery.NewBuilder(0)
		b.Apply(decoder.Start()...)
		b.Apply(decoder.Follow(Everything, true)...)
		for _, x := range s.held {
			if x.Type != TypeAddress && x.Type != TypeAuthorization {
				continue
			}
			x = stripped(x)
			changes, err := decoder.Put(x.Type, x.Name, x.Body)
			if err != nil && !strings.Contains(x.Name, splitHorizon) && !strings.HasPrefix(x.Name, gatewayPrefix) {
				r.Fatalf("put: %v", err)
			}
			b.Apply(changes...)
		}
		snap, _, _ := b.Commit()
		for _, w := range s.snap.Workloads() {
			if w.Network != own {
				continue
			}
			got := snap.Workload(w.UID)
			if got == nil {
				r.Fatalf("pod %s is missing: %v", w.UID, b.Problems())
			}
			if (got.State == mesh.Ready) != (w.State == mesh.Ready) || got.Identity != w.Identity || got.Plain != w.Plain {
				r.Fatalf("pod %+v: got %+v", w, got)
			}
			if !slices.Equal(hostnames(snap.ServicesOf(w.UID)), hostnames(s.snap.ServicesOf(w.UID))) {
				r.Fatalf("pod %s: services %v", w.UID, hostnames(snap.ServicesOf(w.UID)))
			}
			for i, svc := range s.snap.ServicesOf(w.UID) {
				for j, p := range svc.Ports {
					if port := snap.ServicesOf(w.UID)[i].Ports[j]; got.Target(port) != w.Target(p) || port.Service != p.Service {
						r.Fatalf("pod %s: target of %v is %d, want %d", w.UID, p, got.Target(port), w.Target(p))
					}
				}
			}
			is, want := snap.Policies().For(policyWorkload(got)), s.snap.Policies().For(policyWorkload(w))
			for _, conn := range connections {
				if is.Decide(conn).Allowed() != want.Decide(conn).Allowed() {
					r.Fatalf("pod %s, %v: got %v, want %v", w.UID, conn, is.Decide(conn), want.Decide(conn))
				}
			}
		}
	})
}

// TestStockFieldsReachRemoteService: a remote service has what ztunnel needs for double HBONE, and its gateways
// are endpoints of the service that it names.
func TestStockFieldsReachRemoteService(t *testing.T) {
	s := newServer(remoteWorld()...)
	get := func(name string) *pb.Address {
		m := &pb.Address{}
		if err := proto.Unmarshal(s.held[Ref{TypeAddress, name}].Body, m); err != nil || s.held[Ref{TypeAddress, name}].Name == "" {
			t.Fatalf("resource %s: %v", name, err)
		}
		return m
	}
	w := get("b/SplitHorizonWorkload/n0/s0.n0.svc.cluster.local").GetWorkload()
	gateways := w.GetNetworkGateway().GetHostname()
	if w.GetNetwork() != "b" || len(w.GetAddresses()) != 0 || w.GetCapacity().GetValue() != 3 || w.GetServices()["n0/s0.n0.svc.cluster.local"].GetPorts()[0].GetServicePort() != 80 || w.GetNetworkGateway().GetHboneMtlsPort() != 15008 {
		t.Errorf("remote service %v", w)
	}
	if sans := get("n0/s0.n0.svc.cluster.local").GetService().GetSubjectAltNames(); !slices.Equal(sans, []string{"spiffe://cluster.local/ns/n0/sa/web"}) {
		t.Errorf("subject_alt_names %v", sans)
	}
	service := ServiceKey(gateways.GetNamespace(), gateways.GetHostname())
	if p := get(service).GetService().GetPorts(); len(p) != 1 || p[0].GetServicePort() != 15008 {
		t.Errorf("service of the gateways: ports %v", p)
	}
	for name, healthy := range map[string]bool{"NetworkGateway/b/gw1": true, "NetworkGateway/b/gw2": false} {
		g := get(name).GetWorkload()
		if len(g.GetAddresses()) == 0 || g.GetNamespace() != "edge" || g.GetServices()[service].GetPorts()[0].GetTargetPort() != 15443 || (g.GetStatus() == pb.WorkloadStatus_HEALTHY) != healthy {
			t.Errorf("gateway %v", g)
		}
		if !slices.Contains(s.held[Ref{TypeAddress, name}].Keys, service) {
			t.Errorf("gateway %s is not among the endpoints of %s", name, service)
		}
	}
	s.take(s.encoder.SetUnhealthy(w.GetUid(), true))
	if get(w.GetUid()).GetWorkload().GetStatus() != pb.WorkloadStatus_UNHEALTHY {
		t.Error("a sick remote service is not UNHEALTHY")
	}
}

// remoteWorld has service s0 on networks a and b.
func remoteWorld() []discovery.Change {
	key := func(kind discovery.Kind, source discovery.Source, name string) discovery.Key {
		return discovery.Key{Kind: kind, Source: source, Name: name}
	}
	capacity := uint32(3)
	out := []discovery.Change{
		{Key: key(discovery.KindNetwork, discovery.Cluster, "b"), Record: discovery.Network{Name: "b"}},
		{Key: key(discovery.KindService, discovery.Cluster, "s0"), Record: discovery.Service{Name: "s0", Namespace: "n0", Global: true, VIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, Ports: []discovery.ServicePort{{Port: 80, Name: "http", TargetPort: 8080}}}},
		{Key: key(discovery.KindWorkload, discovery.Cluster, "pod-0"), Record: discovery.Workload{UID: "pod-0", Name: "s0-6d5f8", Namespace: "n0", ServiceAccount: "web", Network: own, Node: "n1", Cluster: "cluster-a", Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.1")}, Services: []string{hosts[0]}, Locality: discovery.Locality{Region: "eu-west-1", Zone: "eu-west-1a"}}},
		{Key: key(discovery.KindShare, discovery.Told, "b/s0"), Record: discovery.Share{Network: "b", Name: "s0", Namespace: "n0", Ports: []discovery.SharePort{{Name: "http", Port: 80}}, Identities: []string{"spiffe://cluster.local/ns/n0/sa/web"}, Capacity: &capacity}},
	}
	for i, drained := range []bool{false, true} {
		name := fmt.Sprintf("gw%d", i+1)
		out = append(out, discovery.Change{Key: key(discovery.KindGateway, discovery.Told, "b/"+name), Record: discovery.Gateway{Name: name, Network: "b", Address: netip.MustParseAddrPort(fmt.Sprintf("10.9.0.%d:15443", i+1)), ServiceAccount: "edge/gw", Drained: drained}})
	}
	return out
}

// TestBadResourceNamesFieldAndSpoilsNoOther: the error has resource, field, value and remedy; what was there stays.
func TestBadResourceNamesFieldAndSpoilsNoOther(t *testing.T) {
	const service, pod, gateway, remote = "n0/s0.n0.svc.cluster.local", "pod-0", "NetworkGateway/b/gw1", "b/SplitHorizonWorkload/n0/s0.n0.svc.cluster.local"
	reextend := func(name string, m proto.Message) func(*pb.Address) {
		return func(a *pb.Address) {
			if w := a.GetWorkload(); w != nil {
				w.Extensions = pack(name, m)
			} else {
				a.GetService().Extensions = pack(name, m)
			}
		}
	}
	for _, x := range []struct {
		name, field string
		spoil       func(*pb.Address)
	}{
		{service, "service.hostname", func(a *pb.Address) { a.GetService().Namespace = "other" }},
		{service, "service.extensions", func(a *pb.Address) { a.GetService().Extensions = nil }},
		{service, "extensions", func(a *pb.Address) { a.GetService().Extensions[0].Config.Value = []byte{0xff} }},
		{service, "service.addresses[0]", func(a *pb.Address) { a.GetService().Addresses[0].Address = []byte{1, 2, 3} }},
		{service, "service.ports[0]", func(a *pb.Address) { a.GetService().Ports[0].ServicePort = 65536 }},
		{service, "service.ports[0]", func(a *pb.Address) { a.GetService().Ports[0].TargetPort = 70000 }},
		{service, "service.name", func(a *pb.Address) { a.GetService().Name = strings.Repeat("x", 3000) }},
		{service, "service.ports", func(a *pb.Address) { a.GetService().Ports = make([]*pb.Port, 5000) }},
		{service, "service.extensions.import.addresses[0]", reextend("ServiceExtension", &pb.ServiceExtension{Import: &pb.Import{Addresses: [][]byte{{1}}}})},
		{service, "service.extensions.import.ports[0]", reextend("ServiceExtension", &pb.ServiceExtension{Import: &pb.Import{Ports: []*pb.Port{{}}}})},
		{service, "service.extensions.ports", reextend("ServiceExtension", &pb.ServiceExtension{Ports: []*pb.ServicePort{{Protocol: "UDP"}}})},
		{service, "type", func(a *pb.Address) { a.Type = nil }},
		{pod, "workload.uid", func(a *pb.Address) { a.GetWorkload().Uid = "other" }},
		{pod, "workload.trust_domain", func(a *pb.Address) { a.GetWorkload().TrustDomain = "other.example" }},
		{pod, "workload.addresses[0]", func(a *pb.Address) { a.GetWorkload().Addresses[0] = nil }},
		{pod, "workload.extensions.ports", reextend("WorkloadExtension", &pb.WorkloadExtension{Ports: []*pb.NamedPort{{Name: "http"}}})},
		{pod, "workload.services.ports", func(a *pb.Address) {
			a.GetWorkload().Services["n0/s0.n0.svc.cluster.local"].Ports = make([]*pb.Port, 5000)
		}},
		{gateway, "workload.extensions.addresses", reextend("Gateway", &pb.Gateway{})},
		{gateway, "workload.extensions.addresses[0]", reextend("Gateway", &pb.Gateway{Addresses: [][]byte{{1}}})},
		{gateway, "workload.extensions.quic[0]", reextend("Gateway", &pb.Gateway{Addresses: [][]byte{{10, 9, 0, 1, 1, 1}}, Quic: [][]byte{{1}}})},
		{gateway, "workload.extensions.federation", reextend("Gateway", &pb.Gateway{Addresses: [][]byte{{10, 9, 0, 1, 1, 1}}, Federation: []byte{1}})},
		{gateway, "workload.extensions.sources", reextend("Gateway", &pb.Gateway{Addresses: [][]byte{{10, 9, 0, 1, 1, 1}}, Sources: [][]byte{{1}}})},
		{remote, "workload.network", func(a *pb.Address) { a.GetWorkload().Network = own }},
		{remote, "workload.extensions.ports", reextend("RemoteService", &pb.RemoteService{Ports: []*pb.NamedPort{{}}})},
		{remote, "identities", reextend("RemoteService", &pb.RemoteService{Identities: []string{strings.Repeat("x", 3000)}})},
	} {
		t.Run(x.name+" "+x.field, func(t *testing.T) {
			s, c := newServer(remoteWorld()...), newClient("n1")
			c.follow(service, true)
			c.sync(t, s)
			m := &pb.Address{}
			if err := proto.Unmarshal(s.held[Ref{TypeAddress, x.name}].Body, m); err != nil {
				t.Fatal(err)
			}
			x.spoil(m)
			changes, err := c.decoder.Put(TypeAddress, x.name, marshal(m))
			var e *Error
			if !errors.As(err, &e) || e.Name != x.name || e.Type != TypeAddress || e.Field != x.field || e.Remedy == "" {
				t.Errorf("error %v: want one of %s at %s", err, x.name, x.field)
			}
			c.builder.Apply(changes...)
			if next, what, _ := c.builder.Commit(); !what.Empty() || next != c.snap {
				t.Errorf("it changed %+v", what)
			}
		})
	}
}

// TestUnreadablePolicyDeniesEverything: it takes the place of the policy, and only in its namespace.
func TestUnreadablePolicyDeniesEverything(t *testing.T) {
	for name, body := range map[string][]byte{
		"no protobuf":          {0xff},
		"another name":         marshal(&pb.Authorization{Name: "x", Namespace: "n0"}),
		"without the object":   marshal(&pb.Authorization{Name: "p", Namespace: "n0"}),
		"object is no JSON":    marshal(&pb.Authorization{Name: "p", Namespace: "n0", Extensions: pack("Policy", &pb.Policy{Object: "{"})}),
		"object of other name": marshal(&pb.Authorization{Name: "p", Namespace: "n0", Extensions: pack("Policy", &pb.Policy{Object: `{"kind":"AuthorizationPolicy","metadata":{"name":"q","namespace":"n0"},"spec":{}}`})}),
		"too large":            bytes.Repeat([]byte{0}, MaxBody+1),
	} {
		d, b := NewDecoder(Config{Network: own, Node: "n1", TrustDomain: "cluster.local"}), discovery.NewBuilder(0)
		changes, err := d.Put(TypeAuthorization, "n0/p", body)
		if e := (*Error)(nil); !errors.As(err, &e) || e.Name != "n0/p" {
			t.Errorf("%s: error %v", name, err)
		}
		b.Apply(changes...)
		s, _, _ := b.Commit()
		for ns, allowed := range map[string]bool{"n0": false, "n1": true} {
			if got := s.Policies().For(policy.Workload{Namespace: ns}).Decide(connections[3]); got.Allowed() != allowed {
				t.Errorf("%s: a connection to %s is %v", name, ns, got)
			}
		}
		b.Apply(d.Remove(TypeAuthorization, "n0/p")...)
		if s, _, _ := b.Commit(); len(s.Policies().Objects()) != 0 {
			t.Errorf("%s: it stays after its removal", name)
		}
	}
}

// TestOddMatchNeverAllows: a match of a stock istiod without a form in Kubernetes, or of a later version.
func TestOddMatchNeverAllows(t *testing.T) {
	port := func(n uint32) *pb.Match { return &pb.Match{DestinationPorts: []uint32{n}} }
	anyone := &pb.Match{Principals: []*pb.StringMatch{{MatchType: &pb.StringMatch_Presence{Presence: &pb.Empty{}}}}}
	for what, rule := range map[string]*pb.Rule{
		"a later way to match":     {Clauses: []*pb.Clause{{Matches: []*pb.Match{{Principals: []*pb.StringMatch{{}}}}}}},
		"a star in a text":         {Clauses: []*pb.Clause{{Matches: []*pb.Match{{Principals: []*pb.StringMatch{{MatchType: &pb.StringMatch_Exact{Exact: "cluster.local/*"}}}}}}}},
		"a star in a negated text": {Clauses: []*pb.Clause{{Matches: []*pb.Match{{NotNamespaces: []*pb.StringMatch{{MatchType: &pb.StringMatch_Prefix{Prefix: "*x"}}}}}}}},
		"no range":                 {Clauses: []*pb.Clause{{Matches: []*pb.Match{{SourceIps: []*pb.IPRange{{Address: []byte{1, 2}}}}}}}},
		"a clause of two kinds":    {Clauses: []*pb.Clause{{Matches: []*pb.Match{anyone, port(8080)}}}},
		"three lists of ports":     {Clauses: []*pb.Clause{{Matches: []*pb.Match{port(8080), port(1)}}, {Matches: []*pb.Match{port(8080), port(2)}}}},
	} {
		for _, action := range []pb.Action{pb.Action_ALLOW, pb.Action_DENY} {
			d, b := NewDecoder(Config{Network: own, Node: "n1", TrustDomain: "cluster.local", Istiod: true}), discovery.NewBuilder(0)
			changes, err := d.Put(TypeAuthorization, "n0/p", marshal(&pb.Authorization{Name: "p", Namespace: "n0", Scope: pb.Scope_NAMESPACE, Action: action, Rules: []*pb.Rule{rule}}))
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
			b.Apply(changes...)
			s, _, _ := b.Commit()
			if got := s.Policies().For(policy.Workload{Namespace: "n0"}).Decide(connections[4]); got.Allowed() {
				t.Errorf("%s of %v: %v is %v", what, action, connections[4], got)
			}
		}
	}
}

// TestMeshOfAnotherNetworkIsRefused: a gateway of another network or trust domain is no source.
func TestMeshOfAnotherNetworkIsRefused(t *testing.T) {
	d := NewDecoder(Config{Network: own, Node: "n1", TrustDomain: "cluster.local"})
	for field, m := range map[string]*pb.Mesh{
		"trust_domain": {TrustDomain: "other.example", Networks: []*pb.Network{{Name: own}}},
		"networks":     {TrustDomain: "cluster.local", Networks: []*pb.Network{{Name: "b"}}},
	} {
		changes, err := d.Put(TypeMesh, MeshName, marshal(m))
		if e := (*Error)(nil); !errors.As(err, &e) || e.Field != field || changes != nil {
			t.Errorf("%s: %v, %v", field, changes, err)
		}
	}
}

// TestSizes states what a resource costs.
func TestSizes(t *testing.T) {
	s := newServer(remoteWorld()...)
	for name, most := range map[string]int{"pod-0": 160, "n0/s0.n0.svc.cluster.local": 300, "b/SplitHorizonWorkload/n0/s0.n0.svc.cluster.local": 380, "NetworkGateway/b/gw1": 230} {
		if n := len(s.held[Ref{TypeAddress, name}].Body); n > most || n == 0 {
			t.Errorf("%s: %d bytes, want at most %d", name, n, most)
		} else {
			t.Logf("%s: %d bytes", name, n)
		}
	}
}

// FuzzPut: no body makes a decoder or the builder behind it panic, and Remove takes back all that Put made.
func FuzzPut(f *testing.F) {
	types := Types()
	s := newServer(remoteWorld()...)
	for ref, r := range s.held {
		f.Add(uint8(slices.Index(types, ref.Type)), ref.Name, r.Body)
		f.Add(uint8(slices.Index(types, ref.Type)), ref.Name, stripped(r).Body)
	}
	for _, r := range answers(f, "testdata/istiod.in.txtpb") {
		f.Add(uint8(slices.Index(types, r.Type)), r.Name, r.Body)
	}
	f.Fuzz(func(t *testing.T, typ uint8, name string, body []byte) {
		for _, istiod := range []bool{false, true} {
			d, b := NewDecoder(Config{Network: own, Node: "n1", TrustDomain: "cluster.local", Istiod: istiod}), discovery.NewBuilder(0)
			b.Apply(d.Start()...)
			d.Follow(Everything, true)
			b.Commit()
			kind := types[int(typ)%len(types)]
			for range 2 {
				changes, err := d.Put(kind, name, body)
				if e := (*Error)(nil); err != nil && (!errors.As(err, &e) || e.Name != name) {
					t.Fatalf("error %v", err)
				}
				b.Apply(changes...)
				b.Commit()
				b.Apply(d.Follow(Everything, false)...)
				b.Apply(d.Follow(Everything, true)...)
			}
			b.Apply(d.Remove(kind, name)...)
			snap, _, _ := b.Commit()
			if list := b.Problems(); len(list) > 0 {
				t.Fatalf("problems are left: %v", list)
			}
			if n := len(snap.Workloads()) + len(snap.Services()) + len(snap.GatewayNetworks()) + len(snap.Policies().Objects()); n > 0 {
				t.Fatalf("%d objects are left", n)
			}
		}
	})
}

// dump is all that a snapshot has, in one text.
func dump(s *mesh.Snapshot) string {
	var b strings.Builder
	for _, w := range slices.Concat(s.Workloads(), s.AllScheduled()) {
		fmt.Fprintf(&b, "%+v %v\n", *w, hostnames(s.ServicesOf(w.UID)))
	}
	for _, svc := range s.Services() {
		fmt.Fprintf(&b, "%+v\n", *svc)
		for _, n := range s.Networks(svc) {
			if x := s.Told(svc, n); x != nil {
				fmt.Fprintf(&b, "%s: %+v\n", n, *x)
			}
		}
	}
	for _, n := range s.AllNetworks() {
		for _, g := range s.Gateways(n) {
			fmt.Fprintf(&b, "%+v\n", *g)
		}
	}
	for _, o := range s.Policies().Objects() {
		fmt.Fprintf(&b, "%s\n", o.Text())
	}
	return b.String()
}

// TestDecoderForgetsNothingAndEverything: after any resources, a decoder has what a new one has of the last ones,
// also where a stock istiod has one object in several resources, and one name becomes another kind of object.
func TestDecoderForgetsNothingAndEverything(t *testing.T) {
	list := answers(t, "testdata/istiod.in.txtpb")
	for _, r := range list[:len(list)-1] { // other objects under the same name, other services of one host name
		m := &pb.Address{}
		if err := proto.Unmarshal(r.Body, m); err != nil {
			t.Fatal(err)
		}
		if s := m.GetService(); s != nil {
			s.SubjectAltNames, s.Canonical = []string{"spiffe://cluster.local/ns/demo/sa/other"}, !s.Canonical
		} else {
			w := m.GetWorkload()
			w.NetworkMode, w.Status = 1-w.NetworkMode, 1-w.Status
			if g := w.GetNetworkGateway(); g != nil {
				g.HboneMtlsPort = 15010
			}
		}
		list = append(list, Resource{Type: r.Type, Name: r.Name, Body: marshal(m)})
	}
	config := Config{Network: "net-a", Node: "n1", TrustDomain: "cluster.local", Istiod: true, Lookup: func(string) []netip.Addr { return []netip.Addr{netip.MustParseAddr("10.9.0.7")} }}
	start := func() (*Decoder, *discovery.Builder) {
		d, b := NewDecoder(config), discovery.NewBuilder(0)
		b.Apply(d.Start()...)
		b.Apply(d.Follow(Everything, true)...)
		return d, b
	}
	rapid.Check(t, func(r *rapid.T) {
		draw := draw{r}
		d, b := start()
		held := map[string]Resource{}
		for range draw.n(30) {
			x := list[draw.n(len(list)-1)]
			if draw.n(3) == 0 {
				delete(held, x.Name)
				b.Apply(d.Remove(x.Type, x.Name)...)
			} else {
				held[x.Name] = x
				changes, err := d.Put(x.Type, x.Name, x.Body)
				if err != nil {
					r.Fatal(err)
				}
				b.Apply(changes...)
			}
			if draw.yes() {
				b.Commit()
			}
		}
		fresh, other := start()
		for _, x := range held {
			changes, err := fresh.Put(x.Type, x.Name, x.Body)
			if err != nil {
				r.Fatal(err)
			}
			other.Apply(changes...)
		}
		got, _, _ := b.Commit()
		want, _, _ := other.Commit()
		if g, w := dump(got), dump(want); g != w {
			r.Fatalf("got\n%s\nwant\n%s", g, w)
		}
		if g, w := fmt.Sprint(b.Problems()), fmt.Sprint(other.Problems()); g != w {
			r.Fatalf("problems %s, want %s", g, w)
		}
		if !slices.Equal(d.Hosts(), fresh.Hosts()) {
			r.Fatalf("host names %v, want %v", d.Hosts(), fresh.Hosts())
		}
	})
}

// TestPoliciesWaitForTheCluster: with awaitCluster none is sent before those of the cluster are known, and then all.
func TestPoliciesWaitForTheCluster(t *testing.T) {
	tree := discovery.Policy{"apiVersion": "security.istio.io/v1", "kind": policy.KindAuthorization, "metadata": map[string]any{"name": "p", "namespace": "n0"}, "spec": map[string]any{"selector": map[string]any{"matchLabels": map[string]any{"app": "x"}}}}
	s := &server{builder: discovery.NewBuilder(0), encoder: NewEncoder(own, true), held: map[Ref]Resource{}}
	s.apply(
		discovery.Change{Key: clusterKey(discovery.KindNetwork, own), Record: discovery.Network{Name: own}},
		discovery.Change{Key: clusterKey(discovery.KindWorkload, "pod-0"), Record: discovery.Workload{UID: "pod-0", Namespace: "n0", Network: own, Node: "n1", Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.1")}, Labels: map[string]string{"app": "x"}}},
		discovery.Change{Key: clusterKey(discovery.KindPolicy, "n0/p"), Record: tree})
	read := func() (*pb.Mesh, []string) {
		m, w := &pb.Mesh{}, &pb.Address{}
		if err := errors.Join(proto.Unmarshal(s.held[Ref{TypeMesh, MeshName}].Body, m), proto.Unmarshal(s.held[Ref{TypeAddress, "pod-0"}].Body, w)); err != nil {
			t.Fatal(err)
		}
		return m, w.GetWorkload().GetAuthorizationPolicies()
	}
	if m, lists := read(); m.GetRootNamespace() != "" || len(lists) > 0 || s.held[Ref{TypeAuthorization, "n0/p"}].Name != "" {
		t.Errorf("before: root namespace %q, pod lists %v", m.GetRootNamespace(), lists)
	}
	b := s.apply(discovery.Change{Key: discovery.RootNamespaceKey(), Record: discovery.RootNamespace{Name: "istio-config", Known: policy.Revisions{Authorizations: 7}}})
	if m, lists := read(); !b.Whole || m.GetRootNamespace() != "istio-config" || m.GetAuthorizationPolicies() != 7 || !slices.Equal(lists, []string{"n0/p"}) || s.held[Ref{TypeAuthorization, "n0/p"}].Name == "" {
		t.Errorf("then: %v, pod lists %v", m, lists)
	}
}
