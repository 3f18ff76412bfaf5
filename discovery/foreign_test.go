package discovery

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// toldMesh is a mesh of own network east, beside which west and another network tell
// what is theirs.
func toldMesh(changes ...Change) *mesh.Snapshot {
	b := NewBuilder(0)
	b.Apply(Change{Key: Key{Kind: KindNetwork, Name: "east"}, Record: Network{Name: "east"}})
	for _, n := range []string{"evil", "west"} {
		b.Apply(Change{Key: Key{Kind: KindNetwork, Source: Told, Name: n}, Record: Network{Name: n}})
	}
	b.Apply(changes...)
	s, _, _ := b.Commit()
	return s
}

func toldShare(network, name string, change func(*Share)) Change {
	s := Share{Network: network, Name: name, Ports: []SharePort{{Port: 80}}, Identities: []string{"spiffe://cluster.local/ns/default/sa/" + network},
		Created: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)}
	if change != nil {
		change(&s)
	}
	return Change{Key: Key{Kind: KindShare, Source: Told, Name: network + "/" + name}, Record: s}
}

func toldGateway(network, name, address string) Change {
	return Change{Key: Key{Kind: KindGateway, Source: Told, Name: network + "/" + name}, Record: Gateway{Name: name, Network: network, Address: netip.MustParseAddrPort(address)}}
}

// Where a network's gateways are it says itself: another one that names the same address
// takes no gateway from it. What whoever runs the mesh has written holds.
func TestANetworkThatNamesTheAddressOfAnotherTakesNoGatewayFromIt(t *testing.T) {
	written := toldGateway("west", "gw-2", "10.2.0.2:15008")
	written.Key.Source = Written
	network := Change{Key: Key{Kind: KindNetwork, Name: "west"}, Record: Network{Name: "west"}}
	s := toldMesh(toldGateway("west", "gw-1", "10.2.0.1:15008"), network, written,
		toldGateway("evil", "gw-1", "10.2.0.1:15008"), toldGateway("evil", "gw-2", "10.2.0.2:15008"))
	if g := s.Gateways("west"); len(g) != 2 {
		t.Errorf("west has %d gateways, want the 2 that it has", len(g))
	}
	if g := s.Gateways("evil"); len(g) != 1 {
		t.Errorf("the other network has %d gateways, want that alone at an address that nobody has written", len(g))
	}
}

const payments = "payments.default.svc.cluster.local"

// What a network tells of a service does not change what clients may ask of another
// network's share of it: each says of itself whatever it likes, and nothing of a third.
func TestANetworkThatSharesAServiceTakesNothingOfItFromAnother(t *testing.T) {
	for name, evil := range map[string]func(*Share){
		"another port":               func(s *Share) { s.Ports = []SharePort{{Port: 9}} },
		"older, and global-only":     func(s *Share) { s.Created, s.Scope = time.Unix(1, 0), "global-only" },
		"older, for one node":        func(s *Share) { s.Created, s.TrafficDistribution = time.Unix(1, 0), "StrictNode" },
		"older, with a port's name":  func(s *Share) { s.Created, s.Ports[0].Name = time.Unix(1, 0), "http" },
		"older, and for its segment": func(s *Share) { s.Created, s.Scope = time.Unix(1, 0), "segment" },
		"as west does":               nil,
	} {
		t.Run(name, func(t *testing.T) {
			alone, both := toldMesh(toldShare("west", "payments", nil)), toldMesh(toldShare("west", "payments", nil), toldShare("evil", "payments", evil))
			was, svc := alone.Named(payments), both.Named(payments)
			if svc == nil {
				t.Fatal("there is no such service any more")
			}
			if _, ok := svc.Port(80); !ok {
				t.Errorf("port 80, which west offers, is gone: %+v", svc.Ports)
			}
			if !svc.Everywhere(payments) {
				t.Errorf("its hostname does not lead to west any more: scope %s", svc.Scope)
			}
			if svc.Distribution != was.Distribution {
				t.Errorf("endpoints come by %s, want %s as west says", svc.Distribution, was.Distribution)
			}
			if !both.Reaches(svc, "east", "west") {
				t.Error("west is out of reach")
			}
		})
	}
}

// Nobody takes the name that a service has by its name and namespace by giving it to
// another one.
func TestAShareTakesNoNameThatAServiceHasByItself(t *testing.T) {
	const name = "payments.default.mesh.internal"
	for what, change := range map[string]func(*Share){
		"an alias":                   func(s *Share) { s.Aliases = []string{name} },
		"a name beside its hostname": func(s *Share) { s.Name, s.Hostname = "payments", "aaa.default.svc.cluster.local" },
		"its hostname":               func(s *Share) { s.Hostname = name },
		"its name and its hostname":  func(s *Share) { s.Name, s.Hostname = "payments", name },
	} {
		s := toldMesh(toldShare("west", "payments", nil), toldShare("evil", "aaa", change))
		if svc := s.Service(name); svc == nil || svc.Hostname != payments {
			t.Errorf("%s: %s leads to %+v, want the service %s that west shares", what, name, svc, payments)
		}
	}
	written := toldShare("west", "aaa", func(s *Share) { s.Aliases = []string{name} })
	written.Key.Source = Written
	network := Change{Key: Key{Kind: KindNetwork, Name: "west"}, Record: Network{Name: "west"}}
	payer := toldShare("west", "payments", nil)
	payer.Key.Source = Written
	if svc := toldMesh(network, written, payer).Service(name); svc == nil || svc.Hostname != payments {
		t.Errorf("an alias that is written: %s leads to %+v, want %s", name, svc, payments)
	}
}

// A network has its services by their name and namespace: under other names, of others
// or from outside the mesh, it has a share of what a record lists, and says so.
func TestANetworkGivesItsServicesNoOtherNames(t *testing.T) {
	const foreign = "www.example.com"
	named := func(s *Share) { s.Hostname = foreign }
	with := func(changes ...Change) (*Builder, *mesh.Snapshot) {
		b := NewBuilder(0)
		b.Apply(Change{Key: Key{Kind: KindNetwork, Name: "east"}, Record: Network{Name: "east"}}, Change{Key: Key{Kind: KindNetwork, Source: Told, Name: "west"}, Record: Network{Name: "west"}})
		b.Apply(changes...)
		s, _, _ := b.Commit()
		return b, s
	}
	b, s := with(toldShare("west", "web", named))
	if svc := s.Service(foreign); svc != nil {
		t.Errorf("%s leads to %+v, which nobody here lists", foreign, svc)
	}
	if p := b.Problems(); len(p) != 1 || p[0].Field != "hostname" || p[0].Value != foreign || p[0].Cause != CauseReference {
		t.Errorf("problems %v, want one of the hostname", p)
	}
	listed := Change{Key: Key{Kind: KindService, Name: "web"}, Record: Service{Name: "web", Hostname: foreign, Global: true, Ports: []ServicePort{{Port: 80}}}}
	b.Apply(listed)
	if s, _, _ = b.Commit(); !slices.Contains(s.Networks(s.Named(foreign)), "west") || len(b.Problems()) > 0 {
		t.Errorf("a service that is listed here has no share of west; problems %v", b.Problems())
	}
	b.Apply(Change{Key: listed.Key})
	if s, _, _ = b.Commit(); s.Service(foreign) != nil {
		t.Errorf("%s is still there when nobody lists it any more", foreign)
	}
	b, s = with(toldShare("west", "web", func(s *Share) { s.Aliases = []string{foreign, "store.default.mesh.internal"} }))
	for _, name := range []string{foreign, "store.default.mesh.internal"} {
		if svc := s.Service(name); svc != nil {
			t.Errorf("%s leads to %s", name, svc.Hostname)
		}
	}
	if s.Service("web.default.mesh.internal") == nil || len(b.Problems()) != 2 {
		t.Errorf("problems %v, want one for each alias", b.Problems())
	}
}

// What a share of the file gives a name to holds against what networks tell.
func TestNamesThatTheFilesSharesGiveHold(t *testing.T) {
	const foreign, derived = "www.example.com", "payments.default.mesh.internal"
	written := toldShare("west", "web", func(s *Share) { s.Hostname, s.Aliases = foreign, []string{derived} })
	written.Key.Source = Written
	s := toldMesh(Change{Key: Key{Kind: KindNetwork, Name: "west"}, Record: Network{Name: "west"}}, written,
		toldShare("evil", "web", func(s *Share) { s.Hostname = foreign }), toldShare("evil", "payments", nil))
	for _, name := range []string{foreign, derived} {
		if svc := s.Service(name); svc == nil || svc.Hostname != foreign || !slices.Equal(s.Networks(svc), []string{"west"}) {
			t.Errorf("%s leads to %+v on %v, want the share of west that is written", name, svc, s.Networks(svc))
		}
	}
	if svc := s.Service(payments); svc == nil || svc.Hostname != payments {
		t.Errorf("%s leads to %+v", payments, svc)
	}
}
