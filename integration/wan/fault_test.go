//go:build linux

package wan

import (
	"slices"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/wan"
)

func TestLossAndJitterOnlySlowDown(t *testing.T) {
	need(t)
	here.forget(t, double.host)
	calm := here.many(double, 100, 16, 16<<10)
	poor := line
	poor.Jitter, poor.Loss = 20*time.Millisecond, 0.01
	here.link.Set(poor)
	before := here.link.There.Counters().Lost + here.link.Back.Counters().Lost
	bad := here.many(double, 400, 16, 16<<10)
	lost := here.link.There.Counters().Lost + here.link.Back.Counters().Lost - before
	for _, err := range append(calm.errs, bad.errs...) {
		t.Error(err)
	}
	t.Logf("%d frames were lost; a connection took %v (median, longest %v), before %v", lost, median(bad.took), slices.Max(bad.took), median(calm.took))
	if lost < 10 {
		t.Errorf("only %d frames were lost: the line was not poor", lost)
	}
}

// cutFor is longer than a client may wait for one attempt, and shorter than it
// may try.
const cutFor = 8 * time.Second

func TestCutLineIsWaitedForOrAvoided(t *testing.T) {
	both := path{"double both", "client-ours", "shop", "both"}
	for _, p := range []path{double, both} {
		t.Run(p.service, func(t *testing.T) {
			need(t)
			here.forget(t, p.host)
			if warm := here.many(p, 60, 8, 0); len(warm.errs) > 0 {
				t.Fatal(warm.errs[0])
			}
			cut := wan.Conditions{Cut: true}
			here.link.Set(cut)
			begin := time.Now()
			heal := time.AfterFunc(cutFor, func() { here.link.Set(line) })
			defer heal.Stop()
			during := here.many(p, 24, 24, 0)
			t.Logf("%d connections at the begin of a cut of %v took %v (median, longest %v) and went to %v",
				len(during.took), cutFor, median(during.took), longest(during.took), during.places)
			for _, err := range during.errs {
				t.Error(err)
			}
			if p == both {
				for place := range during.places {
					if place < len(pods) && time.Since(begin) < cutFor {
						t.Errorf("pod %d answers through a cut line", place)
					}
				}
				again := here.many(p, 24, 8, 0)
				for _, err := range again.errs {
					t.Error(err)
				}
				if time.Since(begin) >= cutFor {
					t.Errorf("with healthy pods on this side of the cut, %d connections wait for its end", len(during.took)+len(again.took))
				}
			}
			time.Sleep(time.Until(begin.Add(cutFor)))
			waitFor(t, "a pod behind the line answers after the cut", func() error {
				_, err := here.ask(double, 0)
				return err
			})
			after := here.many(p, 60, 8, 0)
			t.Logf("after the cut %v (median, longest %v) to %v", median(after.took), longest(after.took), after.places)
			for _, err := range after.errs {
				t.Errorf("after the cut: %v", err)
			}
		})
	}
}

func longest(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	return slices.Max(all)
}
