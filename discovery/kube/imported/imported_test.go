package imported

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/controller/imports"
	"github.com/isthmus-mesh/isthmus/controller/vip"
	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/route"
)

func web(ips ...string) imports.Import {
	i := imports.Import{Name: vip.Name{Namespace: "demo", Name: "web"}, Ports: []imports.Port{{Name: "http", Protocol: "TCP", Port: 80}}, Clusters: []string{"east"}, Ours: true}
	for _, a := range ips {
		i.IPs = append(i.IPs, netip.MustParseAddr(a))
	}
	return i
}

func TestAnImportLeadsToItsServiceByAddressAndNames(t *testing.T) {
	s := &Source{taken: newTaken(DefaultConfig()), told: map[discovery.Key]discovery.Change{}}
	b := discovery.NewBuilder(0)
	var snap *mesh.Snapshot
	apply := func(list ...imports.Import) int {
		changes := s.compare(list)
		b.Apply(changes...)
		snap, _, _ = b.Commit()
		return len(changes)
	}
	vips := []string{"240.240.1.2", "2001:2::102"}
	if n := apply(web(vips...)); n != 1 {
		t.Fatalf("%d changes; want 1", n)
	}
	for _, a := range vips {
		if svc := snap.ServiceAt(netip.MustParseAddr(a)); svc == nil || svc.Hostname != "web.demo.svc.cluster.local" || !svc.Everywhere(svc.Hostname) {
			t.Errorf("at %s there is %v", a, svc)
		}
	}
	for _, host := range []string{"web.demo.mesh.internal", "web.demo.svc.clusterset.local", "web.demo.svc.cluster.local"} {
		if svc := snap.Service(host); svc == nil || svc.Name != "web" {
			t.Errorf("%s is %v", host, svc)
		}
	}
	if n := apply(web(vips...)); n != 0 {
		t.Errorf("%d changes of nothing", n)
	}

	// A Service of the cluster has its name; the import is no problem.
	b.Apply(discovery.Change{Key: discovery.Key{Kind: discovery.KindService, Source: discovery.Cluster, Name: "demo/web"},
		Record: discovery.Service{Name: "web", Namespace: "demo", VIPs: []netip.Addr{netip.MustParseAddr("10.96.0.7")}, Ports: []discovery.ServicePort{{Port: 80}}}})
	snap, _, _ = b.Commit()
	if svc := snap.Service("web.demo.svc.cluster.local"); svc == nil || fmt.Sprint(svc.VIPs) != "[10.96.0.7]" || svc.Exported() {
		t.Errorf("beside a Service of the cluster there is %v", svc)
	}
	for _, p := range b.Problems() {
		if strings.Contains(p.Error(), "web") {
			t.Errorf("problem: %v", p)
		}
	}

	if apply(); snap.ServiceAt(netip.MustParseAddr(vips[0])) != nil {
		t.Error("an import that is gone has an address")
	}
	if n := apply(web()); n != 0 {
		t.Errorf("%d changes by an import without an address", n)
	}
}

// Whoever may write ServiceImports must not lead connections to an address elsewhere.
func TestAnImportTakesNoAddressThatIsNotItsOwn(t *testing.T) {
	c := DefaultConfig()
	c.InUse = []netip.Prefix{netip.MustParsePrefix("240.240.9.0/24")}
	key := func(kind discovery.Kind, name string) discovery.Key {
		return discovery.Key{Kind: kind, Source: discovery.Cluster, Name: name}
	}
	foreign := web("240.240.1.2")
	foreign.Ours = false
	young := web("240.240.7.7", "2001:2::707")
	young.Name.Namespace = "a"
	young.Created = time.Unix(2, 0)
	old := web("240.240.7.7")
	old.Created = time.Unix(1, 0)
	for name, x := range map[string]struct {
		list []imports.Import
		want string // addresses of each that comes of it
		says string // what is wrong
	}{
		"its own":                     {[]imports.Import{web("240.240.1.2", "2001:2::102")}, "demo/web [240.240.1.2 2001:2::102]", ""},
		"of a Service elsewhere":      {[]imports.Import{web("10.96.0.1")}, "", "ranges"},
		"of the range and not":        {[]imports.Import{web("240.240.1.2", "10.96.0.1", "fd00::1")}, "demo/web [240.240.1.2]", "spec.ips[2]"},
		"of somebody else":            {[]imports.Import{foreign}, "", "not made by isthmus-controller"},
		"of a Service in the range":   {[]imports.Import{web("240.240.3.4", "2001:2::102")}, "demo/web [2001:2::102]", "is the address of service"},
		"of a pod in the range":       {[]imports.Import{web("240.240.3.5")}, "", "is the address of workload"},
		"of a range that is in use":   {[]imports.Import{web("240.240.9.9")}, "", "vips.inUse"},
		"of an import that was first": {[]imports.Import{young, old}, "a/web [2001:2::707] demo/web [240.240.7.7]", "ServiceImport demo/web"},
	} {
		t.Run(name, func(t *testing.T) {
			passed := &sink{}
			s := &Source{taken: newTaken(c), told: map[discovery.Key]discovery.Change{}}
			s.Beside(passed).Apply(discovery.Change{Key: key(discovery.KindService, "demo/other"), Record: discovery.Service{VIPs: []netip.Addr{netip.MustParseAddr("240.240.3.4")}}},
				discovery.Change{Key: key(discovery.KindWorkload, "demo/pod"), Record: discovery.Workload{Addresses: []netip.Addr{netip.MustParseAddr("240.240.3.5")}}})
			if len(passed.changes) != 2 || len(s.taken.changed) != 1 {
				t.Errorf("%d changes of the cluster are passed on; want 2, and a signal", len(passed.changes))
			}
			got, said := []string{}, ""
			for _, c := range s.compare(x.list) {
				if r, ok := c.Record.(discovery.Service); ok {
					got = append(got, fmt.Sprintf("%s %v", c.Key.Name, r.VIPs))
				}
				for _, p := range c.Faults {
					said += p.Error() + "; "
				}
			}
			if strings.Join(got, " ") != x.want || !strings.Contains(said, x.says) || (x.says == "") != (said == "") {
				t.Errorf("services %q, problems %q; want %q and %q", got, said, x.want, x.says)
			}
			s.Beside(passed).Apply(discovery.Change{Key: key(discovery.KindService, "demo/other")}, discovery.Change{Key: key(discovery.KindWorkload, "demo/pod")})
			if len(s.taken.of) != 0 {
				t.Errorf("addresses of what is gone are remembered: %v", s.taken.of)
			}
		})
	}
}

// Where this cluster has a Service of the name that others export, the names and addresses of the
// import lead to theirs, and to its own pods only if it exports them; those of the Service lead where they led,
// whatever order all of it comes in.
func TestAnImportBesideAServiceOfItsName(t *testing.T) {
	const west, own, both = "west", "own", "own west"
	local := func(edit func(*discovery.Service)) *discovery.Service {
		s := &discovery.Service{Name: "web", Namespace: "demo", VIPs: []netip.Addr{netip.MustParseAddr("10.96.0.7")}, Ports: []discovery.ServicePort{{Port: 80, TargetPort: 8080}}}
		edit(s)
		return s
	}
	const service, cluster = "web.demo.svc.cluster.local", "10.96.0.7"
	names := []string{service, cluster, "240.240.1.2", "2001:2::102", "web.demo.svc.clusterset.local", "web.demo.mesh.internal"}
	for what, c := range map[string]struct {
		service *discovery.Service
		want    []string // by names
	}{
		"no Service":      {nil, []string{west, "no route", west, west, west, west}},
		"for its cluster": {local(func(*discovery.Service) {}), []string{own, own, west, west, west, west}},
		"on its node":     {local(func(s *discovery.Service) { s.TrafficDistribution = string(mesh.StrictNode) }), []string{own, own, west, west, west, west}},
		"global":          {local(func(s *discovery.Service) { s.Scope = "global" }), []string{own, own, both, both, both, both}},
		"exported":        {local(func(s *discovery.Service) { s.Scope, s.Aliases = "global", []string{"web.demo.svc.clusterset.local"} }), []string{own, own, both, both, both, both}},
		"taking over":     {local(func(s *discovery.Service) { s.Scope, s.Takeover = "global", true }), []string{both, both, both, both, both, both}},
		"global, of another port": {local(func(s *discovery.Service) { s.Scope, s.Ports = "global", []discovery.ServicePort{{Port: 81}} }),
			[]string{"unknown port", "unknown port", west, west, west, west}},
	} {
		t.Run(what, func(t *testing.T) {
			changes := []discovery.Change{
				{Key: discovery.Key{Kind: discovery.KindNetwork, Name: "east"}, Record: discovery.Network{Name: "east"}},
				{Key: discovery.Key{Kind: discovery.KindNetwork, Name: "west", Source: discovery.Told}, Record: discovery.Network{Name: "west"}},
				{Key: discovery.Key{Kind: discovery.KindGateway, Name: "west/gw", Source: discovery.Told}, Record: discovery.Gateway{Name: "gw", Network: "west", Address: netip.MustParseAddrPort("203.0.113.7:15008")}},
				{Key: discovery.Key{Kind: discovery.KindShare, Name: "west/web", Source: discovery.Told}, Record: discovery.Share{Network: "west", Name: "web", Namespace: "demo", Ports: []discovery.SharePort{{Port: 80}}, Identities: []string{"spiffe://cluster.local/ns/demo/sa/web"}}},
			}
			pod := discovery.Workload{UID: "own", Namespace: "demo", Network: "east", Node: "n", Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.1")}}
			if c.service != nil {
				pod.Services = []string{service}
				changes = append(changes, discovery.Change{Key: discovery.Key{Kind: discovery.KindService, Source: discovery.Cluster, Name: "demo/web"}, Record: *c.service})
			}
			changes = append(changes, discovery.Change{Key: discovery.Key{Kind: discovery.KindWorkload, Source: discovery.Cluster, Name: "own"}, Record: pod})
			s := &Source{taken: newTaken(DefaultConfig()), told: map[discovery.Key]discovery.Change{}}
			changes = append(changes, s.compare([]imports.Import{web("240.240.1.2", "2001:2::102")})...)
			for order := range 3 { // as they are; the other way round; and the import comes back
				b := discovery.NewBuilder(0)
				if order == 1 {
					slices.Reverse(changes)
				}
				for _, c := range changes {
					b.Apply(c)
					b.Commit()
				}
				if order == 2 {
					last := changes[0]
					b.Apply(discovery.Change{Key: last.Key})
					if snap, _, _ := b.Commit(); snap.ServiceAt(netip.MustParseAddr("240.240.1.2")) != nil {
						t.Error("the address of an import that is gone leads somewhere")
					}
					b.Apply(last)
				}
				snap, _, _ := b.Commit()
				for i, n := range names {
					if got := leads(snap, n); got != c.want[i] {
						t.Errorf("order %d: %s leads to %s, want %s", order, n, got, c.want[i])
					}
				}
				if e, ok := mesh.ExportOf(snap.Service(service), snap.Members(snap.Service(service), "east")); ok && slices.Contains(e.Aliases, "web.demo.svc.clusterset.local") != (what == "exported") {
					t.Errorf("order %d: other networks are told %v", order, e.Aliases)
				}
				for _, p := range b.Problems() {
					t.Errorf("order %d: problem: %v", order, p)
				}
			}
		})
	}
}

// leads says who of a service answers at port 80 of a name or an address, or why nobody does.
func leads(snap *mesh.Snapshot, name string) string {
	plan, err := route.Resolve(snap, route.Flow{Source: snap.Workload("own"), Host: name, Port: 80})
	if e := (*route.Error)(nil); errors.As(err, &e) {
		return e.Kind.String()
	}
	var out []string
	for _, c := range plan.Candidates {
		if c.Workload != nil {
			out = append(out, c.Workload.UID)
		} else {
			out = append(out, c.Network)
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

type sink struct{ changes []discovery.Change }

func (s *sink) Apply(changes ...discovery.Change) *mesh.Snapshot {
	s.changes = append(s.changes, changes...)
	return nil
}
