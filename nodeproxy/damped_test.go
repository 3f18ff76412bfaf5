package nodeproxy

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/damping"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// said is what a witness has said of its one pod.
type said struct {
	mu     sync.Mutex
	out    bool
	since  time.Time
	edges  int           // out or back
	outFor time.Duration // so far, up to since
	reason string
	words  int // of any kind
}

func (s *said) hear(f federation.EndpointFact, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.words++
	s.reason = f.Reason
	if out := f.State != federation.Healthy; out != s.out {
		if s.edges++; s.out {
			s.outFor += now.Sub(s.since)
		}
		s.out, s.since = out, now
	}
}

func (s *said) isOut() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out
}

// watchFor has a witness beside an application that refuses while down says so, of
// the time since the start, and users connect every 20 ms while it is not out.
func watchFor(t *testing.T, long time.Duration, down func(time.Duration) bool) *said {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	begun := time.Now()
	connect := func(context.Context, netip.AddrPort, time.Duration) (net.Conn, error) {
		if down(time.Since(begun)) {
			return nil, syscall.ECONNREFUSED
		}
		a, b := net.Pipe()
		b.Close()
		return a, nil
	}
	pod := &mesh.Workload{UID: "west/default/hello-1", Network: "west", Node: "west-1", Endpoint: 7, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.7")}}
	c := DefaultConfig()
	c.Network = "west"
	var w *witness
	s := &said{}
	w = newWitness(ctx, c, func(health.Key) *mesh.Workload { return pod }, connect, func(targets ...healthstream.Target) {
		for _, x := range targets {
			f, _ := w.Fact(x)
			s.hear(f.EndpointFact, time.Now())
		}
	}, zerolog.Nop())
	for time.Since(begun) < long {
		if !s.isOut() {
			if c, _, err := w.dial(ctx, pod, 8080, netip.Addr{}); err == nil {
				c.Close()
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	cancel()
	w.prober.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.out {
		s.outFor += time.Since(s.since)
	}
	return s
}

// Short faults that are far apart cost a sound pod next to nothing, and one that
// flaps once a second is out, with an edge now and then.
func TestBlipsAreForgivenAndFlapsAreDamped(t *testing.T) {
	const long = 20 * time.Minute
	for _, c := range []struct {
		name         string
		every, down  time.Duration
		mostOut      float64 // part of the time
		leastOut     float64
		edgesAMinute float64 // at most
		wordsAMinute float64 // at most: what travels to the gateways of the network
		edgesAtLeast int
	}{
		{"a blip of 0.1 s every 30 s", 30 * time.Second, 100 * time.Millisecond, 0.02, 0, 4, 5, 70},
		{"a flap of 1 Hz", time.Second, 500 * time.Millisecond, 1, 0.9, 2.2, 200, 3},
		{"a flap of 0.05 Hz", 20 * time.Second, 10 * time.Second, 1, 0.5, 6, 60, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := watchFor(t, long, func(d time.Duration) bool { return d > time.Minute && d%c.every < c.down })
				out, edges, words := float64(s.outFor)/float64(long-time.Minute), float64(s.edges)/long.Minutes(), float64(s.words)/long.Minutes()
				t.Logf("out %.2f %% of the time, %.2f edges and %.1f words a minute", 100*out, edges, words)
				if out > c.mostOut || out < c.leastOut {
					t.Errorf("out %.2f %% of the time; want %v to %v %%", 100*out, 100*c.leastOut, 100*c.mostOut)
				}
				if edges > c.edgesAMinute || s.edges < c.edgesAtLeast {
					t.Errorf("%.2f edges a minute; want at most %v, and %d in all at least", edges, c.edgesAMinute, c.edgesAtLeast)
				}
				if words > c.wordsAMinute {
					t.Errorf("%.1f words a minute; want at most %v", words, c.wordsAMinute)
				}
			})
		})
	}
}

// A first fault, however long, ends with the first answer; what flaps is said to
// answer at once, and to be back when it has answered for long enough.
func TestAFirstFaultIsNotDamped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := watchFor(t, time.Minute, func(d time.Duration) bool { return d > time.Second && d < 21*time.Second })
		if s.edges != 2 || s.outFor < 20*time.Second-50*time.Millisecond || s.outFor > 20*time.Second+600*time.Millisecond {
			t.Errorf("%d edges, out for %v of a fault of 20 s; want it back with the first probe that is answered", s.edges, s.outFor)
		}
	})
	for _, c := range []struct {
		until  time.Duration
		reason string
	}{{6500 * time.Millisecond, damping.Reason}, {9 * time.Second, ""}} {
		synctest.Test(t, func(t *testing.T) {
			// the third ejection is held back for 2 s; the second was, for 1 s
			s := watchFor(t, c.until, func(d time.Duration) bool {
				return d < 6*time.Second && (d > time.Second && d < 1100*time.Millisecond || d > 3*time.Second && d < 3100*time.Millisecond || d > 5500*time.Millisecond)
			})
			if s.reason != c.reason || s.out != (c.reason != "") {
				t.Errorf("after %v it is said to be out: %v, %q; want %q", c.until, s.out, s.reason, c.reason)
			}
		})
	}
}
