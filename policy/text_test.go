package policy

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

func parseText(t testing.TB, text string) (Object, []Problem) {
	t.Helper()
	x, err := Read(text)
	if err != nil {
		t.Fatalf("read %s: %v", text, err)
	}
	return Parse(x)
}

func TestWhatIsWrittenIsReadAsTheSame(t *testing.T) {
	each(t, 2000, func(t *testing.T, w world) {
		o := w.object(1)
		for range w.IntN(3) {
			w.spoil(o)
		}
		o["status"] = tree{"conditions": []any{}}
		want, problems := Parse(o)
		got, again := parseText(t, Write(o))
		if want != nil && !reflect.DeepEqual(got, want) || want == nil && got != nil || !reflect.DeepEqual(again, problems) {
			t.Fatalf("%s is read as\n%+v %v\nwant\n%+v %v", Write(o), got, again, want, problems)
		}
	})
	yaml := readYAML(t, `{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: x, creationTimestamp: 2026-01-02T03:04:05Z, labels: {a: b}, managedFields: [1]}, spec: {selector: {matchLabels: {v: 1}}, portLevelMtls: {80: {mode: STRICT}}}}`)
	want, _ := Parse(yaml)
	if got, problems := parseText(t, Write(yaml)); !reflect.DeepEqual(got, want) || len(problems) > 0 || strings.Contains(got.Text(), "managed") {
		t.Errorf("got %+v %v, want %+v", got, problems, want)
	}
	for _, bad := range []string{"", "null", "[]", `"x"`, "{", `{} {}`} {
		if o, err := Read(bad); err == nil {
			t.Errorf("%q is read as %v", bad, o)
		}
	}
}

// What is too long to be told, or no JSON, allows nothing.
func TestWhatCannotBeWrittenIsClosed(t *testing.T) {
	c := Connection{Source: spiffeid.RequireFromString("spiffe://cluster.local/ns/demo/sa/web")}
	w := Workload{Namespace: "demo", Labels: map[string]string{"app": "a"}}
	var many []any
	for i := range 3000 {
		many = append(many, fmt.Sprintf("cluster.local/ns/demo/sa/account-%d", i))
	}
	allow := tree{"apiVersion": "security.istio.io/v1", "kind": KindAuthorization, "metadata": tree{"name": "long", "namespace": "demo"},
		"spec": tree{"selector": tree{"matchLabels": tree{"app": "a"}}, "rules": []any{tree{}, tree{"from": []any{tree{"source": tree{"principals": many}}}}}}}
	deny := clone(allow)
	deny["spec"].(tree)["action"] = "DENY"
	deny["spec"].(tree)["rules"] = []any{tree{"from": []any{tree{"source": tree{"principals": many}}}}}
	mtls := tree{"apiVersion": "security.istio.io/v1", "kind": KindPeerAuthentication, "metadata": tree{"name": "long", "namespace": "demo"}, "spec": tree{"mtls": tree{"mode": strings.Repeat("P", MaxText)}}}
	none := clone(allow)
	none["spec"].(tree)["rules"] = []any{math.NaN()}
	broad := clone(allow)
	broad["spec"].(tree)["selector"] = tree{"matchLabels": tree{"app": strings.Repeat("a", MaxText)}}
	for name, x := range map[string]tree{"allow": allow, "deny": deny, "mtls": mtls, "no JSON": none, "long labels": broad} {
		text := Write(x)
		o, _ := parseText(t, text)
		if o == nil || len(text) > MaxText {
			t.Errorf("%s: %d bytes, %v", name, len(text), o)
			continue
		}
		at := c
		if name == "mtls" {
			at = Connection{}
		}
		if d := NewSet("root", []Object{o}).For(w).Decide(at); d.Allowed() {
			t.Errorf("%s: %s", name, d)
		}
		if other := NewSet("root", []Object{o}).For(Workload{Namespace: "demo"}).Decide(at); (name == "allow" || name == "deny") && !other.Allowed() {
			t.Errorf("%s: for another workload %s", name, other)
		}
	}
}

// Who fills one namespace closes that one.
func TestTooManyPoliciesCloseTheirNamespace(t *testing.T) {
	var list []Object
	add := func(ns, name string) {
		o, _ := Parse(tree{"apiVersion": "security.istio.io/v1", "kind": KindAuthorization, "metadata": tree{"name": name, "namespace": ns}, "spec": tree{"rules": []any{tree{}}}})
		list = append(list, o)
	}
	add("demo", "all")
	for i := range MaxOfNamespace / costOfPolicy {
		add("full", fmt.Sprint(i))
	}
	s := NewSet("root", list)
	if got := s.Full(); !slices.Equal(got, []string{"full"}) || len(s.Objects()) != 2 {
		t.Errorf("full are %v of %d policies", got, len(s.Objects()))
	}
	if d := s.For(Workload{Namespace: "full"}).Decide(Connection{}); d.Allowed() || !strings.Contains(d.String(), "more than 2 MiB") {
		t.Errorf("in the full one: %s", d)
	}
	if d := s.For(Workload{Namespace: "demo"}).Decide(Connection{}); !d.Allowed() {
		t.Errorf("in another one: %s", d)
	}
	if s = NewSet("full", list); s.For(Workload{Namespace: "demo"}).Decide(Connection{}).Allowed() {
		t.Error("a full root namespace allows")
	}
}

// Of several PeerAuthentications the oldest counts: one whose age cannot be read is not the oldest.
func TestABadCreationTimestampIsNotTheOldest(t *testing.T) {
	bad := readYAML(t, `{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: bad, namespace: demo, creationTimestamp: yesterday}, spec: {mtls: {mode: PERMISSIVE}}}`)
	strict := readYAML(t, `{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: strict, namespace: demo, creationTimestamp: "2026-01-01T00:00:00Z"}, spec: {mtls: {mode: STRICT}}}`)
	o, problems := Parse(bad)
	p, _ := Parse(strict)
	if d := NewSet("root", []Object{o, p}).For(Workload{Namespace: "demo"}).Decide(Connection{}); d.Allowed() || len(problems) != 1 {
		t.Errorf("%s; problems %v", d, problems)
	}
}

// What a Set finds by name and by workload is what it decides by.
func TestASetFindsItsPolicies(t *testing.T) {
	each(t, 500, func(t *testing.T, w world) {
		s := setOf(t, w.objects())
		of := w.workload()
		var want []Object
		for _, o := range s.Objects() {
			if s.Get(o.Name()) != o {
				t.Fatalf("%s is not found", o.Name())
			}
			if s.Concerns(o, of) {
				want = append(want, o)
			}
		}
		got := s.All(of)
		slices.SortFunc(got, func(a, b Object) int { return a.Name().Compare(b.Name()) })
		if !slices.Equal(got, want) {
			t.Fatalf("of %+v: %v, want %v", of, got, want)
		}
		only := NewSet(s.Root(), got)
		for range 20 {
			if c := w.connection(); !reflect.DeepEqual(only.For(of).Decide(c), s.For(of).Decide(c)) {
				t.Fatalf("%+v: %s by its own alone, %s by all", c, only.For(of).Decide(c), s.For(of).Decide(c))
			}
		}
	})
}
