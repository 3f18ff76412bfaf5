package discovery

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// needed writes what a process on network can ask of a snapshot.
func needed(s *mesh.Snapshot, network string) map[string]string {
	out := map[string]string{"networks": fmt.Sprint(s.ListNetworks())}
	for _, n := range s.GatewayNetworks() {
		for _, g := range s.Gateways(n) {
			out["gateway "+n+"/"+g.Name] = fmt.Sprintf("%+v", *g)
		}
	}
	for _, svc := range s.Services() {
		text := fmt.Sprintf("%+v %v", *svc, s.Networks(svc))
		for _, n := range s.Networks(svc) {
			x, _ := s.Share(svc, n)
			text += fmt.Sprintf(" %s %+v %v", n, *x.Export, s.Identities(svc, n))
		}
		for _, w := range s.Members(svc, network) {
			text += " " + w.UID
		}
		out["service "+svc.Hostname] = text
	}
	for _, w := range s.Workloads() {
		if w.Network == network {
			out["workload "+w.UID] = fmt.Sprintf("%+v", *w)
		}
	}
	return out
}

// A process that keeps no workload of other networks knows all the same what it needs of
// a mesh, which problems it has, and what workloads are called; also after changes.
func TestAListForOneNetworkSaysTheSame(t *testing.T) {
	shares, problems := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		config := rapid.OneOf(anyConfig(), crowded())
		b, last := NewBuilder(0), Listing{}
		for range rapid.IntRange(1, 3).Draw(t, "versions") {
			c := config.Draw(t, "config")
			if TrustDomain(c.TrustDomain) != nil {
				c.TrustDomain = "" // whoever follows a file takes none like that
			}
			full, want := Build(1, c)
			l, whole := c.ListFor("east")
			if elsewhere := slices.ContainsFunc(c.Workloads, func(w Workload) bool { return w.Network != "east" }); elsewhere != (whole != nil) {
				t.Fatalf("workloads elsewhere %v, and a whole %v", elsewhere, whole != nil)
			}
			if whole != nil && !reflect.DeepEqual(facts(whole), facts(full)) {
				t.Fatal("the whole is another mesh")
			}
			b.SetTrustDomain(c.TrustDomain)
			b.Apply(l.Since(last)...)
			s, _, _ := b.Commit()
			if a, b := needed(full, "east"), needed(s, "east"); !reflect.DeepEqual(a, b) {
				t.Fatalf("whole:\n%s\nfor east:\n%s", lines(a), lines(b))
			}
			if got := l.Locate(append(l.Faults(), b.Problems()...)); !reflect.DeepEqual(sorted(got), sorted(want)) {
				t.Fatalf("problems %v\nwant %v", sorted(got), sorted(want))
			}
			others := l.Elsewhere()
			n := 0
			for _, w := range full.Workloads() {
				if w.Network != "east" {
					if n++; others.Find(w.Endpoint) != w.UID {
						t.Fatalf("%s is called %q", w.UID, others.Find(w.Endpoint))
					}
				}
			}
			if others.Len() != n || others.Find(1) != "" {
				t.Fatalf("%d workloads elsewhere, want %d", others.Len(), n)
			}
			for _, w := range s.Workloads() {
				if w.Network != "east" {
					t.Fatalf("%s of %s is kept", w.UID, w.Network)
				}
			}
			for _, svc := range s.Services() {
				for _, n := range s.Networks(svc) {
					if n != "east" {
						shares++
					}
				}
			}
			problems += len(want)
			last = l
		}
	})
	if shares == 0 || problems == 0 {
		t.Errorf("%d shares, %d problems: the draws prove nothing", shares, problems)
	}
}

func sorted(list []Problem) (out []string) {
	for _, p := range list {
		out = append(out, p.Object.String()+" "+p.Error()+fmt.Sprint(p.Out, p.Path))
	}
	slices.Sort(out)
	return out
}

// What is the same in the next list is not held twice.
func TestAListTakesOverWhatIsTheSame(t *testing.T) {
	c := city(200, 20)
	first, _ := c.ListFor("network-0")
	c.Workloads[1].Ready = no()
	next, _ := c.ListFor("network-0")
	changes := next.Since(first)
	if len(changes) > 2 {
		t.Errorf("%d changes for a pod of two services", len(changes))
	}
	same := 0
	for i, it := range next.items {
		f, is := it.record.(folded)
		if g, was := first.items[i].record.(folded); is && was && &f.shares[0] == &g.shares[0] {
			same++
		}
	}
	if same < 18 {
		t.Errorf("%d of 20 services are in the memory of the first list", same)
	}
}
