package controller

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/controller/vip"
)

var ranges = VIPs{IPv4: vip.DefaultRanges().V4}

// A ledger that cannot be written is tried again when its gate opens, and not when something
// else happens, in minutes perhaps.
func TestALedgerThatIsRefusedIsTriedAgain(t *testing.T) {
	for what, x := range map[string]*refusal{
		"right":   noRight("create", "configmaps"),
		"refused": {http.StatusUnprocessableEntity, "Invalid", "no such object can be"},
		"denied":  {http.StatusForbidden, "Forbidden", "admission webhook denied the request"},
		"gone":    {http.StatusNotFound, "NotFound", "namespaces \"isthmus-system\" not found"},
	} {
		t.Run(what, func(t *testing.T) {
			l, a := newLeader(t, Config{VIPs: ranges}, "shop")
			n := vip.Name{Namespace: "shop", Name: "web"}
			l.offer(n)
			a.refuse = func(verb, resource, _, _ string) *refusal {
				if resource == "configmaps" && verb == "create" {
					return x
				}
				return nil
			}
			l.began = time.Now()
			if err := l.plan(t.Context()); err != nil {
				t.Fatal(err)
			}
			if a.imported(n) != nil {
				t.Fatal("an import was made although the ledger could not be written")
			}
			at, ok := l.gates.next(l.began)
			if !ok || time.Until(at) > 2*time.Second {
				t.Errorf("tried again at %v (%v), want within two seconds; gates: %+v", at, ok, l.gates.held())
			}
			if what != "gone" && len(l.gates.held()) != 1 {
				t.Errorf("held are %+v, want the ledger", l.gates.held())
			}
		})
	}
}

// One import that the API server never takes, whatever it says of that, does not keep others from
// being made: neither of its namespace nor of others.
func TestAnImportThatIsNeverTakenKeepsNoOtherWaiting(t *testing.T) {
	for what, x := range map[string]refusal{
		"a webhook that is away": {http.StatusInternalServerError, "InternalError", `Internal error occurred: failed calling webhook "policy.example.com": failed to call webhook: Post "https://policy": connection refused`},
		"a webhook that denies":  {http.StatusForbidden, "Forbidden", `admission webhook "policy.example.com" denied the request: no such name`},
		"something else":         {http.StatusServiceUnavailable, "ServiceUnavailable", "not now"},
	} {
		t.Run(what, func(t *testing.T) {
			l, a := newLeader(t, Config{VIPs: ranges}, "a", "b")
			bad := vip.Name{Namespace: "a", Name: "a"}
			names := []vip.Name{bad}
			for i := range 5 {
				names = append(names, vip.Name{Namespace: "a", Name: fmt.Sprint("web-", i)}, vip.Name{Namespace: "b", Name: fmt.Sprint("web-", i)})
			}
			for _, n := range names {
				l.offer(n)
			}
			a.refuse = func(verb, resource, namespace, name string) *refusal {
				if resource == "serviceimports" && namespace == bad.Namespace && name == bad.Name {
					return &x
				}
				return nil
			}
			for range 40 {
				_ = l.plan(t.Context()) // tried again after a pause
				for _, g := range l.gates.of {
					g.until = time.Time{}
				}
			}
			for _, n := range names[1:] {
				if a.imported(n) == nil {
					t.Errorf("%s is not imported after 40 attempts", n)
				}
			}
			if a.imported(bad) != nil {
				t.Error("what is refused was made: this tests nothing")
			}
		})
	}
}
