//go:build linux

package capture

import (
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
)

// Setting rules again, as each node proxy does that takes over, breaks nothing that is open and says something just then.
func TestOpenConnectionsStayWhileRulesAreSetAgain(t *testing.T) {
	p := newSource(t)
	p.application(t, "pod", ":8080")
	must(t, Set(p.ns, all()))
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		c, err := p.as(netip.MustParseAddrPort(otherAddress+":0"), podAddress+":8080")
		must(t, err)
		defer c.Close()
		seen(t, c)
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				default:
				}
				if err := echoed(c); err != nil {
					t.Errorf("after %d: %v", n, err)
					return
				}
			}
		})
	}
	for n := range 60 {
		must(t, SetSource(p.ns, false))
		if n%2 == 0 {
			must(t, Set(p.ns, mesh))
		} else {
			must(t, Set(p.ns, all()))
		}
	}
	close(done)
	wg.Wait()
}

// The zone's rule comes back however it went, and once.
func TestTheZoneIsSetAgain(t *testing.T) {
	netspace.NeedNft(t)
	p := newSource(t)
	nft := func(commands string) string {
		t.Helper()
		out, err := p.Nft("pod", commands)
		must(t, err)
		return out
	}
	const rule = "ct original zone set 1337"
	for _, damage := range []string{"list tables", "flush ruleset", "flush table inet " + zoneTable, "delete chain inet " + zoneTable + " " + zoneChain, "delete table inet " + zoneTable} {
		nft(damage)
		for range 2 {
			must(t, SetSource(p.ns, false))
			if n := strings.Count(nft("list table inet "+zoneTable), rule); n != 1 {
				t.Errorf("after %q the rule is there %d times", damage, n)
			}
		}
	}
}
