package health

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/mesh"
)

var start = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

func gateways(names ...string) (out []Gateway) {
	for i, n := range names {
		out = append(out, Gateway{Name: n, Instance: uint64(i + 1), Counts: Counts{2, 2, 2, 2}})
	}
	return out
}

func network(gateways []Gateway, ejected ...Ejected) Network {
	n := Network{Name: "b", Counts: Counts{2, 2, 2, 2}, Gateways: gateways, Ejected: ejected}
	return n
}

// TestViewListsReadmission: each row is what follows a view in which endpoint 1 is ejected.
func TestViewListsReadmission(t *testing.T) {
	out := Ejected{Endpoint: 1, Cause: record.Witness}
	stale := gateways("gw-1", "gw-2")
	stale[0].Stale = true
	restarted := gateways("gw-1", "gw-2")
	restarted[0].Instance = 9
	allStale := network(stale)
	allStale.State, allStale.Gateways[1].Stale = Stale, true
	further := network(gateways("gw-1", "gw-2"))
	further.Further = 1
	unknown := network(nil)
	unknown.State = Unknown
	one := gateways("gw-1", "gw-2")
	one[0].Stale = true
	for _, x := range []struct {
		what     string
		then     []Network
		returned bool
	}{
		{"ejected no longer", []Network{network(gateways("gw-1", "gw-2"))}, true},
		{"still ejected", []Network{network(gateways("gw-1", "gw-2"), out)}, false},
		{"not ready", []Network{network(gateways("gw-1", "gw-2"), Ejected{Endpoint: 1, Cause: record.NotReady})}, false},
		{"a gateway is no longer alive", []Network{network(one)}, false},
		{"a gateway is gone", []Network{network(gateways("gw-1"))}, false},
		{"a gateway has restarted", []Network{network(restarted)}, false},
		{"all gateways are stale", []Network{allStale}, false},
		{"unknown", []Network{unknown}, false},
		{"perhaps without a name", []Network{further}, false},
		{"named again by none", []Network{further, network(gateways("gw-1", "gw-2"))}, true},
		{"ejected again", []Network{network(gateways("gw-1", "gw-2")), network(gateways("gw-1", "gw-2"), out)}, false},
	} {
		v := View{}.Next(network(gateways("gw-1", "gw-2"), out), start)
		if !slices.Equal(v.Exceptions, []mesh.EndpointID{1}) {
			t.Fatalf("exceptions %v", v.Exceptions)
		}
		for i, n := range x.then {
			v = v.Next(n, start.Add(time.Duration(i+1)*time.Second))
		}
		if _, is := v.Returned[1]; is != x.returned {
			t.Errorf("%s: readmitted %v, want %v", x.what, is, x.returned)
		}
	}
	v := View{}.Next(network(gateways("gw-1"), out), start).Next(network(gateways("gw-1")), start.Add(time.Second))
	if v = v.Next(network(gateways("gw-1")), start.Add(time.Second+ReturnedFor)); len(v.Returned) != 0 {
		t.Errorf("readmitted for longer than %v: %v", ReturnedFor, v.Returned)
	}
}

// TestViewKeepsTimes: a time changes with what it is the time of.
func TestViewKeepsTimes(t *testing.T) {
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	v := View{}.Next(network(gateways("gw-1", "gw-2")), at(0))
	v = v.Next(network(gateways("gw-1", "gw-2")), at(1))
	if v.Turned != at(0) || v.Groups[0][0].Since != at(0) || !v.StaleSince.IsZero() || !v.Usable() {
		t.Errorf("the same again: %+v", v)
	}
	other := gateways("gw-1", "gw-2")
	other[1].Healthy, other[1].HealthyCapacity = 1, 1
	if v = v.Next(network(other), at(2)); v.Turned != at(0) || v.Groups[0][0].Since != at(0) || v.Groups[0][1].Since != at(2) {
		t.Errorf("another report of one gateway: %+v", v)
	}
	n := network(other)
	n.State = Stale
	v = v.Next(n, at(3)).Next(n, at(4))
	if v.StaleSince != at(3) || v.Groups[0][1].Since != at(2) {
		t.Errorf("stale: %+v", v)
	}
	n.State = Unknown
	if v = v.Next(n, at(5)); v.Usable() {
		t.Error("unknown health is used")
	}
}

// TestViewGroupsGateways: gateways of one group are together, one that reports nothing is in none.
func TestViewGroupsGateways(t *testing.T) {
	list := gateways("gw-1", "gw-2", "gw-3", "gw-4")
	list[0].Group, list[2].Group, list[3].Unknown = "east", "east", true
	v := View{}.Next(network(list), start)
	var got [][]string
	for _, g := range v.Groups {
		var names []string
		for _, a := range g {
			names = append(names, a.Name)
		}
		got = append(got, names)
	}
	if want := [][]string{{"gw-1", "gw-3"}, {"gw-2"}}; !reflect.DeepEqual(got, want) {
		t.Errorf("groups %v, want %v", got, want)
	}
}

// TestViewOfMerge: after any reports, Exceptions and Absent are the endpoints that Merge ejects, by cause, and an
// endpoint is readmitted only if an earlier view had it among the exceptions.
func TestViewOfMerge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var v View
		ejected := map[mesh.EndpointID]bool{}
		for i := range rapid.IntRange(1, 8).Draw(t, "steps") {
			m := ledger.Merge(drawDeliveries(t))
			v = v.Next(FromMerge("b", m, nil, 0), start.Add(time.Duration(i)*time.Second))
			var faults, absent []mesh.EndpointID
			for _, x := range m.Exceptions {
				if (Ejected{Cause: x.Cause}).Fault() {
					faults = append(faults, x.Endpoint)
					ejected[x.Endpoint] = true
				}
			}
			for _, x := range m.Exceptions {
				if !slices.Contains(faults, x.Endpoint) {
					absent = append(absent, x.Endpoint)
				}
			}
			slices.Sort(faults)
			slices.Sort(absent)
			if faults, absent = slices.Compact(faults), slices.Compact(absent); !slices.Equal(v.Exceptions, faults) || !slices.Equal(v.Absent, absent) {
				t.Fatalf("exceptions %v and absent %v, want %v and %v", v.Exceptions, v.Absent, faults, absent)
			}
			for id := range v.Returned {
				if !ejected[id] || slices.Contains(v.Exceptions, id) {
					t.Fatalf("endpoint %s is readmitted", id)
				}
			}
		}
	})
}
