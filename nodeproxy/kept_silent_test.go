package nodeproxy

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// While nobody knows yet that the nodes of half of the pods are lost, connections go on sessions that are not
// silent: only those wait that were begun before the first PING was overdue. When these have waited in vain, nobody is
// sent to their pods again, though the gateway would, and none waits longer than the PING and a repetition.
func TestConnectionsAvoidSilentSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDistant(6, 1, 10*time.Millisecond)
		defer w.end()
		if _, errs := w.crowd(60, 20, 10*time.Millisecond); len(errs) > 0 {
			t.Fatal(errs[0])
		}
		time.Sleep(10 * time.Second)
		w.mu.Lock()
		w.lost = map[mesh.EndpointID]bool{}
		for _, p := range w.pods[:3] {
			w.lost[p.Endpoint] = true
		}
		w.mu.Unlock()
		lost := time.Now()
		var mu sync.Mutex
		var calls sync.WaitGroup
		slow, last, longest := 0, time.Duration(0), time.Duration(0)
		for i := range 1000 {
			calls.Go(func() {
				began := time.Now()
				w.connect(i, time.Millisecond) // whose byte was lost is not repeated, and fails
				mu.Lock()
				defer mu.Unlock()
				if time.Since(began) > 500*time.Millisecond {
					slow, last, longest = slow+1, max(last, began.Sub(lost)), max(longest, time.Since(began))
				}
			})
			time.Sleep(10 * time.Millisecond)
		}
		calls.Wait()
		t.Logf("%d of 1000 connections took over 500 ms, %v the longest, the last begun %v after the loss", slow, longest, last)
		if last > time.Second || longest > 6*time.Second {
			t.Errorf("a connection begun %v after the loss took over 500 ms (%d in all), the longest %v", last, slow, longest)
		}
	})
}
