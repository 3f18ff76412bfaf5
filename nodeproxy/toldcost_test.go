package nodeproxy

import (
	"fmt"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

// A name that nobody offers is asked for, with each link, as pods ask for names.
func TestANameThatNobodyOffersCostsTheSameBesideManyServices(t *testing.T) {
	cost := func(n int) time.Duration {
		w := newToldWorld(t, "")
		var all []healthstream.Change
		for i := range n {
			name := fmt.Sprintf("s%d.default.svc.cluster.local", i)
			w.proven.offer(name, shopExport(func(e *record.Export) { e.Name = fmt.Sprintf("s%d", i) }))
			all = append(all, healthstream.Change{Service: name, Network: "west"})
		}
		w.updateAll(all)
		if len(w.told) != n+2 {
			t.Fatalf("%d objects are told; want %d services, a gateway and a network", len(w.told), n)
		}
		best := time.Hour
		for range 20 {
			began := time.Now()
			for i := range 50 {
				w.update(fmt.Sprintf("unknown-%d.default.svc.cluster.local", i))
			}
			best = min(best, time.Since(began))
		}
		return best / 50
	}
	few, many := cost(20), cost(2000)
	if many > 5*few {
		t.Errorf("%v beside 2000 services and %v beside 20; want about the same", many, few)
	}
}
