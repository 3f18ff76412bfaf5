package gateway

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/damping"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/health"
)

// A change is said at once, and a hundred a second as a few, of which the last one is
// what is true then.
func TestWhatChangesTooFastIsSaidAFewTimesASecond(t *testing.T) {
	for _, odd := range []int{0, 1} {
		t.Run(fmt.Sprint(odd), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBeliever(t)
				b.deliveries.behind = make(chan struct{}, 1)
				go b.deliveries.keepUp(t.Context())
				time.Sleep(time.Minute)
				changes := func() (n int) {
					b.mu.Lock()
					defer b.mu.Unlock()
					for i := range b.said {
						if i > 0 && b.said[i].Healthy != b.said[i-1].Healthy {
							n++
						}
					}
					return n
				}
				synctest.Wait()
				b.witnessed(federation.Ejected, true)
				if n := changes(); n != 1 {
					t.Errorf("%d changes were said of the first edge at once; want 1", n)
				}
				state := federation.Ejected
				for range 1000 + odd {
					time.Sleep(10 * time.Millisecond)
					synctest.Wait()
					state = federation.Ejected - state
					b.witnessed(state, true)
				}
				if n := changes(); n > 10*4+paceBurst+2 || n < 10 {
					t.Errorf("%d changes were said in 10 s; want about 4 a second at most, and some", n)
				}
				time.Sleep(paceEvery)
				synctest.Wait()
				if h := b.last(); (h.Healthy == 2) != (state == federation.Healthy) {
					t.Errorf("at last %d of 2 are said to be healthy; the pod is %v", h.Healthy, state)
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				before := changes()
				b.witnessed(federation.Ejected-state, true)
				if n := changes() - before; n != 1 {
					t.Errorf("%d changes were said at once after a quiet minute; want 1", n)
				}
			})
		})
	}
}

// A pod that answers and is held back for flapping is out beside one that is well,
// counts when that one is sick, and is chosen then.
func TestAPodThatIsHeldBackGoesBeforeASickOne(t *testing.T) {
	b := newBeliever(t)
	say := func(uid string, state federation.FactState, reason string) {
		key := health.Key{Endpoint: b.store.Current().Workload(uid).Endpoint, Port: 8080}
		e := healthstream.Edge{Target: healthstream.Target(key), Known: true}
		e.Fact.EndpointFact = federation.EndpointFact{Endpoint: key.Endpoint, Port: 8080, State: state, Reason: reason}
		b.facts[key] = e.Fact.EndpointFact
		b.takeEdges([]healthstream.Edge{e})
	}
	say("hello-1", federation.Ejected, damping.Reason)
	if h := b.last(); h.Healthy != 1 || len(h.Exceptions) != 1 || h.Exceptions[0].Endpoint != b.pod.Endpoint {
		t.Errorf("beside one that is well: %+v; want the pod left out", h)
	}
	say("hello-2", federation.Ejected, "refused")
	if h := b.last(); h.Healthy != 1 || len(h.Exceptions) != 1 || h.Exceptions[0].Endpoint == b.pod.Endpoint {
		t.Errorf("beside one that is sick: %+v; want the other left out", h)
	}
	say("hello-1", federation.Ejected, "refused")
	if h := b.last(); h.Healthy != 0 || len(h.Exceptions) != 2 {
		t.Errorf("both are sick: %+v", h)
	}
}
