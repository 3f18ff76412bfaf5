package route

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// world is the mesh of these tests: east is where flows start, west and north
// have gateways, island has none. Addresses overlap on purpose.
type world struct {
	workloads []*mesh.Workload
	gateways  []*mesh.Gateway
	services  []*mesh.Service
	members   map[string][]string
}

func (w *world) pod(uid, network, addr string, set ...func(*mesh.Workload)) *world {
	p := &mesh.Workload{
		UID: uid, Network: network, Node: network + "-n1", Addresses: []netip.Addr{netip.MustParseAddr(addr)}, Capacity: 1,
		Identity: identity("web"), Endpoint: mesh.EndpointIDOf(network, uid), Locality: mesh.Locality{Region: network + "-r", Zone: "z1"},
	}
	for _, f := range set {
		f(p)
	}
	w.workloads = append(w.workloads, p)
	return w
}

func (w *world) gateway(name, network, region string, drained bool) *world {
	w.gateways = append(w.gateways, &mesh.Gateway{Name: name, Network: network, Drained: drained, Locality: mesh.Locality{Region: region},
		Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 9, 0, byte(len(w.gateways) + 1)}), 15008), Identity: identity("gateway")})
	return w
}

// service adds one with port 80 → 8080 and 81 → 9090.
func (w *world) service(name string, global bool, d mesh.Distribution, uids ...string) *world {
	s := &mesh.Service{Name: name, Hostname: name + ".shop.svc.cluster.local", Scope: scope(global), Takeover: global, Distribution: d,
		Ports: []mesh.Port{{Name: "http", Service: 80, Target: 8080}, {Name: "admin", Service: 81, Target: 9090}}}
	if global {
		s.Aliases = []string{name + ".shop.mesh.internal"}
	}
	s.VIPs = []netip.Addr{netip.AddrFrom4([4]byte{240, 0, 0, byte(len(w.services) + 1)})}
	w.services = append(w.services, s)
	if w.members == nil {
		w.members = map[string][]string{}
	}
	w.members[s.Hostname] = uids
	return w
}

func (w *world) snapshot() *mesh.Snapshot {
	return mesh.NewSnapshot(1, mesh.Parts{Workloads: w.workloads, Services: w.services, Gateways: w.gateways, Members: w.members})
}

func scope(global bool) mesh.Scope {
	if global {
		return mesh.ScopeGlobal
	}
	return mesh.ScopeCluster
}

func identity(account string) spiffeid.ID {
	return spiffeid.RequireFromString("spiffe://cluster.local/ns/shop/sa/" + account)
}

func notReady(p *mesh.Workload)    { p.State = mesh.NotReady }
func terminating(p *mesh.Workload) { p.State = mesh.Terminating }
func capacity(n uint32) func(*mesh.Workload) {
	return func(p *mesh.Workload) { p.Capacity = n }
}
func account(name string) func(*mesh.Workload) {
	return func(p *mesh.Workload) { p.Identity = identity(name) }
}
func node(name string) func(*mesh.Workload) { return func(p *mesh.Workload) { p.Node = name } }

func standard() *world {
	w := (&world{}).
		pod("client", "east", "10.0.0.1", account("client")).
		pod("e-1", "east", "10.0.0.2").
		pod("e-2", "east", "10.0.0.3", notReady).
		pod("e-3", "east", "10.0.0.4", terminating).
		pod("w-1", "west", "10.0.0.2", account("web2")). // same address as e-1
		pod("w-2", "west", "10.0.0.3", capacity(3)).
		pod("w-3", "west", "10.0.0.4", notReady).
		pod("w-4", "west", "10.0.0.5", terminating).
		pod("n-1", "north", "10.0.0.2", capacity(2)).
		pod("i-1", "island", "10.0.0.2").
		gateway("gw-1", "west", "far", false).
		gateway("gw-2", "west", "east-r", false).
		gateway("gw-3", "west", "east-r", true).
		gateway("gw-1", "north", "far", false)
	return w.
		service("web", true, mesh.PreferNetwork, "e-1", "e-2", "e-3", "w-1", "w-2", "w-3", "w-4", "n-1", "i-1").
		service("any", true, mesh.Any, "e-1", "w-1", "n-1").
		service("private", false, mesh.Any, "e-1", "w-1").
		service("elsewhere", false, mesh.PreferNetwork, "w-1", "w-2").
		service("remote", true, mesh.PreferRegion, "w-1", "w-2", "n-1").
		service("marooned", true, mesh.PreferNetwork, "i-1").
		service("gone", true, mesh.PreferNetwork, "e-2", "e-3", "w-3").
		service("empty", true, mesh.PreferNetwork).
		service("strict", true, mesh.StrictNode, "e-1", "w-1")
}

func flow(s *mesh.Snapshot, host string, port uint16) Flow {
	return Flow{Source: s.Workload("client"), Host: host, Port: port}
}

// wantKind checks that err is an *Error of kind and names the subject.
func wantKind(t *testing.T, what string, err error, kind Kind, subject string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Kind != kind || e.Subject != subject || e.Detail == "" {
		t.Errorf("%s: got %v, want %v about %q", what, err, kind, subject)
	}
}

// describe writes candidates one per line.
func describe(candidates []Candidate) string {
	out := ""
	for _, c := range candidates {
		who := c.Network
		if c.Workload != nil {
			who = c.Workload.UID
		}
		out += fmt.Sprintf("%s capacity=%d rank=%d", who, c.Capacity, c.Rank)
		for _, g := range c.Gateways {
			out += " " + g.Name
		}
		for _, id := range c.Expect {
			out += " " + id.Path()[len("/ns/shop/sa/"):]
		}
		out += "\n"
	}
	return out
}
