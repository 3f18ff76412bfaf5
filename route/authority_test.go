package route

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/mesh"
)

func TestExport(t *testing.T) {
	s := standard().snapshot()
	for authority, target := range map[string]uint16{
		"web.shop.svc.cluster.local:80": 8080, "web.shop.mesh.internal:81": 9090,
		"WEB.shop.mesh.internal:80": 8080, "web.shop.mesh.internal.:80": 8080,
	} {
		x, err := Export(s, "west", authority)
		if err != nil {
			t.Errorf("%s: %v", authority, err)
			continue
		}
		var uids []string
		for _, w := range x.Members {
			uids = append(uids, w.UID)
		}
		if x.Service.Name != "web" || x.Port.Target != target || !slices.Equal(uids, []string{"w-1", "w-2"}) {
			t.Errorf("%s: %s target %d members %v, want web, %d, the ready ones of west", authority, x.Service.Name, x.Port.Target, uids, target)
		}
	}
	if n := len(s.Members(s.Service("web.shop.mesh.internal"), "west")); n != 4 {
		t.Errorf("exporting changed the snapshot: %d members are left of 4", n)
	}
}

func TestExportRefuses(t *testing.T) {
	s := standard().snapshot()
	cases := map[string]struct {
		network string
		kind    Kind
		status  int
	}{
		"nope.shop.mesh.internal:80":          {"west", UnknownService, 503},
		"private.shop.svc.cluster.local:80":   {"west", NotExported, 403}, // not global, though it has a member here
		"elsewhere.shop.svc.cluster.local:80": {"north", NotExported, 403},
		"marooned.shop.mesh.internal:80":      {"west", NotExported, 403}, // another network's
		"empty.shop.mesh.internal:80":         {"west", NotExported, 403},
		"gone.shop.mesh.internal:80":          {"west", NoEndpoint, 503},
		"web.shop.mesh.internal:8080":         {"west", UnknownPort, 503},  // a target port is not a port
		"10.0.0.2:8080":                       {"west", BadAuthority, 400}, // no open relay
		"240.0.0.1:80":                        {"west", BadAuthority, 400},
		"[::1]:80":                            {"west", BadAuthority, 400},
		"web.shop.mesh.internal":              {"west", BadAuthority, 400},
		"":                                    {"west", BadAuthority, 400},
	}
	for authority, c := range cases {
		x, err := Export(s, c.network, authority)
		wantKind(t, authority, err, c.kind, authority)
		var e *Error
		if errors.As(err, &e) && e.Status() != c.status {
			t.Errorf("%q: status %d, want %d", authority, e.Status(), c.status)
		}
		if x.Service != nil || x.Members != nil {
			t.Errorf("%q: exported %+v beside the error", authority, x)
		}
	}
}

func TestInbound(t *testing.T) {
	s := standard().snapshot()
	local := s.Workload("w-1")
	local.Addresses = append(local.Addresses, netip.MustParseAddr("fd00::2"))
	cases := []struct {
		authority string
		target    uint16
		service   string
		at        string
	}{
		{"10.0.0.2:8080", 8080, "", "10.0.0.2"}, {"10.0.0.2:7", 7, "", "10.0.0.2"}, {"[fd00::2]:8080", 8080, "", "fd00::2"}, {"[::ffff:10.0.0.2]:8080", 8080, "", "10.0.0.2"},
		{"web.shop.svc.cluster.local:80", 8080, "web", "10.0.0.2"}, {"web.shop.mesh.internal:81", 9090, "web", "10.0.0.2"},
		{"private.shop.svc.cluster.local:80", 8080, "private", "10.0.0.2"},
	}
	for _, c := range cases {
		target, svc, err := Inbound(s, local, c.authority, AnyPort)
		name := ""
		if svc != nil {
			name = svc.Name
		}
		if at := InboundAddress(local, c.authority); at != netip.MustParseAddr(c.at) {
			t.Errorf("%s leads to %s, want %s", c.authority, at, c.at)
		}
		if err != nil || target != c.target || name != c.service {
			t.Errorf("%s: %d, %q, %v; want %d, %q", c.authority, target, name, err, c.target, c.service)
		}
	}
}

// A smaller scope never allows what a larger one refuses, and never changes where
// something leads; what it leaves out is refused as not exported.
func TestInboundScopesNestAndRefuseWithoutAFault(t *testing.T) {
	s := standard().snapshot()
	local := s.Workload("w-1")
	for _, c := range []struct {
		authority string
		widest    Scope // the smallest scope that allows it
	}{
		{"web.shop.svc.cluster.local:80", ExportedPorts}, {"web.shop.mesh.internal:81", ExportedPorts},
		{"10.0.0.2:8080", ExportedPorts}, {"10.0.0.2:9090", ExportedPorts},
		{"private.shop.svc.cluster.local:80", DeclaredPorts},
		{"10.0.0.2:80", AnyPort}, {"10.0.0.2:22", AnyPort},
	} {
		want, wantSvc, err := Inbound(s, local, c.authority, AnyPort)
		if err != nil {
			t.Fatal(err)
		}
		for _, scope := range []Scope{AnyPort, DeclaredPorts, ExportedPorts} {
			port, svc, err := Inbound(s, local, c.authority, scope)
			switch {
			case scope > c.widest:
				var e *Error
				wantKind(t, c.authority, err, NotExported, c.authority)
				if errors.As(err, &e) && e.Status() != 403 {
					t.Errorf("%s: status %d, want 403", c.authority, e.Status())
				}
			case err != nil || port != want || svc != wantSvc:
				t.Errorf("%s within %v: %d, %v, %v; want %d", c.authority, scope, port, svc, err, want)
			}
		}
	}
}

func TestInboundRefuses(t *testing.T) {
	w := standard()
	w.services[0].Ports = append(w.services[0].Ports, mesh.Port{Service: 99, Target: 15006})
	s := w.snapshot()
	cases := map[string]struct {
		uid    string
		kind   Kind
		status int
	}{
		"10.0.0.3:8080":                       {"w-1", WrongAddress, 400}, // w-2's, and e-2's
		"240.0.0.1:80":                        {"w-1", WrongAddress, 400},
		"[::1]:8080":                          {"w-1", WrongAddress, 400},
		"127.0.0.1:8080":                      {"w-1", WrongAddress, 400},
		"nope.shop.mesh.internal:80":          {"w-1", UnknownService, 503},
		"marooned.shop.mesh.internal:80":      {"w-1", NotMember, 503},
		"web.shop.mesh.internal:8080":         {"w-1", UnknownPort, 503},
		"web.shop.mesh.internal:99":           {"w-1", IllegalPort, 503}, // by way of the service's target
		"10.0.0.2:15008":                      {"w-1", IllegalPort, 503},
		"10.0.0.2:15006":                      {"w-1", IllegalPort, 503},
		"10.0.0.2:15001":                      {"w-1", IllegalPort, 503},
		"10.0.0.2:15080":                      {"w-1", IllegalPort, 503},
		"web.shop.mesh.internal:80":           {"nobody", NotLocal, 503},
		"elsewhere.shop.svc.cluster.local:80": {"e-1", NotMember, 503},
		"web shop:80":                         {"w-1", BadAuthority, 400},
	}
	for authority, c := range cases {
		target, svc, err := Inbound(s, s.Workload(c.uid), authority, AnyPort)
		wantKind(t, authority, err, c.kind, authority)
		var e *Error
		if errors.As(err, &e) && e.Status() != c.status {
			t.Errorf("%q: status %d, want %d", authority, e.Status(), c.status)
		}
		if target != 0 || svc != nil {
			t.Errorf("%q: port %d of %v beside the error", authority, target, svc)
		}
	}
}

func TestParseAuthority(t *testing.T) {
	good := map[string]target{
		"a:1":                           {host: "a", port: 1},
		"a.b-c_d.E:65535":               {host: "a.b-c_d.E", port: 65535},
		"a.:80":                         {host: "a", port: 80},
		"1.2.3.4:80":                    {addr: netip.MustParseAddr("1.2.3.4"), port: 80},
		"[fd00::1]:80":                  {addr: netip.MustParseAddr("fd00::1"), port: 80},
		"[::ffff:1.2.3.4]:80":           {addr: netip.MustParseAddr("1.2.3.4"), port: 80},
		strings.Repeat("a", 253) + ":1": {host: strings.Repeat("a", 253), port: 1},
	}
	for in, want := range good {
		if got, err := parseAuthority(in); err != nil || got != want {
			t.Errorf("parseAuthority(%q) = %+v, %v; want %+v", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", ":", ":80", "a", "a:", "a:0", "a:65536", "a:-1", "a:+1", "a:1x", "a: 1", ".:80", "a b:80", "a/b:80", "user@a:80", "http://a:80",
		"fd00::1:80", "[fd00::1]", "[fd00::1%eth0]:80", "[1.2.3.4]:80", "[a]:80", "[]:80", "a\x00:80", "ä:80", strings.Repeat("a", 254) + ":1",
	} {
		if got, err := parseAuthority(in); err == nil {
			t.Errorf("parseAuthority(%q) = %+v, want an error", in, got)
		}
	}
}

func TestErrorText(t *testing.T) {
	_, err := Export(standard().snapshot(), "west", "10.0.0.2:80")
	want := `route to "10.0.0.2:80": bad authority: a gateway forwards to services by hostname, never to addresses`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	if got := Kind(99).String(); got != "kind(99)" {
		t.Errorf("Kind(99) = %q", got)
	}
}

// Whatever an authority holds, both ends refuse or name something of theirs.
func FuzzAuthority(f *testing.F) {
	for _, a := range []string{"web.shop.mesh.internal:80", "10.0.0.2:8080", "[fd00::1%25eth0]:80", "a:65536", ":", "[::ffff:10.0.0.2]:15008"} {
		f.Add(a)
	}
	s := standard().snapshot()
	local := s.Workload("w-1")
	f.Fuzz(func(t *testing.T, authority string) {
		x, err := Export(s, "west", authority)
		if err == nil && (!x.Service.Exported() || len(x.Members) == 0 || x.Members[0].Network != "west") {
			t.Errorf("Export(%q) = %+v", authority, x)
		}
		port, svc, err := Inbound(s, local, authority, AnyPort)
		if err == nil && (port == 0 || mesh.ReservedPort(port) || svc != nil && !slices.Contains(s.ServicesOf("w-1"), svc)) {
			t.Errorf("Inbound(%q) = %d, %v", authority, port, svc)
		}
		var e *Error
		if err != nil && !errors.As(err, &e) {
			t.Errorf("Inbound(%q): %v is not an *Error", authority, err)
		}
	})
}
