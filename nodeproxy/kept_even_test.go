package nodeproxy

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// evenCases are how many connections come to how many pods. The bounds of the hottest pod
// against the mean are the budgets of docs/performance.md, but that of few connections to
// many pods: it is that of one turn of 48 connections, and a few that come before the next pod is
// there. The budget is 5.
var evenCases = []struct {
	sources, pods, perPod int
	rate                  float64 // connections a second of all sources
	bound                 float64
	long                  bool // for the benchmark alone
}{
	{1, 3, 200, 20, 1.05, false},
	{3, 3, 200, 20, 1.05, false},
	{200, 3, 1000, 400, 1.05, true},
	{1, 60, 50, 60, 1.2, false},
	{3, 60, 50, 180, 1.2, false},
	{200, 60, 200, 400, 1.2, true},
	{1, 1000, 12, 60, 4.5, true},
	{3, 1000, 12, 60, 4.5, false},
	{3, 1000, 12, 180, 4.5, true},
	{200, 1000, 12, 800, 4.5, true},
	{1, 1000, 200, 60, 1.6, true},
	{3, 1000, 200, 180, 1.6, true},
	{200, 1000, 200, 800, 1.6, true},
}

// even returns what the busiest pod got against the mean once sets are warm, the part of
// connections that took one round trip, and how many each session carried.
func even(t testing.TB, sources, pods, perPod int, rate float64) (hottest, warm, perSession float64) {
	w := newDistant(pods, 2, 40*time.Millisecond)
	defer w.end()
	w.connectFrom(sources)
	const lasts = 100 * time.Millisecond
	if _, errs := w.crowd(int(10*rate), rate, lasts); len(errs) > 0 {
		t.Fatalf("while it gets warm: %v", errs[0])
	}
	w.forget()
	before := w.handshakes()
	trips, errs := w.crowd(pods*perPod, rate, lasts)
	if len(errs) > 0 {
		t.Errorf("%d of %d failed: %v", len(errs), pods*perPod, errs[0])
	}
	return w.hottest(), once(trips), float64(pods*perPod) / float64(max(1, w.handshakes()-before))
}

func TestConnectionsAreSpreadEvenlyByTheRealPool(t *testing.T) {
	for _, c := range evenCases {
		if underRace || c.long {
			continue
		}
		t.Run(fmt.Sprintf("%d sources, %d pods, %d each", c.sources, c.pods, c.perPod), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hot, warm, uses := even(t, c.sources, c.pods, c.perPod, c.rate)
				t.Logf("hottest pod %.2f of the mean, %.1f %% in one round trip, %.0f connections per session", hot, 100*warm, uses)
				if hot > c.bound {
					t.Errorf("the hottest pod got %.2f of the mean; want at most %v", hot, c.bound)
				}
			})
		})
	}
}

// The two gateways reach other pods: each pod has its part nevertheless, soon.
func TestConnectionsAreSpreadEvenlyOverGroupsByTheRealPool(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		groups []int
		perPod int
		rate   float64
		bound  float64
	}{{[]int{3, 1}, 100, 20, 1.15}, {[]int{10, 1}, 300, 20, 1.15}, {[]int{1, 1}, 100, 20, 1.1}} {
		t.Run(fmt.Sprint(c.groups), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pods := c.groups[0] + c.groups[1]
				w := newDistant(pods, 2, 40*time.Millisecond)
				defer w.end()
				w.groups = c.groups
				w.tellHealth()
				const lasts = 100 * time.Millisecond
				if _, errs := w.crowd(int(10*c.rate), c.rate, lasts); len(errs) > 0 {
					t.Fatalf("while it gets warm: %v", errs[0])
				}
				w.forget()
				if _, errs := w.crowd(pods*c.perPod, c.rate, lasts); len(errs) > 0 {
					t.Errorf("%d of %d failed: %v", len(errs), pods*c.perPod, errs[0])
				}
				var got []int
				for _, p := range w.pods {
					got = append(got, w.got[p.Endpoint])
				}
				if hot := w.hottest(); hot > c.bound || slices.Min(got) < int(float64(c.perPod)*(2-c.bound)) {
					t.Errorf("pods got %v connections, want about %d each", got, c.perPod)
				}
			})
		})
	}
}

// BenchmarkEvenness is of all cases, in virtual time.
func BenchmarkEvenness(b *testing.B) {
	for _, c := range evenCases {
		b.Run(fmt.Sprintf("sources=%d/pods=%d/each=%d/rate=%v", c.sources, c.pods, c.perPod, c.rate), func(b *testing.B) {
			for b.Loop() {
				var hot, warm, uses float64
				synctest.Test(new(testing.T), func(*testing.T) { hot, warm, uses = even(b, c.sources, c.pods, c.perPod, c.rate) })
				b.ReportMetric(hot, "hottest/mean")
				b.ReportMetric(100*warm, "%in1RTT")
				b.ReportMetric(uses, "connections/session")
				b.ReportMetric(0, "ns/op")
				if hot > c.bound {
					b.Errorf("the hottest pod got %.2f of the mean; want at most %v", hot, c.bound)
				}
			}
		})
	}
}
