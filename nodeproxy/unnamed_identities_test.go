package nodeproxy

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// Behind stock gateways, which name nobody, a service may have pods of several service
// accounts: all pods are well, and no connection of a burst fails.
func TestABurstThroughStockGatewaysReachesPodsOfSeveralIdentities(t *testing.T) {
	if underRace {
		t.Skip("so many crash its runtime in bubbles")
	}
	for _, c := range []struct{ connections, identities int }{{1200, 1}, {1200, 2}, {800, 4}, {1200, 4}} {
		t.Run(fmt.Sprintf("%d connections, %d identities", c.connections, c.identities), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newDistant(4, 2, 40*time.Millisecond)
				defer w.end()
				w.silent = true
				for i, p := range w.pods {
					if i%c.identities > 0 {
						p.Identity = torturedID(fmt.Sprint("account-", i%c.identities))
					}
				}
				w.discover()
				if _, errs := w.crowd(c.connections, 1e6, 3*time.Second); len(errs) > 0 {
					t.Errorf("%d of %d failed: %v", len(errs), c.connections, errs[0])
				}
			})
		})
	}
}
