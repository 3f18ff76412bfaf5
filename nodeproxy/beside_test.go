package nodeproxy

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// Random schedules of gateways that come, go and take each other's addresses, of configuration that has
// some of these and a virtual address, and of lists that are late: once nothing changes any more, a
// stream is up to each gateway that is listed, and none ends another one.
func TestStreamsToGatewaysSettle(t *testing.T) {
	vip := netip.MustParseAddrPort("10.9.9.9:15012")
	var pool []netip.AddrPort
	for i := range 6 {
		pool = append(pool, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), 15012))
	}
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 3))
		live := map[string]netip.AddrPort{}  // gateways, and where they listen
		told := map[string]netip.AddrPort{}  // as listed
		up := map[netip.AddrPort]string{}    // streams
		names := map[netip.AddrPort]string{} // who has answered
		var configured []*mesh.Gateway
		for _, a := range append(slices.Clone(pool), vip) {
			if seed%2 == 0 && a == vip || seed%2 == 1 && a != vip && rng.IntN(3) == 0 {
				configured = append(configured, &mesh.Gateway{Name: a.String(), Address: a})
			}
		}
		var story []string
		tell := func(format string, a ...any) { story = append(story, fmt.Sprintf(format, a...)) }
		at := func(a netip.AddrPort) string {
			if a == vip {
				if all := slices.Sorted(maps.Keys(live)); len(all) > 0 {
					return all[rng.IntN(len(all))]
				}
				return ""
			}
			for n, x := range live {
				if x == a {
					return n
				}
			}
			return ""
		}
		serial := 0
		for step := range 90 {
			quiet := step >= 40
			if !quiet {
				switch op := rng.IntN(8); op {
				case 0: // a new one, perhaps at an address that another one has had
					a := pool[rng.IntN(len(pool))]
					if at(a) == "" {
						serial++
						live[fmt.Sprint("gw-", serial)] = a
						tell("%d: gw-%d at %s", step, serial, a)
					}
				case 1:
					for _, n := range slices.Sorted(maps.Keys(live)) {
						tell("%d: %s goes", step, n)
						delete(live, n)
						break
					}
				case 2: // two take each other's
					if all := slices.Sorted(maps.Keys(live)); len(all) > 1 {
						x, y := all[0], all[len(all)-1]
						live[x], live[y] = live[y], live[x]
						tell("%d: %s and %s swap", step, x, y)
						maps.DeleteFunc(up, func(_ netip.AddrPort, n string) bool { return n == x || n == y })
					}
				case 3:
					told = maps.Clone(live)
				case 4:
					clear(names)
				}
				maps.DeleteFunc(up, func(_ netip.AddrPort, n string) bool { _, is := live[n]; return !is })
			} else {
				told = maps.Clone(live)
			}
			var listed []*mesh.Gateway
			for _, n := range slices.Sorted(maps.Keys(told)) {
				listed = append(listed, &mesh.Gateway{Name: n, Address: told[n]})
			}
			is := map[netip.AddrPort]bool{}
			for a := range up {
				is[a] = true
			}
			wanted := map[netip.AddrPort]bool{}
			for _, g := range beside(configured, listed, spiffeid.ID{}, maps.Clone(names), is) {
				wanted[g.Address] = true
			}
			maps.DeleteFunc(up, func(a netip.AddrPort, _ string) bool { return !wanted[a] })
			ended := 0
			dial := slices.SortedFunc(maps.Keys(wanted), netip.AddrPort.Compare)
			rng.Shuffle(len(dial), func(i, j int) { dial[i], dial[j] = dial[j], dial[i] })
			for _, a := range dial {
				if _, already := up[a]; already {
					continue
				}
				n := at(a)
				if n == "" {
					continue
				}
				for other, x := range up {
					if x == n {
						delete(up, other)
						ended++
						tell("%d: %s ends %s's stream at %s for %s", step, n, n, other, a)
					}
				}
				up[a], names[a] = n, n
			}
			if step < 70 {
				continue
			}
			has := slices.Sorted(maps.Values(up))
			if want := slices.Sorted(maps.Keys(live)); !slices.Equal(has, want) {
				t.Fatalf("seed %d, step %d: streams to %q, gateways are %v; configured %v, up %v, names %v\n%s", seed, step, has, live, configured, up, names, strings.Join(story, "\n"))
			}
		}
	}
}
