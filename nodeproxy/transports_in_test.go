package nodeproxy

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/internal/lines"
	"github.com/isthmus-mesh/isthmus/internal/localfault"
	"github.com/isthmus-mesh/isthmus/mesh"
)

var westGateway = &mesh.Gateway{Network: "west", Name: "gw-1"}

// onQUIC returns transports that use QUIC to west.
func onQUIC() (t *transports, moved *[]bool) {
	t, moved = newTransports(zerolog.Nop()), new([]bool)
	t.onChange = func(_ string, quic bool) { *moved = append(*moved, quic) }
	t.transportFor(westGateway, origin{})
	t.update("west", func(s *networkTransport, now time.Time) {
		for range 3 {
			s.sample(now, lineSample{rtt: 40 * time.Millisecond, minRTT: 40 * time.Millisecond, segments: 1000, lost: 10}, lineSample{})
		}
	})
	t.probeDone("west", 80*time.Millisecond, nil)
	return t, moved
}

func TestTransportToNetwork(t *testing.T) {
	p := &Proxy{}
	p.transports, _ = onQUIC()
	p.cfg.Lines.Transports = map[string]string{"west": lines.Auto, "north": lines.QUIC, "south": lines.Auto}
	for _, c := range []struct {
		network string
		bulk    bool
		want    string
	}{
		{"west", false, lines.Auto}, {"west", true, lines.TCP},
		{"north", false, lines.QUIC}, {"north", true, lines.TCP},
		{"south", false, lines.TCP}, {"east", false, lines.TCP},
	} {
		if got := p.transportTo(&mesh.Gateway{Network: c.network, Name: "gw-1"}, origin{}, c.bulk); got != c.want {
			t.Errorf("to %s, bulk %v: %s, want %s", c.network, c.bulk, got, c.want)
		}
	}
	if n := p.transports.networks(); len(n) != 2 {
		t.Errorf("state of %q; want it of networks with auto alone", n)
	}
	p.transports.retain(new(discovery.Store).Current())
	if n := p.transports.networks(); len(n) > 0 {
		t.Errorf("state of %q, which discovery does not list", n)
	}
}

// Failures of this host are no failures of UDP. Others are after a second probe.
func TestTransportsIgnoreLocalFailures(t *testing.T) {
	x, moved := onQUIC()
	x.probeDone("west", 0, &dialError{localfault.New(syscall.EMFILE)})
	if got, why := x.current("west"); got != lines.QUIC || len(*moved) != 1 {
		t.Errorf("%s (%s), moved %v; want QUIC", got, why, *moved)
	}
	x.probeDone("west", 0, errors.New("no answer"))
	if got, why := x.current("west"); got != lines.TCP || len(*moved) != 1 {
		t.Errorf("%s (%s), moved %v; want TCP for new sessions after a probe has failed", got, why, *moved)
	}
	x.probeDone("west", 0, errors.New("no answer"))
	if got, why := x.current("west"); got != lines.TCP || len(*moved) != 2 {
		t.Errorf("%s (%s), moved %v; want TCP after the second one", got, why, *moved)
	}
}

// Sessions stall and close for many reasons. While probes pass, new sessions use QUIC.
func TestFailedSessionsAreNoUDPFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &probedPath{takes: 80 * time.Millisecond}
		changes := runTransports(t, u, func(x *transports) {
			time.Sleep(time.Minute)
			for range 100 {
				x.requestProbe("west")
				time.Sleep(2 * time.Second)
				if got, why := x.current("west"); got != lines.QUIC {
					t.Fatalf("%s (%s); want QUIC", got, why)
				}
			}
		})
		if changes != 101 {
			t.Errorf("%d changes; want one to QUIC, and one back to it after each probe", changes)
		}
	})
}

// After a probe, sessions that were opened over TCP meanwhile are replaced.
func TestTransportsReturnAfterProbe(t *testing.T) {
	x, moved := onQUIC()
	x.requestProbe("west")
	if got, _ := x.current("west"); got != lines.TCP || len(*moved) != 1 {
		t.Errorf("%s, moved %v; want TCP for new sessions alone", got, *moved)
	}
	x.probeDone("west", 80*time.Millisecond, nil)
	if got, _ := x.current("west"); got != lines.QUIC || len(*moved) != 2 || !(*moved)[1] {
		t.Errorf("%s, moved %v; want QUIC again", got, *moved)
	}
}

func TestSampleOfCountsSinceTheLast(t *testing.T) {
	type totals = map[*hbone.Session]lineTotals
	a, b, c := new(hbone.Session), new(hbone.Session), new(hbone.Session)
	first := totals{a: {bbr: true, rtt: 40 * time.Millisecond, minRTT: 30 * time.Millisecond, sent: 100, lost: 5}, c: {quic: true, rtt: 30 * time.Millisecond, minRTT: 30 * time.Millisecond, sent: 20, lost: 2}}
	second := totals{a: {bbr: true, rtt: 40 * time.Millisecond, minRTT: 30 * time.Millisecond, sent: 150, lost: 7}, b: {rtt: 80 * time.Millisecond, minRTT: 80 * time.Millisecond, sent: 10, lost: 1},
		c: {quic: true, rtt: 50 * time.Millisecond, minRTT: 50 * time.Millisecond, sent: 21.5, lost: 1.5}} // QUIC may find that a packet was not lost
	for _, x := range []struct {
		open, before totals
		tcp, quic    lineSample
	}{
		{nil, nil, lineSample{bbr: true}, lineSample{}},
		{first, nil, lineSample{1, 40 * time.Millisecond, 30 * time.Millisecond, 100, 5, true}, lineSample{1, 30 * time.Millisecond, 30 * time.Millisecond, 20, 2, false}},
		{second, first, lineSample{2, 60 * time.Millisecond, 30 * time.Millisecond, 60, 3, false}, lineSample{1, 50 * time.Millisecond, 50 * time.Millisecond, 1.5, 0, false}},
		{totals{b: second[b]}, second, lineSample{1, 80 * time.Millisecond, 80 * time.Millisecond, 0, 0, false}, lineSample{}},
	} {
		if tcp, quic := sampleOf(x.open, x.before); tcp != x.tcp || quic != x.quic {
			t.Errorf("%+v and %+v, want %+v and %+v", tcp, quic, x.tcp, x.quic)
		}
	}
}

// The loss of a line is that of the last minutes, up to the time that it is read, and is kept when the transport changes.
func TestLossIsRecent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, s, total := newTransports(zerolog.Nop()), new(hbone.Session), lineTotals{}
		x.onChange = func(string, bool) {}
		x.transportFor(westGateway, origin{})
		open := func() map[string]map[*hbone.Session]lineTotals {
			return map[string]map[*hbone.Session]lineTotals{"west": {s: total}, "south": {}}
		}
		for i, step := range []struct {
			samples int
			lost    float64 // of 1000
			want    float64
		}{{0, 100, 0.1}, {360, 100, 0.1}, {30, 0, 0.05}, {60, 0, 0.0125}} {
			for range step.samples {
				time.Sleep(sampleEvery)
				total.sent, total.lost = total.sent+1000, total.lost+step.lost
				x.sample(open())
			}
			if step.samples == 0 {
				total.sent, total.lost = 1000, step.lost
			}
			x.update("west", func(s *networkTransport, now time.Time) { s.use(now, !s.quic) })
			got := x.losses(open())
			if l := got["west"].tcp.share(); l == nil || math.Abs(*l-step.want) > step.want/50 {
				t.Errorf("step %d: loss %v, want %g", i, l, step.want)
			}
			if l := got["west"].quic.share(); l != nil || got["south"].tcp.share() != nil {
				t.Errorf("step %d: loss of a line that sent nothing", i)
			}
		}
		if x.sample(nil); len(x.losses(nil)) > 0 {
			t.Error("loss of a network without sessions")
		}
	})
}

// Changes of the transport are counted, but not that to TCP while a probe is pending.
func TestTransportChangesAreCounted(t *testing.T) {
	x, _ := onQUIC()
	x.requestProbe("west")
	x.probeDone("west", 80*time.Millisecond, nil)
	x.probeDone("west", 0, errors.New("no answer"))
	x.probeDone("west", 0, errors.New("no answer"))
	for transport, want := range map[string]float64{lines.QUIC: 1, lines.TCP: 1} {
		if n := testutil.ToFloat64(x.changes.WithLabelValues("west", transport)); n != want {
			t.Errorf("%g changes to %s, want %g", n, transport, want)
		}
	}
}

// probedPath is UDP to west as probes find it.
type probedPath struct {
	mu       sync.Mutex
	takes    time.Duration
	err      error
	running  int
	probes   int
	together bool // two probes at a time
}

func (u *probedPath) set(takes time.Duration, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.takes, u.err = takes, err
}

func (u *probedPath) count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.probes
}

func (u *probedPath) probe(ctx context.Context, _ string) (time.Duration, error) {
	u.mu.Lock()
	u.running++
	u.probes++
	u.together = u.together || u.running > 1
	takes, err := u.takes, u.err
	u.mu.Unlock()
	defer func() {
		u.mu.Lock()
		u.running--
		u.mu.Unlock()
	}()
	if takes > 0 && !pause(ctx, min(takes, time.Second)) {
		return 0, context.Cause(ctx)
	}
	if takes > time.Second && err == nil {
		err = errors.New("no answer")
	}
	return takes, err
}

// runTransports runs transports to west, over TCP that loses packets, while test runs. It returns how often the transport
// has changed.
func runTransports(t *testing.T, u *probedPath, test func(x *transports)) int64 {
	var changes atomic.Int64
	x := newTransports(zerolog.Nop())
	x.probe, x.onChange = u.probe, func(string, bool) { changes.Add(1) }
	x.transportFor(westGateway, origin{})
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	s, total := new(hbone.Session), 0.
	run.Go(func() {
		x.run(ctx, func() map[string]map[*hbone.Session]lineTotals {
			total++
			return map[string]map[*hbone.Session]lineTotals{"west": {s: {bbr: true, rtt: 40 * time.Millisecond, minRTT: 40 * time.Millisecond, sent: 1000 * total, lost: 10 * total}}}
		})
	})
	test(x)
	cancel()
	run.Wait()
	if n := x.networks(); len(n) > 0 || u.running > 0 {
		t.Errorf("state of %q and %d probes are left", n, u.running)
	}
	if u.together {
		t.Error("two probes of a network at a time")
	}
	return changes.Load()
}

func TestBlockedUDPIsProbedEveryTenMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &probedPath{takes: time.Hour}
		changes := runTransports(t, u, func(*transports) { time.Sleep(time.Hour) })
		if changes != 0 || u.probes < 5 || u.probes > 7 {
			t.Errorf("%d changes and %d probes in an hour; want none, and one probe in ten minutes", changes, u.probes)
		}
	})
}

// UDP that is blocked for some pods is for these alone. They try it every ten minutes.
func TestPodsWithoutUDPUseTCPAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &probedPath{takes: 80 * time.Millisecond}
		tries, others := 0, 0
		changes := runTransports(t, u, func(x *transports) {
			time.Sleep(time.Minute)
			for minute := range 60 {
				for i := range 10 {
					pod := origin{from: fmt.Sprintf("blocked-%d", i)}
					if x.transportFor(westGateway, pod) == lines.QUIC {
						tries++
						time.Sleep(500 * time.Millisecond)
						x.requestProbe("west") // TCP is open
						time.Sleep(500 * time.Millisecond)
						x.handshakeFailed(westGateway, pod, errors.New("no answer"))
					}
				}
				time.Sleep(time.Minute)
				if x.transportFor(westGateway, origin{from: "pod"}) == lines.QUIC {
					others++
				}
				if _, why := x.current("west"); minute == 5 && !strings.Contains(why, "QUIC failed on 10 paths") {
					t.Errorf("the reason is %q; want the workloads without UDP", why)
				}
			}
		})
		if others != 60 || tries < 50 || tries > 70 {
			t.Errorf("QUIC for other pods %d times of 60, %d changes, and %d tries of pods without UDP; want 10 in ten minutes", others, changes, tries)
		}
	})
}

// A probe without a result, such as while all gateways drain, is repeated at the next sample, not at once.
func TestProbeWithoutResultWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &probedPath{takes: 80 * time.Millisecond}
		runTransports(t, u, func(x *transports) {
			time.Sleep(time.Minute)
			before := u.count()
			u.set(0, errUndeclared)
			x.requestProbe("west")
			time.Sleep(time.Minute)
			if n := u.count() - before; n < 2 || n > 7 {
				t.Errorf("%d probes in a minute; want one at each sample", n)
			}
		})
	})
}

func TestThrottledUDPIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &probedPath{takes: 80 * time.Millisecond}
		changes := runTransports(t, u, func(x *transports) {
			time.Sleep(time.Minute)
			if got, why := x.current("west"); got != lines.QUIC {
				t.Fatalf("%s (%s); want QUIC", got, why)
			}
			u.set(700*time.Millisecond, nil)
			time.Sleep(2 * time.Minute)
			if got, why := x.current("west"); got != lines.TCP || !strings.Contains(why, "slow") {
				t.Errorf("%s (%s); want TCP, since UDP is slow", got, why)
			}
			time.Sleep(time.Hour)
		})
		if changes != 2 {
			t.Errorf("%d changes; want one to QUIC and one back", changes)
		}
	})
}

// For random observations a network has one probe at a time, and TCP for ten minutes after a failure.
func TestTransportsRandomObservations(t *testing.T) {
	seed := rand.Uint64()
	for run := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, run))
			u := &probedPath{takes: 80 * time.Millisecond}
			runTransports(t, u, func(x *transports) {
				for range 300 {
					time.Sleep(time.Duration(r.Int64N(int64(20 * time.Second))))
					switch r.IntN(9) {
					case 0:
						u.set(time.Duration(r.Int64N(int64(2*time.Second))), nil)
					case 1:
						u.set(80*time.Millisecond, nil)
					case 2:
						u.set(0, errors.New("refused"))
					case 3, 4:
						go x.requestProbe("west")
					case 5:
						go x.probeDone("west", 80*time.Millisecond, nil)
					case 6:
						if r.IntN(10) == 0 {
							x.update("west", func(s *networkTransport, now time.Time) { s.fail(now, "lost") })
							for range 9 {
								time.Sleep(time.Minute)
								x.probeDone("west", 80*time.Millisecond, nil)
								if x.transportFor(westGateway, origin{}) != lines.TCP {
									t.Fatalf("seed %d, run %d: QUIC within ten minutes of a failure", seed, run)
								}
							}
						}
					case 7:
						x.transportFor(westGateway, origin{from: "pod"})
					case 8:
						x.requestProbe("west")
						pod := origin{from: strconv.Itoa(r.IntN(20))}
						if x.handshakeFailed(westGateway, pod, errors.New("no answer")); x.transportFor(westGateway, pod) != lines.TCP {
							t.Fatalf("seed %d, run %d: QUIC for a source from which it failed", seed, run)
						}
					}
				}
			})
		})
	}
}

func TestWaysHaveOneTransportOrBoth(t *testing.T) {
	at := func(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
	g := &mesh.Gateway{Address: at("192.0.2.1:15008"), QUIC: []netip.AddrPort{at("192.0.2.7:443"), at("192.0.2.8:443")}}
	for over, want := range map[string]int{lines.TCP: 1, lines.QUIC: 2, lines.Auto: 2} {
		got := waysTo(g, over)
		if len(got) != want {
			t.Errorf("%s: %v, want %d ways", over, got, want)
		}
		for i, w := range got {
			if w.tcp != g.Address || w.quic != g.QUIC[i] {
				t.Errorf("%s: way %d is %v", over, i, w)
			}
		}
	}
}
