package discovery

import (
	"net/netip"
	"testing"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// What a source has found wrong itself is a problem of the object for as long as the
// source says so, with a record or without, and goes with the object.
func TestFaultsOfASourceAreProblemsOfItsObjects(t *testing.T) {
	key := Key{Kind: KindService, Source: Cluster, Name: "demo/web"}
	fault := []Problem{{Cause: CauseUnsupported, Field: "spec.ports[1].protocol", Value: "UDP", Message: "is not carried"}}
	web := Service{Name: "web", Namespace: "demo", Ports: []ServicePort{{Port: 80}}}
	odd := web
	odd.Ports = nil
	b := NewBuilder(0)
	b.Commit()
	for i, step := range []struct {
		change         Change
		there          bool
		problems       int
		appeared, gone int
	}{
		{Change{key, web, fault}, true, 1, 1, 0},
		{Change{key, web, fault}, true, 1, 0, 0},
		{Change{key, odd, fault}, true, 2, 1, 0}, // and one that follows from the record
		{Change{key, nil, fault}, false, 1, 0, 1},
		{Change{key, web, nil}, true, 0, 0, 1},
		{Change{key, web, fault}, true, 1, 1, 0},
		{Change{Key: key}, false, 0, 0, 1},
		{Change{key, nil, fault}, false, 1, 1, 0},
		{Change{Key: key}, false, 0, 0, 1},
	} {
		b.Apply(step.change)
		s, _, news := b.Commit()
		if there := s.Named("web.demo.svc.cluster.local") != nil; there != step.there || len(b.Problems()) != step.problems || len(news.Appeared) != step.appeared || len(news.Gone) != step.gone {
			t.Errorf("step %d: there %v, problems %v, news %+v; want %+v", i+1, there, b.Problems(), news, step)
		}
		for _, p := range b.Problems() {
			if p.Object != key {
				t.Errorf("step %d: problem of %v, want it of %v", i+1, p.Object, key)
			}
		}
	}
}

// A workload without a node proxy is listed, and nobody is sent there: no connection, no
// capacity, no identity.
func TestWorkloadWithoutANodeProxyIsNeverChosen(t *testing.T) {
	b := NewBuilder(0)
	b.Apply(Change{Key: Key{Kind: KindNetwork, Name: "west"}, Record: Network{Name: "west"}},
		Change{Key: Key{Kind: KindService, Name: "web"}, Record: Service{Name: "web", Global: true, Ports: []ServicePort{{Port: 80}}}})
	put := func(uid, address, protocol string) {
		b.Apply(Change{Key: Key{Kind: KindWorkload, Name: uid}, Record: workloadAt(uid, address, protocol)})
	}
	put("plain", "10.0.0.1", "TCP")
	s, _, _ := b.Commit()
	svc := s.Services()[0]
	members := s.Members(svc, "west")
	if len(members) != 1 || !members[0].Plain || svc.Offer(svc.Ports[0], members).Has(members[0]) {
		t.Errorf("members %+v; want the plain one, and not offered", members)
	}
	if e, ok := mesh.ExportOf(svc, members); ok {
		t.Errorf("exported %+v; want nothing", e)
	}
	put("meshed", "10.0.0.2", "hbone")
	s, _, _ = b.Commit()
	members = s.Members(svc, "west")
	if e, ok := mesh.ExportOf(svc, members); !ok || e.Capacity != 1 || len(e.Identities) != 1 || e.Identities[0].Path() != "/ns/default/sa/meshed" {
		t.Errorf("exported %+v, %v; want the meshed one alone", e, ok)
	}
	put("odd", "10.0.0.3", "QUIC")
	if s, _, _ = b.Commit(); s.Workload("odd").Plain || len(b.Problems()) != 1 || b.Problems()[0].Field != "protocol" {
		t.Errorf("problems %v; want one of the protocol, which counts as left out", b.Problems())
	}
}

func workloadAt(uid, address, protocol string) Workload {
	return Workload{UID: uid, Network: "west", ServiceAccount: uid, Addresses: []netip.Addr{netip.MustParseAddr(address)}, Protocol: protocol, Services: []string{"web.default.svc.cluster.local"}}
}
