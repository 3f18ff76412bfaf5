package route

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"pgregory.net/rapid"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// anyMesh draws a mesh of three networks that lists the pods of all of them.
func anyMesh(t *rapid.T) mesh.Parts {
	networks := []string{"east", "west", "north"}
	parts := mesh.Parts{Members: map[string][]string{}}
	for _, n := range networks {
		parts.Networks = append(parts.Networks, mesh.Network{Name: n, Segment: rapid.SampledFrom([]string{"", "one"}).Draw(t, "segment")})
		for g := range rapid.IntRange(0, 2).Draw(t, "gateways") {
			parts.Gateways = append(parts.Gateways, &mesh.Gateway{Name: fmt.Sprint("gw-", g), Network: n, Drained: rapid.Bool().Draw(t, "drained"), Locality: anyLocality(t)})
		}
	}
	for i := range rapid.IntRange(1, 3).Draw(t, "services") {
		svc := &mesh.Service{Name: fmt.Sprint("s", i), Hostname: fmt.Sprintf("s%d.svc", i), Aliases: []string{fmt.Sprintf("s%d.global", i)},
			Scope:    rapid.SampledFrom([]mesh.Scope{mesh.ScopeCluster, mesh.ScopeSegment, mesh.ScopeGlobal}).Draw(t, "scope"),
			Takeover: rapid.Bool().Draw(t, "takeover"), PublishNotReady: rapid.Bool().Draw(t, "publishNotReady"),
			Distribution: rapid.SampledFrom([]mesh.Distribution{mesh.PreferNetwork, mesh.PreferClose, mesh.RegionFirst, mesh.Any, mesh.StrictNode}).Draw(t, "distribution"),
			Ports:        []mesh.Port{{Service: 80, Target: 8080}, {Service: 81, TargetName: "named"}}}
		parts.Services = append(parts.Services, svc)
	}
	parts.Workloads = append(parts.Workloads, &mesh.Workload{UID: "client", Network: "east", Locality: anyLocality(t), Capacity: 1})
	for i := range rapid.IntRange(0, 30).Draw(t, "pods") {
		w := &mesh.Workload{UID: fmt.Sprintf("p%02d", i), Network: rapid.SampledFrom(networks).Draw(t, "network"), Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})},
			State: mesh.State(rapid.IntRange(0, 3).Draw(t, "state")), Capacity: rapid.Uint32Range(1, 40).Draw(t, "capacity"), Locality: anyLocality(t),
			Identity: spiffeid.RequireFromString("spiffe://x/" + rapid.SampledFrom([]string{"a", "b"}).Draw(t, "identity"))}
		w.Endpoint = mesh.EndpointIDOf(w.Network, w.UID)
		if rapid.Bool().Draw(t, "has the port") {
			w.Ports = []mesh.NamedPort{{Name: "named", Port: uint16(9000 + i)}}
		}
		parts.Workloads = append(parts.Workloads, w)
		for _, svc := range parts.Services {
			if rapid.Bool().Draw(t, "member") {
				parts.Members[svc.Hostname] = append(parts.Members[svc.Hostname], w.UID)
			}
		}
	}
	return parts
}

func anyLocality(t *rapid.T) mesh.Locality {
	return rapid.SampledFrom([]mesh.Locality{{}, {Region: "eu"}, {Region: "eu", Zone: "a"}, {Region: "us", Zone: "a"}}).Draw(t, "locality")
}

// shared returns the same mesh without the pods of other networks than east: for what is
// for others there are the shares that their owners publish.
func shared(full *mesh.Snapshot) *mesh.Snapshot {
	e := full.Edit()
	for _, w := range full.Workloads() {
		if w.Network != "east" {
			e.DeleteWorkload(w.UID)
		}
	}
	for _, svc := range full.Services() {
		var told []mesh.Told
		for _, n := range full.Networks(svc) {
			if x, ok := mesh.ExportOf(svc, full.Members(svc, n)); ok && n != "east" {
				told = append(told, mesh.Told{Network: n, Export: &x})
			}
		}
		e.TellShares(svc.Hostname, told)
	}
	return e.Snapshot(full.Revision + 1)
}

// A share is the same thing whether the pods of its network are listed or its owner has
// told it: every flow goes to the same places, ranked and weighed alike, with the same
// identities.
func TestAShareIsTheSameListedOrTold(t *testing.T) {
	remote, refused := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		full := mesh.NewSnapshot(1, anyMesh(t))
		told := shared(full)
		for _, svc := range full.Services() {
			for _, n := range full.Networks(svc) {
				a, _ := full.Share(svc, n)
				b, ok := told.Share(svc, n)
				if n != "east" && svc.Exported() && (!ok || !reflect.DeepEqual(a, b)) {
					t.Fatalf("share of %s on %s: listed %+v, told %+v", svc.Hostname, n, a, b)
				}
			}
			for _, name := range append([]string{svc.Hostname}, svc.Aliases...) {
				for _, port := range []uint16{80, 81, 82} {
					flow := Flow{Source: full.Workload("client"), Host: name, Port: port}
					p, err := Resolve(full, flow)
					q, terr := Resolve(told, flow)
					if svc.Exported() && kindOf(err) != kindOf(terr) || (err == nil) != (terr == nil) {
						t.Fatalf("%s:%d: listed %v, told %v", name, port, err, terr)
					}
					if !reflect.DeepEqual(p.Candidates, q.Candidates) && len(p.Candidates)+len(q.Candidates) > 0 || p.Authority != q.Authority || p.Port != q.Port {
						t.Fatalf("%s:%d: listed\n%+v\ntold\n%+v", name, port, p, q)
					}
					if slices.ContainsFunc(p.Candidates, func(c Candidate) bool { return c.Network != "" }) {
						remote++
					}
					if err != nil {
						refused++
					}
				}
			}
		}
	})
	if remote == 0 || refused == 0 {
		t.Errorf("%d plans with a share, %d refusals: the draws prove nothing", remote, refused)
	}
}

func kindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return 0
}

// What a network tells holds for clients elsewhere as its owner means it.
func TestAToldScopeHolds(t *testing.T) {
	w := standard()
	full := w.snapshot()
	web := full.Service("web.shop.svc.cluster.local")
	for scope, want := range map[mesh.Scope]bool{mesh.ScopeGlobal: true, mesh.ScopeSegment: false, mesh.ScopeCluster: false} {
		e := shared(full).Edit()
		e.SetNetworks([]mesh.Network{{Name: "east"}, {Name: "west", Segment: "other"}, {Name: "north"}})
		x, _ := mesh.ExportOf(web, full.Members(web, "west"))
		x.Scope = scope
		e.TellShares(web.Hostname, []mesh.Told{{Network: "west", Export: &x}})
		s := e.Snapshot(3)
		p, err := Resolve(s, flow(s, "web.shop.mesh.internal", 80))
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.ContainsFunc(p.Candidates, func(c Candidate) bool { return c.Network == "west" }); got != want {
			t.Errorf("told with scope %s, west is a candidate: %t, want %t", scope, got, want)
		}
	}
}
