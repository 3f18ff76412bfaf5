package route

import (
	"errors"
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// What a name leads to depends on the scope of its service and on takeover: to
// the own network alone, to all of them, or to nothing.
func TestScopesAndTakeover(t *testing.T) {
	const host, global = "web.shop.svc.cluster.local", "web.shop.mesh.internal"
	for _, c := range []struct {
		scope        mesh.Scope
		takeover     bool
		host, global string // candidates
	}{
		{mesh.ScopeCluster, false, "e-1", ""},
		{mesh.ScopeSegment, false, "e-1", "e-1 north west"},
		{mesh.ScopeGlobal, false, "e-1", "e-1 north west"},
		{mesh.ScopeGlobal, true, "e-1 north west", "e-1 north west"},
		{mesh.ScopeSegment, true, "e-1 north west", "e-1 north west"},
	} {
		w := standard()
		svc := w.services[0]
		svc.Scope, svc.Takeover = c.scope, c.takeover
		if !svc.Exported() {
			svc.Aliases = nil
		}
		s := w.snapshot()
		ask := func(f Flow) string {
			p, err := Resolve(s, f)
			if e := (*Error)(nil); errors.As(err, &e) {
				return e.Kind.String()
			}
			var who []string
			for _, x := range p.Candidates {
				if x.Workload != nil {
					who = append(who, x.Workload.UID)
				} else {
					who = append(who, x.Network)
				}
			}
			if p.Authority != host+":80" {
				t.Errorf("the authority is %s", p.Authority)
			}
			return strings.Join(who, " ")
		}
		vip := Flow{Source: s.Workload("client"), Host: svc.VIPs[0].String(), Port: 80}
		if got := ask(flow(s, "WEB.shop.svc.cluster.local.", 80)); got != c.host {
			t.Errorf("%s, takeover %t: the hostname leads to %q, want %q", c.scope, c.takeover, got, c.host)
		}
		if got := ask(vip); got != c.host {
			t.Errorf("%s, takeover %t: the virtual address leads to %q, want %q", c.scope, c.takeover, got, c.host)
		}
		if c.global != "" {
			if got := ask(flow(s, global, 80)); got != c.global {
				t.Errorf("%s, takeover %t: the global name leads to %q, want %q", c.scope, c.takeover, got, c.global)
			}
		}
		if _, err := Export(s, "west", host+":80"); (err == nil) != svc.Exported() {
			t.Errorf("%s: a gateway says %v", c.scope, err)
		}
	}
}

// A service of scope segment leads to the networks of the client's segment; those
// that name none are of one.
func TestASegmentIsNotLeft(t *testing.T) {
	const global = "web.shop.mesh.internal"
	for _, c := range []struct {
		scope             mesh.Scope
		east, west, north string // segments
		want              string
	}{
		{mesh.ScopeSegment, "", "", "", "e-1 north west"},
		{mesh.ScopeSegment, "a", "a", "b", "e-1 west"},
		{mesh.ScopeSegment, "a", "", "", "e-1"},
		{mesh.ScopeSegment, "", "b", "", "e-1 north"},
		{mesh.ScopeGlobal, "a", "b", "c", "e-1 north west"},
	} {
		w := standard()
		w.services[0].Scope = c.scope
		e := w.snapshot().Edit()
		e.SetNetworks([]mesh.Network{{Name: "east", Segment: c.east}, {Name: "west", Segment: c.west}, {Name: "north", Segment: c.north}})
		s := e.Snapshot(2)
		p, err := Resolve(s, flow(s, global, 80))
		if err != nil {
			t.Fatal(err)
		}
		var who []string
		for _, x := range p.Candidates {
			if x.Workload != nil {
				who = append(who, x.Workload.UID)
			} else {
				who = append(who, x.Network)
			}
		}
		if got := strings.Join(who, " "); got != c.want {
			t.Errorf("%s with segments %q, %q, %q: leads to %q, want %q", c.scope, c.east, c.west, c.north, got, c.want)
		}
	}
	w := standard()
	for _, svc := range w.services {
		svc.Scope = mesh.ScopeSegment
	}
	e := w.snapshot().Edit()
	e.SetNetworks([]mesh.Network{{Name: "east", Segment: "a"}, {Name: "west", Segment: "b"}, {Name: "north", Segment: "b"}})
	s := e.Snapshot(2)
	_, err := Resolve(s, flow(s, "remote.shop.mesh.internal", 80))
	wantKind(t, "a service of another segment", err, NotExported, "remote.shop.mesh.internal:80")
	if !strings.Contains(err.Error(), "other segments") {
		t.Errorf("no reason in %v", err)
	}
}

func TestANameOfTheOwnNetworkAloneSaysWhichLeadsFurther(t *testing.T) {
	w := standard()
	for _, svc := range w.services {
		svc.Takeover = false
	}
	s := w.snapshot()
	_, err := Resolve(s, flow(s, "remote.shop.svc.cluster.local", 80))
	wantKind(t, "a hostname whose workloads are elsewhere", err, NotExported, "remote.shop.svc.cluster.local:80")
	if !strings.Contains(err.Error(), "ask for remote.shop.mesh.internal, or set takeover: true") {
		t.Errorf("no remedy in %v", err)
	}
}

func TestAnotherProtocolIsKeptOutWithAReason(t *testing.T) {
	w := standard()
	w.services[0].Others = []mesh.OtherPort{{Name: "dns", Service: 53, Protocol: "UDP"}}
	s := w.snapshot()
	_, err := Resolve(s, flow(s, "web.shop.mesh.internal", 53))
	wantKind(t, "a UDP port", err, UnknownPort, "web.shop.mesh.internal:53")
	if !strings.Contains(err.Error(), "port 53 of service web.shop.svc.cluster.local is UDP, and TCP alone is carried") {
		t.Errorf("no reason in %v", err)
	}
}

// Every pod says itself what a named target port is.
func TestNamedTargetPorts(t *testing.T) {
	w := standard()
	w.services[0].Ports = []mesh.Port{{Service: 80, TargetName: "web"}}
	for _, p := range w.workloads {
		switch p.UID {
		case "w-1":
			p.Ports = []mesh.NamedPort{{Name: "web", Port: 8080}}
		case "w-2":
			p.Ports = []mesh.NamedPort{{Name: "web", Port: 9090}}
		}
	}
	s := w.snapshot()
	p, err := Resolve(s, flow(s, "web.shop.mesh.internal", 80))
	if err != nil || len(p.Candidates) != 1 || p.Candidates[0].Network != "west" || p.Candidates[0].Capacity != 4 {
		t.Fatalf("candidates %s, %v; want west, whose pods alone have the port", describe(p.Candidates), err)
	}
	for uid, want := range map[string]uint16{"w-1": 8080, "w-2": 9090} {
		port, _, err := Inbound(s, s.Workload(uid), "web.shop.svc.cluster.local:80", ExportedPorts)
		if err != nil || port != want || !s.Declares(uid, want) {
			t.Errorf("port 80 on %s is %d (declared %t), %v; want %d", uid, port, s.Declares(uid, want), err, want)
		}
	}
	_, _, err = Inbound(s, s.Workload("e-1"), "web.shop.svc.cluster.local:80", ExportedPorts)
	wantKind(t, "a pod without the port", err, UnknownPort, "web.shop.svc.cluster.local:80")
	if s.Declares("e-1", 0) {
		t.Error("a port that is not there was declared as port 0")
	}
}
