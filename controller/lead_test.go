package controller

import (
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
