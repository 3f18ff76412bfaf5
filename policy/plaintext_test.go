package policy

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

func TestWhichPoliciesHoldForPlainText(t *testing.T) {
	web := []Text{{Value: "cluster.local/ns/demo/sa/web"}}
	near := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	everywhere := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	from := func(m Match) Rule { return Rule{Clause{m}} }
	for _, c := range []struct {
		row   string
		rule  Rule
		deny  bool // as a rule of a DENY policy it denies some plain text
		allow bool // as that of an ALLOW policy it leaves some out
	}{
		{"every connection", Rule{}, true, false},
		{"an identity", from(Match{Principals: Field[Text]{Is: web}}), false, true},
		{"a namespace", from(Match{Namespaces: Field[Text]{Is: web}}), false, true},
		{"a service account", from(Match{ServiceAccounts: Field[Account]{Is: []Account{{"demo", "web"}}}}), false, true},
		{"all but an identity", from(Match{Principals: Field[Text]{Not: web}}), true, false},
		{"whoever has none", from(Match{Principals: Field[Text]{Not: []Text{{How: Present}}}}), true, false},
		{"a range", from(Match{SourceIPs: Field[netip.Prefix]{Is: near}}), true, true},
		{"all but a range", from(Match{SourceIPs: Field[netip.Prefix]{Not: near}}), true, true},
		{"all addresses", from(Match{SourceIPs: Field[netip.Prefix]{Is: everywhere}}), true, false},
		{"all addresses of IPv4", from(Match{SourceIPs: Field[netip.Prefix]{Is: everywhere[:1]}}), true, true},
		{"a port", from(Match{DestinationPorts: Field[uint16]{Is: []uint16{80}}}), true, true},
		{"an identity or a range", Rule{Clause{{Principals: Field[Text]{Is: web}}, {SourceIPs: Field[netip.Prefix]{Is: near}}}}, true, true},
		{"an identity at a port", Rule{Clause{{Principals: Field[Text]{Is: web}}}, Clause{{DestinationPorts: Field[uint16]{Is: []uint16{80}}}}}, false, true},
		{"what was not understood", never(), false, true},
	} {
		for action, want := range map[Action]bool{Deny: c.deny, Allow: c.allow} {
			a := &Authorization{Metadata: Metadata{Namespace: "demo", Called: "a"}, Action: action, Rules: []Rule{c.rule}}
			dry := &Authorization{Metadata: Metadata{Namespace: "demo", Called: "dry"}, Action: action, Rules: []Rule{c.rule}, DryRun: true}
			deny, allow := NewSet("root", []Object{a, dry}).For(Workload{Namespace: "demo"}).HoldForPlainText()
			var wanted []Name
			if want {
				wanted = []Name{a.Name()}
			}
			if got := slices.Concat(deny, allow); !slices.Equal(got, wanted) || action == Deny && allow != nil || action == Allow && deny != nil {
				t.Errorf("%s, action %d: DENY %v, ALLOW %v, want %v", c.row, action, deny, allow, wanted)
			}
		}
	}
	allow := func(name string, rules ...Rule) Object {
		return &Authorization{Metadata: Metadata{Namespace: "demo", Called: name}, Rules: rules}
	}
	if _, of := NewSet("root", []Object{allow("nobody")}).For(Workload{Namespace: "demo"}).HoldForPlainText(); len(of) != 1 {
		t.Errorf("an ALLOW policy without rules: %v, want it named", of)
	}
	if _, of := NewSet("root", []Object{allow("nobody"), allow("all", Rule{})}).For(Workload{Namespace: "demo"}).HoldForPlainText(); len(of) != 0 {
		t.Errorf("beside one that allows all: %v, want none", of)
	}
}

// Where MayDenyPlain is false, Decide allows every connection without identity. Else plain text could bypass policies.
func TestMayDenyPlainIsSound(t *testing.T) {
	denied, free := 0, 0
	each(t, 20000, func(t *testing.T, w world) {
		objects := w.objects()
		rules := setOf(t, objects).For(w.workload())
		may := rules.MayDenyPlain()
		if !may {
			free++
		}
		for range 8 {
			c := w.connection()
			c.Source = spiffeid.ID{}
			d := rules.Decide(c)
			if !d.Allowed() {
				denied++
			}
			if !d.Allowed() && !may {
				t.Fatalf("%v is %v, and MayDenyPlain is false: %s", c, d, show(objects))
			}
		}
	})
	if denied == 0 || free == 0 {
		t.Errorf("%d connections denied, %d worlds without denials: want some of both", denied, free)
	}
}
