package policy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestPoliciesThatSelectNobody(t *testing.T) {
	auth := func(ns, name string, s Selector) Object {
		return &Authorization{Metadata: Metadata{Namespace: ns, Called: name}, Selector: s}
	}
	mtls := func(ns, name string, s Selector) Object {
		return &PeerAuthentication{Metadata: Metadata{Namespace: ns, Called: name}, Selector: s, Mode: Strict}
	}
	workloads := []Workload{
		{"shop", map[string]string{"app": "cart", "version": "v1", "pod-template-hash": "a"}}, {"shop", map[string]string{"app": "cart", "version": "v1", "pod-template-hash": "b"}},
		{"shop", map[string]string{"app": "web", "version": "v2"}}, {"demo", map[string]string{"app": "hello"}}, {"demo", nil},
	}
	const remedy = ": correct spec.selector.matchLabels, or delete it if such workloads will not come"
	for want, o := range map[string]Object{
		"a": auth("shop", "cart", Selector{"app": "cart", "version": "v1"}),
		"b": auth("empty", "all", nil), // for whoever will be there
		"c": auth("root", "hello", Selector{"app": "hello"}),
		"d": mtls("demo", "hello", Selector{"app": "hello"}),
		"e": mtls("root", "all", nil),

		"AuthorizationPolicy shop/cart selects no workload, and changes nothing: no workload of namespace shop has the label app=crat (there is cart, web)" + remedy:                                                                                                auth("shop", "cart", Selector{"app": "crat", "version": "v1"}),
		"AuthorizationPolicy shop/cart selects no workload, and changes nothing: no workload of namespace shop has the label apps=cart (none has a label apps) or version=2 (there is v1, v2)" + remedy:                                                             auth("shop", "cart", Selector{"apps": "cart", "version": "2"}),
		"PeerAuthentication shop/cart selects no workload, and changes nothing: no workload of namespace shop has all of the labels app=cart,version=v2 together" + remedy:                                                                                          mtls("shop", "cart", Selector{"app": "cart", "version": "v2"}),
		"AuthorizationPolicy demo/cart selects no workload, and changes nothing: no workload of namespace demo has the label app=cart (there is hello)" + remedy:                                                                                                    auth("demo", "cart", Selector{"app": "cart"}),
		"AuthorizationPolicy hsop/cart selects no workload, and changes nothing: there is no workload in namespace hsop: correct metadata.namespace, or delete it if its workloads will not come":                                                                   auth("hsop", "cart", Selector{"app": "cart"}),
		"AuthorizationPolicy root/cart selects no workload, and changes nothing: no workload of any namespace has the label app=card (there is cart, hello, web)" + remedy:                                                                                          auth("root", "cart", Selector{"app": "card"}),
		"PeerAuthentication root/cart selects no workload, and changes nothing: a PeerAuthentication of the root namespace with a selector is for nobody: move it into the namespace of the workloads that it is for, or take its selector away, and it is for all": mtls("root", "cart", Selector{"app": "cart"}),
	} {
		got := NewSet("root", []Object{o}).Unmatched(slices.Values(workloads))
		switch {
		case len(want) == 1 && len(got) != 0:
			t.Errorf("%s selects workloads, and is said not to: %v", o.Name(), got)
		case len(want) > 1 && (len(got) != 1 || got[0].String() != want):
			t.Errorf("got %v\nwant %s", got, want)
		}
	}
	if got := (*Set)(nil).Unmatched(slices.Values(workloads)); len(got) != 0 {
		t.Errorf("no policies: %v", got)
	}
}

func TestPoliciesOfNamespacesWithoutWorkloads(t *testing.T) {
	objects := []Object{
		&PeerAuthentication{Metadata: Metadata{Namespace: "dmeo", Called: "mtls"}, Mode: Strict},
		&PeerAuthentication{Metadata: Metadata{Namespace: "demo", Called: "mtls"}, Mode: Strict},
		&PeerAuthentication{Metadata: Metadata{Namespace: "root", Called: "mtls"}, Mode: Strict},
		&Authorization{Metadata: Metadata{Namespace: "empty", Called: "cart"}, Selector: Selector{"app": "cart"}}, // Unmatched has it
	}
	got := NewSet("root", objects).Deserted(slices.Values([]Workload{{"demo", nil}, {"shop", nil}}))
	if want := "PeerAuthentication dmeo/mtls selects no workload, and changes nothing: there is no workload in namespace dmeo, and it is for no other: correct metadata.namespace (workloads are in demo, shop), or delete it if its workloads will not come"; len(got) != 1 || got[0].String() != want {
		t.Errorf("got %v\nwant %s", got, want)
	}
}

// A policy is unmatched when, and only when, it is among those of no workload.
func TestUnmatchedIsWhatConcernsNobody(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		labels := func() map[string]string {
			out := map[string]string{}
			for range rng.IntN(3) {
				out[fmt.Sprint("k", rng.IntN(3))] = fmt.Sprint("v", rng.IntN(3))
			}
			return out
		}
		var workloads []Workload
		for range rng.IntN(12) {
			workloads = append(workloads, Workload{fmt.Sprint("ns-", rng.IntN(3)), labels()})
		}
		var objects []Object
		for i := range rng.IntN(12) {
			m := Metadata{Namespace: fmt.Sprint("ns-", rng.IntN(4)), Called: fmt.Sprint("p", i)}
			if s := Selector(labels()); rng.IntN(2) == 0 {
				objects = append(objects, &Authorization{Metadata: m, Selector: s, Action: Deny, Rules: []Rule{{}}})
			} else {
				objects = append(objects, &PeerAuthentication{Metadata: m, Selector: s, Mode: Strict, unread: rng.IntN(4) == 0})
			}
		}
		set := NewSet("ns-0", objects)
		unmatched := map[Name]bool{}
		for _, u := range set.Unmatched(slices.Values(workloads)) {
			unmatched[u.Policy] = true
		}
		for _, o := range objects {
			alone := NewSet("ns-0", []Object{o})
			holds := slices.ContainsFunc(workloads, func(w Workload) bool {
				e := alone.For(w)
				return len(e.Authorizations()) > 0 || len(e.modes) > 0
			})
			if want := !holds && len(selectorOf(o)) > 0; unmatched[o.Name()] != want {
				t.Fatalf("seed %d: %s with selector %v is said to select nobody: %v, want %v; workloads %v", seed, o.Name(), selectorOf(o), unmatched[o.Name()], want, workloads)
			}
		}
	}
}

// BenchmarkUnmatched has 50 000 workloads of 500 namespaces and 2 000 policies with selectors.
func BenchmarkUnmatched(b *testing.B) {
	var workloads []Workload
	for i := range 50_000 {
		workloads = append(workloads, Workload{fmt.Sprint("ns-", i%500), map[string]string{"app": fmt.Sprint("app-", i%7), "version": "v1", "pod-template-hash": fmt.Sprint(i % 5000), "pod": fmt.Sprint(i)}})
	}
	var objects []Object
	for i := range 2000 {
		objects = append(objects, &Authorization{Metadata: Metadata{Namespace: fmt.Sprint("ns-", i%500), Called: fmt.Sprint(i)}, Selector: Selector{"app": fmt.Sprint("app-", i%8), "version": "v1"}})
	}
	set := NewSet("root", objects)
	for b.Loop() {
		set.Unmatched(slices.Values(workloads))
	}
}
