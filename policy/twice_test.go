package policy

import (
	"net/netip"
	"testing"
)

// A key that is there twice, as YAML lets it be once as a number and once as a text, or is written in two ways, means
// neither of both, whichever comes first: also to who has the policy by its text.
func TestWhatIsSaidTwiceIsNotUnderstood(t *testing.T) {
	object := func(spec map[string]any) map[string]any {
		return map[string]any{"apiVersion": group + "/v1", "kind": KindPeerAuthentication, "metadata": map[string]any{"name": "mtls", "namespace": "demo"}, "spec": spec}
	}
	mode := func(m string) map[string]any { return map[string]any{"mode": m} }
	app := map[string]any{"matchLabels": map[string]any{"app": "web"}}
	for name, spec := range map[string]map[string]any{
		"a number and a text": {"selector": app, "portLevelMtls": map[any]any{8080: mode("STRICT"), "8080": mode("PERMISSIVE")}},
		"a zero before it":    {"selector": app, "portLevelMtls": map[string]any{"8080": mode("PERMISSIVE"), "08080": mode("STRICT")}},
		"labels":              {"selector": map[string]any{"matchLabels": map[any]any{1: "a", "1": "b"}}, "mtls": mode("STRICT")},
	} {
		for range 50 {
			o, problems := Parse(object(spec))
			again, err := Read(o.Text())
			if err != nil {
				t.Fatal(err)
			}
			told, _ := Parse(again)
			for _, o := range []Object{o, told} {
				s := NewSet(DefaultRootNamespace, []Object{o})
				for _, labels := range []map[string]string{{"app": "web", "1": "a"}, {"app": "web", "1": "b"}} {
					d := s.For(Workload{"demo", labels}).Decide(Connection{Destination: netip.MustParseAddrPort("10.1.0.1:8080")})
					if d.Allowed() || len(problems) == 0 {
						t.Fatalf("%s: %s, with problems %v; want STRICT and a problem", name, d, problems)
					}
				}
			}
		}
	}
}
