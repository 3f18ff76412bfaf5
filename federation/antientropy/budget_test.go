//go:build !race

// The budgets are of one goroutine in virtual time: the race detector would find
// nothing, and take ten times as long.

package antientropy

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/damping"
)

// headers is a bound of what TLS, TCP and IP add to a message, in bytes.
const headers = 60

// cost is what one gateway pays, in bytes per second: the costliest of all.
type cost struct{ sent, got, messages, total, join float64 }

// newFederation is networks of two gateways, the last one of one if their number is odd.
func newFederation(t testing.TB, seed string, gateways int) *world {
	w := newWorld(t, seed, (gateways+1)/2, 2)
	w.only(gateways)
	return w
}

// quiet runs networks of two gateways each with nothing changing; one in sick
// services (0: none) has a pod that is out. It counts 30 s after 24, of more than 50
// gateways 10 s after 15.
func quiet(t testing.TB, gateways, services, sick int) cost {
	w := newFederation(t, "quiet", gateways)
	for _, s := range w.sites {
		w.start(s)
	}
	for _, s := range w.sites {
		for n := range services {
			h := uint32(10)
			if sick > 0 && n%sick == 0 {
				h = 9
			}
			for _, err := range []error{s.node.Publisher().Put(export(n), s.time(w)), s.node.Publisher().Put(healthy(n, h), s.time(w))} {
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		s.node.Publisher().Synchronise()
		w.tick(s)
	}
	w.run(3 * time.Second)
	long, settle := 30*time.Second, introduced+time.Second // certificates go with statements until then
	if gateways > 50 {                                     // of 200 gateways a second takes several
		long, settle = 10*time.Second, quietAfter+2*time.Second
		for _, s := range w.sites {
			s.node.Publisher().Certified(s.time(w).Add(-introduced))
		}
	}
	for _, s := range w.sites { // not all draw at the same time, as those that started together
		s.node.drawn = s.time(w).Add(-time.Duration(w.rng.Int64N(int64(drawEvery))))
	}
	w.run(settle)
	if err := w.agree(); err != nil {
		t.Fatal(err)
	}
	c := cost{join: float64(w.sites[0].got)}
	for _, s := range w.sites {
		s.sent, s.got, s.messages = 0, 0, 0
	}
	w.run(long)
	for _, s := range w.sites {
		c.sent, c.got, c.messages = max(c.sent, float64(s.sent)/long.Seconds()), max(c.got, float64(s.got)/long.Seconds()), max(c.messages, float64(s.messages)/long.Seconds())
	}
	c.total = c.sent + c.got + 2*headers*c.messages
	return c
}

// Ten networks of two gateways, nothing changes: less than 20 kB/s at each,
// also while one pod in a hundred stands sick. That it does not depend on the
// number of services is what makes this test of 20 count for 2 000: see
// BenchmarkFederationQuiet.
func TestQuietFederationCostsAtMost20KilobytesPerSecond(t *testing.T) {
	var costs []cost
	for _, c := range []struct{ services, sick int }{{20, 0}, {20, 10}, {100, 0}} {
		got := quiet(t, 20, c.services, c.sick)
		t.Logf("20 gateways × %d services: %.0f B/s sent, %.0f B/s received, %.1f kB/s with headers", c.services, got.sent, got.got, got.total/1e3)
		if got.total > 20_000 {
			t.Errorf("got %.0f B/s, want at most 20 000", got.total)
		}
		costs = append(costs, got)
	}
	if a, b := costs[0].total, costs[2].total; b > 1.05*a {
		t.Errorf("five times the services cost %.0f B/s instead of %.0f: what does not change must not be sent", b, a)
	}
}

// edges returns how long each of a number of edges took to reach all gateways,
// sorted; zero stands for one that did not within a second and a half.
func edgeTimes(t testing.TB, gateways, edges int, loss float64) []time.Duration {
	w := newFederation(t, "edge", gateways)
	for _, s := range w.sites {
		w.start(s)
	}
	w.run(2 * time.Second)
	for _, s := range w.sites {
		w.publish(s, export(0), healthy(0, 10))
	}
	w.run(5 * time.Second)
	if err := w.agree(); err != nil {
		t.Fatal(err)
	}
	w.loss = loss
	const apart = 350 * time.Millisecond // between edges, if they arrive: a record may change every 300 ms
	took := make([]time.Duration, edges)
	for e := range took {
		origin := w.sites[e%len(w.sites)]
		want := uint32(e+e/len(w.sites)) % 10
		seen := map[string]bool{}
		begun := w.now
		w.onChange = func(s *site) {
			h, _ := s.node.Ledger().Health(origin.network, serviceName(0), 80)
			for _, d := range h.Deliveries {
				if d.Instance == origin.key.ID() && d.Health.Healthy == want && !seen[s.name] {
					seen[s.name] = true
					if len(seen) == len(w.sites) {
						took[e] = w.now.Sub(begun)
					}
				}
			}
		}
		w.publish(origin, healthy(0, want))
		for w.run(apart); took[e] == 0 && w.now.Sub(begun) < 1500*time.Millisecond; {
			w.run(apart)
		}
	}
	slices.Sort(took)
	return took
}

// An edge reaches all of 50 gateways 40 ms away within a second at 5 % loss,
// and within a round trip and 50 ms without.
func TestEdgeReachesFiftyGateways(t *testing.T) {
	for _, c := range []struct {
		loss  float64
		bound time.Duration
		edges int
	}{{0, 130 * time.Millisecond, 2}, {0.05, time.Second, 15}} {
		took := edgeTimes(t, 50, c.edges, c.loss)
		t.Logf("50 gateways, 40 ms, %.0f %% lost: edge at all of them after %v (median), %v (slowest of %d)", c.loss*100, took[len(took)/2], took[len(took)-1], len(took))
		if took[0] == 0 || took[len(took)-1] > c.bound {
			t.Errorf("got %v, want all within %v", took, c.bound)
		}
	}
}

// BenchmarkFederationQuiet reports what one gateway pays while nothing changes.
func BenchmarkFederationQuiet(b *testing.B) {
	for _, c := range []struct{ gateways, services, sick int }{{5, 200, 10}, {20, 2000, 0}, {20, 2000, 10}, {20, 2000, 100}, {50, 100, 10}, {100, 20, 10}, {200, 5, 5}} {
		b.Run(fmt.Sprintf("gateways=%d/services=%d/sick=%d", c.gateways, c.services, c.sick), func(b *testing.B) {
			for b.Loop() {
				got := quiet(b, c.gateways, c.services, c.sick)
				b.ReportMetric(got.sent, "sentB/s")
				b.ReportMetric(got.got, "receivedB/s")
				b.ReportMetric(got.total, "withHeadersB/s")
				b.ReportMetric(got.join, "joinB")
			}
		})
	}
}

// BenchmarkFederationEdge reports how long an edge takes to reach all.
func BenchmarkFederationEdge(b *testing.B) {
	for _, gateways := range []int{5, 20, 50, 100, 200} {
		for _, loss := range []float64{0, 0.05} {
			b.Run(fmt.Sprintf("gateways=%d/loss=%v", gateways, loss), func(b *testing.B) {
				for b.Loop() {
					edges := 100
					if gateways > 50 {
						edges = 40
					}
					took := edgeTimes(b, gateways, edges, loss)
					if took[0] == 0 {
						b.Fatal("an edge did not arrive")
					}
					b.ReportMetric(float64(took[len(took)/2].Milliseconds()), "medianMs")
					b.ReportMetric(float64(took[len(took)-1].Milliseconds()), "slowestMs")
				}
			})
		}
	}
}

// BenchmarkFederationFlapping reports what one of 20 gateways pays while each
// publishes a number of edges per second, all of other records.
func BenchmarkFederationFlapping(b *testing.B) {
	for _, rate := range []int{1, 10, 100} {
		b.Run(fmt.Sprintf("edges=%d", rate), func(b *testing.B) {
			for b.Loop() {
				w := newWorld(b, "flapping", 10, 2)
				for _, s := range w.sites {
					w.start(s)
				}
				w.run(3 * time.Second)
				const long = 10 * time.Second
				for _, s := range w.sites {
					s.sent, s.got, s.messages = 0, 0, 0
				}
				for n := range int(long.Seconds()) * rate {
					for _, s := range w.sites {
						w.publish(s, healthy(n%1000, uint32(n/1000+n)%10))
					}
					w.run(time.Second / time.Duration(rate))
				}
				sent, messages := 0, 0
				for _, s := range w.sites {
					sent, messages = max(sent, s.sent), max(messages, s.messages)
				}
				w.run(3 * time.Second)
				if err := w.agree(); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(sent)/long.Seconds(), "sentB/s")
				b.ReportMetric(float64(messages)/long.Seconds(), "messages/s")
			}
		})
	}
}

// BenchmarkFederationAlternating reports what one of 20 gateways pays while 1 % of
// 200 000 pods alternate once a second, 200 in each of ten networks and each in a
// service of its own: as their gateways would say it of itself, and with what their
// witnesses hold back (federation/damping). Meanwhile single edges of another service
// are timed; CPU is that of the simulation, by gateway and second.
func BenchmarkFederationAlternating(b *testing.B) {
	for _, damped := range []bool{false, true} {
		b.Run(fmt.Sprintf("damped=%v", damped), func(b *testing.B) {
			for b.Loop() {
				alternate(b, damped)
			}
		})
	}
}

func alternate(b *testing.B, damped bool) {
	const services, warm, long = 200, 30, 10 // services that alternate; seconds
	w := newWorld(b, "alternating", 10, 2)
	for _, s := range w.sites {
		w.start(s)
		for n := range services + 1 {
			if err := s.node.Publisher().Put(healthy(n, 10), s.time(w)); err != nil {
				b.Fatal(err)
			}
		}
		w.tick(s)
	}
	w.run(5 * time.Second)
	damper := damping.New[damping.Key](services)
	out := make([]bool, services)
	var begun time.Time // on the clock of the machine
	var took []time.Duration
	for second := range warm + long {
		if second == warm {
			for _, s := range w.sites {
				s.sent, s.got, s.messages = 0, 0, 0
			}
			begun = time.Now()
		}
		for n := range services { // spread over the second
			k := damping.Key{Endpoint: 1, Port: uint16(n + 1)}
			was := out[n]
			switch sick := second%2 == 0; {
			case sick && !out[n]:
				out[n] = true
				damper.Ejected(k, w.now)
			case sick:
				damper.Failed(k, w.now)
			case out[n] && (!damped || !damper.Answered(k, w.now).After(w.now)):
				out[n] = false
				damper.Readmitted(k, w.now)
			}
			if was != out[n] {
				h := uint32(10)
				if out[n] {
					h = 9
				}
				for _, s := range w.sites {
					w.publish(s, healthy(n, h))
				}
			}
			if n == services/2 && second >= warm {
				origin, start, seen := w.sites[second%len(w.sites)], w.now, map[string]bool{}
				w.onChange = func(s *site) {
					h, _ := s.node.Ledger().Health(origin.network, serviceName(services), 80)
					for _, d := range h.Deliveries {
						if d.Instance == origin.key.ID() && d.Health.Healthy == 9 && !seen[s.name] {
							if seen[s.name] = true; len(seen) == len(w.sites) {
								took = append(took, w.now.Sub(start))
							}
						}
					}
				}
				w.publish(origin, healthy(services, 9)) // once by each
			}
			w.run(time.Second / services)
		}
	}
	cpu := time.Since(begun)
	sent, got := 0, 0
	for _, s := range w.sites {
		sent, got = max(sent, s.sent), max(got, s.got)
	}
	w.run(10 * time.Second)
	if err := w.agree(); err != nil {
		b.Fatal(err)
	}
	slices.Sort(took)
	b.ReportMetric(float64(sent)/long, "sentB/s")
	b.ReportMetric(float64(got)/long, "receivedB/s")
	b.ReportMetric(float64(cpu.Milliseconds())/long/float64(len(w.sites)), "cpuMs/s")
	b.ReportMetric(float64(len(took)), "edges")
	if len(took) > 0 {
		b.ReportMetric(float64(took[len(took)/2].Milliseconds()), "medianMs")
		b.ReportMetric(float64(took[len(took)-1].Milliseconds()), "slowestMs")
	}
}
