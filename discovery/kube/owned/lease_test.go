package owned

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// candidate is one that wants the Lease of api, and whether it works.
type candidate struct {
	election *Election
	working  atomic.Bool
	done     chan struct{}
}

func newCandidate(api *fake.Clientset, name string) *candidate {
	c := &Client{core: api, namespace: "x", log: zerolog.Nop(), fails: map[string]string{}, warned: map[string]time.Time{}}
	return &candidate{election: c.Election("lease", name, 15*time.Second), done: make(chan struct{})}
}

func (c *candidate) run(ctx context.Context) {
	defer close(c.done)
	c.election.Run(ctx, func(ctx context.Context) {
		c.working.Store(true)
		<-ctx.Done()
		c.working.Store(false)
	})
}

// However long the API server was away: afterwards somebody leads, and works.
func TestSomebodyWorksAfterAnAPIServerWasAway(t *testing.T) {
	for away := 5 * time.Second; away <= 20*time.Second; away += 600 * time.Millisecond {
		synctest.Test(t, func(t *testing.T) {
			api := fake.NewSimpleClientset()
			var down atomic.Bool
			api.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
				if down.Load() {
					return true, nil, errors.New("connection refused")
				}
				return false, nil, nil
			})
			ctx, cancel := context.WithCancel(t.Context())
			first, second := newCandidate(api, "first"), newCandidate(api, "second")
			go first.run(ctx)
			time.Sleep(time.Minute)
			go second.run(ctx)
			time.Sleep(time.Minute)
			if !first.working.Load() || second.working.Load() {
				t.Fatalf("first works %v, second works %v; want the first alone", first.working.Load(), second.working.Load())
			}
			down.Store(true)
			time.Sleep(away)
			down.Store(false)
			time.Sleep(time.Hour)
			if first.working.Load() == second.working.Load() {
				leader, _ := first.election.Leader()
				t.Errorf("away for %v, an hour later: first works %v, second works %v, and %q has the Lease; want one that works", away, first.working.Load(), second.working.Load(), leader)
			}
			cancel()
			<-first.done
			<-second.done
		})
	}
}

// A candidate that is stopped at any moment ends; the race detector sees whether its work was
// counted before somebody waited for it.
func TestACandidateThatIsStoppedAtAnyMomentEnds(t *testing.T) {
	for i := range 200 {
		c := newCandidate(fake.NewSimpleClientset(), "first")
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%100)*10*time.Microsecond)
		go c.run(ctx)
		<-c.done
		cancel()
	}
}
