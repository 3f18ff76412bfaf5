package controller

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/controller/imports"
	"github.com/isthmus-mesh/isthmus/controller/vip"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/links"
	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

// said is what a network has proven to export, by hostname.
type said map[string]*record.Export

func (s said) Known(_, service string) (healthstream.Known, bool) {
	x, ok := s[service]
	return healthstream.Known{Offer: x}, ok
}

func (s said) Whole(string) bool { return true }

func offerOf(namespace string) *record.Export {
	return &record.Export{Name: "web", Namespace: namespace, Scope: record.ScopeGlobal, Ports: []record.Port{{Name: "http", Port: 80}}, Capacity: 1,
		Identities: []spiffeid.ID{spiffeid.RequireFromString("spiffe://cluster.local/ns/" + namespace + "/sa/web")}}
}

// What is no name of an object is a problem of the network that says it, and of nobody
// else: neither the ledger nor the API server hears of it.
func TestNamesThatNoObjectCanHaveAreNotImported(t *testing.T) {
	from := said{"web.demo.svc.cluster.local": offerOf("demo")}
	for _, odd := range []string{"a/b.demo.svc.cluster.local", "A_B.demo.svc.cluster.local", "x\u00a0y.demo.svc.cluster.local", "web.A_B.svc.cluster.local", strings.Repeat("a", 64) + ".demo.svc.cluster.local", "web.demo.example.com"} {
		from[odd] = offerOf("demo")
	}
	var changes []healthstream.Change
	for host := range from {
		changes = append(changes, healthstream.Change{Network: "west", Service: host})
	}
	e := newExports(links.Of("east", map[string]keyfile.Link{"west": {}}), "cluster.local", from)
	e.update(changes)
	all := e.all()
	if _, ok := all[vip.Name{Namespace: "demo", Name: "web"}]; !ok || len(all) != 1 {
		t.Errorf("imported are %v; want demo/web alone", all)
	}
	if n := len(e.problems()); n != len(from)-1 {
		t.Errorf("%d problems; want one for each odd name, %d: %q", n, len(from)-1, e.problems())
	}
	for n := range all {
		l := vip.New(vip.DefaultRanges())
		l.Assign(n, []string{"west"}, time.Now())
		if _, odd := vip.Parse(vip.DefaultRanges(), l.String(), time.Now()); len(odd) > 0 {
			t.Errorf("the ledger with %v cannot be read: %v", n, odd)
		}
	}
}

func TestAnotherHostnameOfAServiceTakesNothingFromIt(t *testing.T) {
	from := said{"web.demo.svc.cluster.local": offerOf("demo"), "web.demo.mesh.internal": offerOf("demo")}
	e := newExports(links.Of("east", map[string]keyfile.Link{"west": {}}), "cluster.local", from)
	canonical, other := healthstream.Change{Network: "west", Service: "web.demo.svc.cluster.local"}, healthstream.Change{Network: "west", Service: "web.demo.mesh.internal"}
	e.update([]healthstream.Change{canonical, other})
	delete(from, other.Service)
	e.update([]healthstream.Change{other})
	if len(e.all()) != 1 {
		t.Error("the service is not imported any more, and its canonical hostname is exported")
	}
}

// A service whose identities the link refuses is not imported at zero replicas either, and a
// problem names it. The problem of a service with a part of its identities refused stays at
// zero too. One that the link admits stays imported, as does one that has had no pod yet. An
// export that is withdrawn, and one after it, begin anew.
func TestRefusedExportIsNotImportedAtZero(t *testing.T) {
	foreign := []spiffeid.ID{spiffeid.RequireFromString("spiffe://elsewhere.example/ns/demo/sa/web")}
	web := healthstream.Change{Network: "west", Service: "web.demo.svc.cluster.local"}
	from := said{}
	e := newExports(links.Of("east", map[string]keyfile.Link{"west": {}}), "cluster.local", from)
	for i, step := range []struct {
		identities []spiffeid.ID
		withdrawn  bool
		imported   bool
		problem    bool
	}{
		{nil, false, true, false},
		{offerOf("demo").Identities, false, true, false},
		{nil, false, true, false},
		{foreign, false, false, true},
		{nil, false, false, true},
		{nil, false, false, true},
		{append(offerOf("demo").Identities, foreign...), false, true, true},
		{nil, false, true, true},
		{foreign, false, false, true},
		{nil, true, false, false},
		{nil, false, true, false},
	} {
		if from[web.Service] = offerOf("demo"); step.withdrawn {
			delete(from, web.Service)
		} else {
			from[web.Service].Identities = step.identities
		}
		e.update([]healthstream.Change{web})
		_, imported := e.all()[vip.Name{Namespace: "demo", Name: "web"}]
		problem := strings.Join(e.problems(), " ")
		if imported != step.imported || step.problem != (problem != "") || step.problem && (!strings.Contains(problem, web.Service) || strings.Contains(problem, "is not used") == imported) {
			t.Errorf("step %d: imported %t, problem %q; want %t, %t", i, imported, problem, step.imported, step.problem)
		}
	}
}

// Gateways of a network that differ leave ports without a name, as discovery files may. A
// ServiceImport has all of them, each with a name of its own.
func TestPortsWithoutNamesAreImported(t *testing.T) {
	offer := offerOf("demo")
	offer.Ports = []record.Port{{Name: "http", Port: 80}, {Port: 8080}, {Port: 9090}}
	e := newExports(links.Of("east", map[string]keyfile.Link{"west": {}}), "cluster.local", said{"web.demo.svc.cluster.local": offer})
	e.update([]healthstream.Change{{Network: "west", Service: "web.demo.svc.cluster.local"}})
	name := vip.Name{Namespace: "demo", Name: "web"}
	got, conflicts := imports.Merge(name, e.all()[name])
	want := []imports.Port{{Name: "http", Protocol: "TCP", Port: 80}, {Name: "port-8080", Protocol: "TCP", Port: 8080}, {Name: "port-9090", Protocol: "TCP", Port: 9090}}
	if !slices.Equal(got.Ports, want) || len(conflicts) > 0 {
		t.Errorf("imported ports %v, conflicts %v; want %v", got.Ports, conflicts, want)
	}
}
