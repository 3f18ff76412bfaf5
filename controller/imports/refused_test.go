package imports

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/controller/vip"
)

// Random schedules of exports that come and go in a range that is almost full, of imports that the
// API server does not delete for long (a right is missing, a finalizer keeps them), and of leaders
// that read the ledger again: no two imports have one address, and who gets one that another had
// gets it after the quarantine.
func TestNoTwoImportsHaveOneAddressWhateverIsRefused(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 5))
		ranges := vip.Ranges{V4: netip.MustParsePrefix("10.9.8.0/28")}
		s := &server{objects: map[vip.Name]Import{}}
		ledger, now := vip.New(ranges), start
		exports, refused := map[vip.Name][]Export{}, map[vip.Name]bool{}
		had, lost := map[netip.Addr]vip.Name{}, map[netip.Addr]time.Time{}
		for step := range 300 {
			now = now.Add(time.Duration(rng.IntN(300)) * time.Second)
			n := named(rng.IntN(40))
			switch op := rng.IntN(10); {
			case op < 4:
				exports[n] = []Export{{Cluster: fmt.Sprint("network-", rng.IntN(4)), Ports: tcp(80)}}
			case op < 8:
				delete(exports, n)
			case op == 8:
				refused[n] = !refused[n]
			default:
				ledger, _ = vip.Parse(ranges, ledger.String(), now)
			}
			r := Plan(View{Exports: exports, Vague: func(string) bool { return false }, Lacks: func(string) bool { return false }}, s.objects, ledger, now)
			before := map[vip.Name]Import{}
			for n, i := range s.objects {
				before[n] = i
			}
			for _, w := range r.Writes {
				switch is := s.objects[w.Import.Name]; {
				case w.Do != Delete || !refused[w.Import.Name]:
					s.do(t, w)
				case rng.IntN(2) == 0:
					is.Ending = true
					s.objects[is.Name] = is
				}
			}
			for n := range s.objects {
				if s.objects[n].Ending && !refused[n] {
					delete(s.objects, n)
				}
			}
			for n, i := range before {
				if _, still := s.objects[n]; !still && len(i.IPs) > 0 {
					lost[i.IPs[0]] = now
				}
			}
			seen := map[netip.Addr]vip.Name{}
			for n, i := range s.objects {
				for _, a := range i.IPs {
					if other, twice := seen[a]; twice {
						t.Fatalf("seed %d, step %d: %s is of %s and of %s", seed, step, a, n, other)
					}
					seen[a] = n
					if at, was := lost[a]; was && had[a] != n && now.Sub(at) < vip.Quarantine {
						t.Fatalf("seed %d, step %d: %s was of %s until %v ago, and is of %s now", seed, step, a, had[a], now.Sub(at), n)
					}
					had[a] = n
				}
			}
		}
	}
}
