package nodeproxy

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/lines"
)

// Inputs of transcripts.

type selectorInput func(s *selector, now time.Time)

// tcpLine is what TCP measured, in three samples.
func tcpLine(rtt time.Duration, congestion string, segments, lost uint64) selectorInput {
	return func(s *selector, now time.Time) {
		for i := range uint64(3) {
			s.sample(now, lineSample{rtt: rtt, minRTT: rtt, segments: float64((segments + i) / 3), lost: float64((lost + i) / 3), bbr: congestion == "bbr"}, lineSample{})
		}
	}
}

// quicLine is what QUIC measured, in some samples.
func quicLine(samples int, packets, lost float64) selectorInput {
	return func(s *selector, now time.Time) {
		for range samples {
			s.sample(now, lineSample{}, lineSample{rtt: 40 * msec, minRTT: 40 * msec, segments: packets, lost: lost})
		}
	}
}

// burst is loss in a single sample.
func burst(segments, lost float64) selectorInput {
	return func(s *selector, now time.Time) {
		s.sample(now, lineSample{rtt: 40 * msec, minRTT: 40 * msec, segments: segments, lost: lost, bbr: true}, lineSample{})
	}
}

// passes is a probe that succeeds.
func passes(took time.Duration) selectorInput {
	return func(s *selector, now time.Time) {
		s.probed = now
		s.probeDone(now, took, nil)
	}
}

var (
	noResponse  = func(s *selector, now time.Time) { s.probeDone(now, time.Second, errors.New("no answer")) }
	probeStarts = func(s *selector, now time.Time) { s.probed = now }
	stalls      = func(s *selector, now time.Time) { s.requestProbe(now) }
	nothing     = func(*selector, time.Time) {}
)

type selectorStep struct {
	at    time.Duration
	input selectorInput
	want  string // transport, "failing" if QUIC fails, and "probe" if one is wanted
	why   string // in the reason
}

const msec = time.Millisecond

func TestSelectorTranscripts(t *testing.T) {
	const min = time.Minute
	lossy := tcpLine(40*msec, "bbr", 1000, 10)
	onQUIC := []selectorStep{
		{0, lossy, "tcp probe", "probed"},
		{0, probeStarts, "tcp", "probed"},
		{0, passes(90 * msec), "quic", "lost 1 %"},
	}
	for _, c := range []struct {
		name  string
		steps []selectorStep
	}{
		{"starts with TCP", []selectorStep{
			{0, nothing, "tcp", "not measured"},
		}},
		{"no loss", []selectorStep{
			{0, tcpLine(40*msec, "bbr", 1e6, 0), "tcp", "QUIC needs a loss of 0.1 %"},
			{10 * min, tcpLine(40*msec, "cubic", 1e6, 0), "tcp", "QUIC needs a loss of 0.01 %"},
			{11 * min, passes(80 * msec), "tcp", "QUIC needs a loss of 0.01 %"},
		}},
		{"loss that bbr bears", []selectorStep{
			{0, tcpLine(40*msec, "bbr", 100000, 50), "tcp", "a loss of 0.1 %"},
		}},
		{"the same with cubic", []selectorStep{
			{0, tcpLine(40*msec, "cubic", 100000, 50), "tcp probe", "probed"},
		}},
		{"too few lost packets to tell", []selectorStep{
			{0, tcpLine(40*msec, "cubic", 100, 2), "tcp", "QUIC needs 3 lost packets, and in 3 samples"},
			{min, tcpLine(40*msec, "cubic", 100, 2), "tcp probe", "probed"},
		}},
		{"a transfer that overflows a queue at its start", []selectorStep{
			{0, burst(10000, 500), "tcp", "QUIC needs 3 lost packets, and in 3 samples"},
			{10 * time.Second, burst(60000, 0), "tcp", "QUIC needs 3 lost packets, and in 3 samples"},
			{20 * time.Second, burst(60000, 100), "tcp", "QUIC needs 3 lost packets, and in 3 samples"},
			{30 * time.Second, burst(60000, 0), "tcp", "QUIC needs 3 lost packets, and in 3 samples"},
		}},
		{"loss in each sample", []selectorStep{
			{0, burst(100, 1), "tcp", "QUIC needs 3 lost packets, and in 3 samples"},
			{10 * time.Second, burst(100, 1), "tcp", "QUIC needs 3 lost packets, and in 3 samples"},
			{20 * time.Second, burst(100, 1), "tcp", "QUIC needs 3 lost packets, and in 3 samples"},
			{30 * time.Second, burst(100, 1), "tcp probe", "probed"},
		}},
		{"lossy but near", []selectorStep{
			{0, tcpLine(msec, "cubic", 1000, 10), "tcp", "QUIC needs a round trip of 5ms"},
		}},
		{"lossy and near, acknowledgements are delayed", []selectorStep{
			{0, func(s *selector, now time.Time) {
				for range 3 {
					s.sample(now, lineSample{rtt: 17 * msec, minRTT: msec, segments: 1000, lost: 10, bbr: true}, lineSample{})
				}
			}, "tcp", "QUIC needs a round trip of 5ms, where the least is 1ms"},
		}},
		{"loss and UDP", onQUIC},
		{"UDP blocked from the start", []selectorStep{
			{0, lossy, "tcp probe", ""},
			{0, probeStarts, "tcp", ""},
			{1 * time.Second, noResponse, "tcp failing", "UDP failed 0s ago (no answer)"},
			{9 * min, lossy, "tcp failing", "again in 1m1s"},
			{10*min + time.Second, lossy, "tcp failing probe", "probed"},
			{10*min + time.Second, probeStarts, "tcp failing", ""},
			{10*min + 2*time.Second, noResponse, "tcp failing", "UDP failed"},
			{20*min + 2*time.Second, lossy, "tcp failing probe", ""},
			{20*min + 2*time.Second, passes(90 * msec), "quic", ""},
		}},
		{"a session stalls, UDP passes", append(onQUIC[:3:3],
			selectorStep{min, stalls, "tcp probe", "stalled"},
			selectorStep{min + 90*msec, passes(90 * msec), "quic", ""},
		)},
		{"a session stalls, UDP is blocked", append(onQUIC[:3:3],
			selectorStep{min, stalls, "tcp probe", ""},
			selectorStep{min + time.Second, noResponse, "tcp failing", "no answer"},
			selectorStep{10 * min, lossy, "tcp failing", "again in 1m1s"},
			selectorStep{11*min + time.Second, lossy, "tcp failing probe", ""},
		)},
		{"QUIC fails, then TCP loses no packets", append(onQUIC[:3:3],
			selectorStep{min, stalls, "tcp probe", ""},
			selectorStep{min + time.Second, noResponse, "tcp failing", "no answer"},
			selectorStep{10 * min, tcpLine(40*msec, "bbr", 1e6, 0), "tcp failing", "again in 1m1s"},
			selectorStep{12 * min, tcpLine(40*msec, "bbr", 1e6, 0), "tcp", "QUIC needs a loss of 0.1 %"},
		)},
		{"sessions stall, close or are late repeatedly, UDP passes", append(onQUIC[:3:3],
			selectorStep{min, stalls, "tcp probe", "stalled"},
			selectorStep{min + 90*msec, passes(90 * msec), "quic", ""},
			selectorStep{2 * min, stalls, "tcp probe", ""},
			selectorStep{2*min + 90*msec, passes(90 * msec), "quic", ""},
			selectorStep{3 * min, stalls, "tcp probe", ""},
			selectorStep{3*min + 90*msec, passes(90 * msec), "quic", ""},
			selectorStep{4 * min, stalls, "tcp probe", ""},
			selectorStep{4*min + 90*msec, passes(90 * msec), "quic", ""},
		)},
		{"one probe fails, the next one does not", append(onQUIC[:3:3],
			selectorStep{min, nothing, "quic probe", ""},
			selectorStep{min, probeStarts, "quic", ""},
			selectorStep{min + time.Second, noResponse, "tcp probe", "stalled"},
			selectorStep{min + 2*time.Second, passes(90 * msec), "quic", ""},
		)},
		{"UDP is throttled", append(onQUIC[:3:3],
			selectorStep{min, probeStarts, "quic", ""},
			selectorStep{min + 600*msec, passes(600 * msec), "tcp", "stalled"},
			selectorStep{min + 1600*msec, nothing, "tcp probe", ""},
			selectorStep{min + 2*time.Second, passes(700 * msec), "tcp", "stalled"},
			selectorStep{min + 3*time.Second, passes(800 * msec), "tcp failing", "3 QUIC handshakes were slow, the last took 800ms"},
		)},
		{"the line or this process pauses", append(onQUIC[:3:3],
			selectorStep{min, stalls, "tcp probe", ""},
			selectorStep{min + 600*msec, passes(600 * msec), "tcp", "stalled"},
			selectorStep{min + 2*time.Second, passes(90 * msec), "quic", ""},
			selectorStep{5 * min, stalls, "tcp probe", ""},
			selectorStep{5*min + 600*msec, passes(600 * msec), "tcp", "stalled"},
			selectorStep{5*min + 2*time.Second, passes(700 * msec), "tcp", "stalled"},
			selectorStep{5*min + 4*time.Second, passes(90 * msec), "quic", ""},
		)},
		{"an outage of a line without loss", []selectorStep{
			{0, burst(60000, 0), "tcp", "QUIC needs a loss of 0.1 %"},
			{10 * time.Second, burst(60000, 100), "tcp", "QUIC needs"},
			{20 * time.Second, burst(80, 75), "tcp", "QUIC needs"},
			{30 * time.Second, burst(60, 60), "tcp", "QUIC needs"},
			{40 * time.Second, burst(6000, 80), "tcp", "QUIC needs 3 lost packets, and in 3 samples"},
		}},
		{"a long line is not a throttled one", []selectorStep{
			{0, tcpLine(300*msec, "bbr", 1000, 10), "tcp probe", ""},
			{0, passes(900 * msec), "quic", ""},
		}},
		{"loss goes away", append(onQUIC[:3:3],
			selectorStep{59 * min, tcpLine(40*msec, "bbr", 1e6, 0), "quic probe", ""},
			selectorStep{60 * min, tcpLine(40*msec, "bbr", 1e6, 0), "tcp", "QUIC needs a loss of 0.1 %"},
			selectorStep{61 * min, tcpLine(40*msec, "bbr", 1e6, 1e5), "tcp", "tried in 9m0s"},
			selectorStep{70 * min, lossy, "tcp probe", ""},
		)},
		{"less loss than at first keeps QUIC", []selectorStep{
			{0, tcpLine(40*msec, "bbr", 1e6, 1100), "tcp probe", ""},
			{0, passes(90 * msec), "quic", ""},
			{30 * min, tcpLine(40*msec, "bbr", 1e6, 500), "quic probe", ""},
			{31 * min, tcpLine(40*msec, "bbr", 1e6, 500), "quic probe", ""},
		}},
		{"QUIC loses packets, TCP is not used", append(onQUIC[:3:3],
			selectorStep{30 * min, quicLine(1, 1000, 2), "quic probe", "started when TCP with bbr lost 1 % of its packets at a round trip of 40ms"},
			selectorStep{60 * min, quicLine(1, 10, 0), "quic probe", "lost 1 %"},
			selectorStep{89 * min, quicLine(1, 100, 0.5), "quic probe", ""},
			selectorStep{148 * min, quicLine(1, 10, 0), "quic probe", ""},
		)},
		{"QUIC loses no packet in an hour", append(onQUIC[:3:3],
			selectorStep{30 * min, quicLine(1, 1000, 2), "quic probe", ""},
			selectorStep{89 * min, quicLine(1, 10, 0), "quic probe", ""},
			selectorStep{90 * min, quicLine(1, 10, 0), "tcp", "QUIC needs"},
			selectorStep{91 * min, tcpLine(40*msec, "bbr", 1000, 0), "tcp", "QUIC needs a loss of 0.1 %"},
		)},
		{"QUIC loses few packets", append(onQUIC[:3:3],
			selectorStep{59 * min, quicLine(1, 20_000, 1), "quic probe", ""},
			selectorStep{118 * min, quicLine(1, 20_000, 1), "quic probe", ""},
		)},
		{"the line gets shorter", append(onQUIC[:3:3],
			selectorStep{60 * min, func(s *selector, now time.Time) {
				s.sample(now, lineSample{}, lineSample{rtt: msec, minRTT: msec, segments: 30_000, lost: 100})
			}, "tcp", ""},
		)},
		{"QUIC loses far more than TCP did", append(onQUIC[:3:3],
			selectorStep{min, quicLine(5, 100, 8), "quic probe", "TCP with bbr lost 1 %"},
			selectorStep{min + 10*time.Second, quicLine(1, 100, 8), "tcp failing", "QUIC lost 8 % of its packets 0s ago, it is tried again in 6h0m0s, or if TCP loses 2 %"},
			selectorStep{30 * min, lossy, "tcp failing", "QUIC lost 8 % of its packets 29m0s ago, it is tried again in 5h31m0s, or if TCP loses 2 %"},
			selectorStep{6*time.Hour + 2*min, lossy, "tcp failing probe", "probed"},
			selectorStep{6*time.Hour + 2*min, passes(90 * msec), "quic", ""},
		)},
		{"the line loses far more than before", append(onQUIC[:3:3],
			selectorStep{20 * min, quicLine(6, 100, 8), "tcp failing", "QUIC lost 8 %"},
			selectorStep{21 * min, tcpLine(40*msec, "bbr", 1000, 80), "tcp failing probe", "probed"},
			selectorStep{21 * min, passes(90 * msec), "quic", ""},
			selectorStep{22 * min, quicLine(20, 100, 8), "quic probe", "TCP with bbr lost 8 %"},
		)},
		{"an outage is no rate limit", append(onQUIC[:3:3],
			selectorStep{min, quicLine(2, 100, 50), "quic probe", ""},
			selectorStep{2 * min, quicLine(1, 100, 1), "quic probe", ""},
			selectorStep{2 * min, quicLine(5, 100, 8), "quic probe", ""},
		)},
		{"QUIC loses more than TCP did, but little", append(onQUIC[:2:2],
			selectorStep{0, tcpLine(40*msec, "bbr", 9000, 0), "tcp", "probed"},
			selectorStep{time.Second, passes(90 * msec), "quic", ""},
			selectorStep{min, quicLine(20, 1000, 19), "quic", "TCP with bbr lost"},
		)},
		{"a longer path has slower handshakes", append(onQUIC[:3:3],
			selectorStep{min, func(s *selector, now time.Time) {
				s.sample(now, lineSample{}, lineSample{rtt: 300 * msec, minRTT: 300 * msec, segments: 100, lost: 1})
			}, "quic probe", ""},
			selectorStep{min, passes(900 * msec), "quic", ""},
			selectorStep{3 * min, passes(900 * msec), "quic", ""},
			selectorStep{5 * min, passes(900 * msec), "quic", ""},
		)},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s selector
			start := time.Unix(1e9, 0)
			for i, step := range c.steps {
				now := start.Add(step.at)
				step.input(&s, now)
				got := s.transport()
				if s.failing(now) {
					got += " failing"
				}
				if s.wantsProbe(now) {
					got += " probe"
				}
				if reason := s.reason(now); got != step.want || !strings.Contains(reason, step.why) {
					t.Fatalf("step %d, %v: %s (%s); want %s (%s)", i, step.at, got, reason, step.want, step.why)
				}
			}
		})
	}
}

// The limits of the selector hold for random inputs.
func TestSelectorRandomSchedules(t *testing.T) {
	seed := rand.Uint64()
	switches, limits := 0, 0
	for run := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, run))
		var s selector
		now := time.Unix(1e9, 0)
		var all, settled, requests []time.Time // changes of transport, those without a pending probe, and requested probes
		var failed time.Time
		lost, limited := 0., false // segments of TCP; UDP has a rate limit
		for range 2000 {
			now = now.Add(time.Duration(r.Int64N(int64(time.Minute))))
			before, quic, was := s.transport(), s.quic, s
			opens := false // the input allows a change to QUIC
			switch r.IntN(12) {
			case 0:
				requests = append(requests, now)
				s.requestProbe(now)
			case 1:
				if r.IntN(20) == 0 {
					s.fail(now, "lost")
					failed = now
				}
			case 2, 3, 4:
				if s.wantsProbe(now) {
					s.probed = now
				}
				if r.IntN(4) == 0 {
					s.probeDone(now, time.Second, errors.New("no answer"))
				} else {
					took := time.Duration(r.Int64N(int64(600 * msec)))
					opens = took <= s.slowLimit()
					s.probeDone(now, took, nil)
				}
			default:
				rtt := time.Duration(r.Int64N(int64(100 * msec)))
				x := lineSample{rtt: rtt, minRTT: rtt - time.Duration(r.Int64N(1+int64(rtt))), segments: float64(r.IntN(5000)), bbr: r.IntN(2) == 0}
				if r.IntN(3) == 0 {
					x.lost = float64(r.IntN(50))
				}
				lost += x.lost
				y := lineSample{rtt: x.rtt, minRTT: x.minRTT, segments: float64(r.IntN(5000))}
				if limited = limited != (r.IntN(20) == 0); limited {
					y.lost = y.segments / 5
				} else if r.IntN(3) == 0 {
					y.lost = float64(r.IntN(50))
				}
				if r.IntN(10) == 0 {
					x, y = lineSample{}, lineSample{}
				}
				s.sample(now, x, y)
			}
			failures := s.cause != "" && (s.changed != was.changed || s.rejectedAt == now)
			if after := s.transport(); after != before {
				all = append(all, now)
			}
			if s.quic != quic {
				settled = append(settled, now)
				switches++
				if s.rejectedAt == now {
					limits++
				}
			}
			switch {
			case s.quic && !quic && !opens:
				t.Fatalf("seed %d, run %d: QUIC without a QUIC handshake", seed, run)
			case s.quic && !quic && lost == 0:
				t.Fatalf("seed %d, run %d: QUIC without loss", seed, run)
			case !failed.IsZero() && now.Sub(failed) < quicBackoff && s.transport() != lines.TCP:
				t.Fatalf("seed %d, run %d: QUIC %v after a failure", seed, run, now.Sub(failed))
			case quic && !s.quic && !failures && now.Sub(was.changed) < quicBackoff:
				t.Fatalf("seed %d, run %d: QUIC left after %v without a failure", seed, run, now.Sub(was.changed))
			case s.quic && !quic && !was.rejectedAt.IsZero() && now.Sub(was.rejectedAt) < lossBackoff && s.baseline.ratio() < was.rejectedLoss/maxLossFactor:
				t.Fatalf("seed %d, run %d: QUIC %v after it lost %g, while TCP loses %g", seed, run, now.Sub(was.rejectedAt), was.rejectedLoss, s.baseline.ratio())
			case s.quic && s.excessSamples > maxExcessSamples && s.udp.ratio() > max(minExcessLoss, maxLossFactor*s.baseline.ratio()):
				t.Fatalf("seed %d, run %d: QUIC loses %g, TCP lost %g", seed, run, s.udp.ratio(), s.baseline.ratio())
			case quic && !s.quic && s.probePending:
				t.Fatalf("seed %d, run %d: a probe is pending for a transport that is not in use", seed, run)
			case s.failing(now) && (s.transport() != lines.TCP || s.cause == ""):
				t.Fatalf("seed %d, run %d: QUIC fails, and new sessions use %s: %s", seed, run, s.transport(), s.reason(now))
			case lastIn(settled, now, time.Hour) > 12:
				t.Fatalf("seed %d, run %d: %d changes in an hour", seed, run, lastIn(settled, now, time.Hour))
			case lastIn(all, now, quicBackoff) > 4*maxSlowProbes+2*lastIn(requests, now, quicBackoff):
				t.Fatalf("seed %d, run %d: %d changes in %v with pending probes", seed, run, lastIn(all, now, quicBackoff), quicBackoff)
			}
			if s.reason(now) == "" {
				t.Fatalf("seed %d, run %d: no reason", seed, run)
			}
		}
	}
	if switches < 1000 || limits < 50 {
		t.Errorf("seed %d: %d changes in all, %d for the loss of QUIC: these schedules test nothing", seed, switches, limits)
	}
}

// randomLine is a line that loses each packet with the same probability, sampled every 10 s.
type randomLine struct {
	*rand.Rand
	selector
	now     time.Time
	changes int
	packets int // in a sample
}

// run takes samples for d of the transport in use, and probes where the selector wants it. It stops early at the first change if
// first is true.
func (l *randomLine) run(d time.Duration, tcpLoss, quicLoss float64, first bool) {
	for end := l.now.Add(d); l.now.Before(end); l.now = l.now.Add(10 * time.Second) {
		quic := l.quic
		sample := func(p float64) lineSample {
			x := lineSample{rtt: 40 * msec, minRTT: 40 * msec, segments: float64(l.packets), bbr: true}
			for i := l.gap(p); i < l.packets; i += 1 + l.gap(p) {
				x.lost++
			}
			return x
		}
		if quic {
			l.sample(l.now, lineSample{}, sample(quicLoss))
		} else {
			l.sample(l.now, sample(tcpLoss), lineSample{})
		}
		if l.wantsProbe(l.now) {
			l.probeDone(l.now, 90*msec, nil)
		}
		if l.quic != quic {
			if l.changes++; first {
				return
			}
		}
	}
}

// gap draws how many packets arrive before one is lost.
func (l *randomLine) gap(p float64) int {
	if p == 0 {
		return l.packets
	}
	return int(math.Log(1-l.Float64()) / math.Log1p(-p))
}

// A line that goes on to lose packets keeps QUIC, and one that does not leaves it.
func TestSelectorStaysWhileLineLosesPackets(t *testing.T) {
	seed := rand.Uint64()
	for run := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, run))
		l := randomLine{Rand: r, now: time.Unix(1e9, 0), packets: int(50 * math.Pow(40, r.Float64()))}
		loss := quicLossBBR * math.Pow(20, r.Float64())
		if run%4 == 0 { // the least
			l.packets, loss = 60, quicLossBBR
		}
		if l.run(6*time.Hour, loss, loss, true); !l.quic {
			t.Fatalf("seed %d, run %d: no QUIC at %g loss, %d packets", seed, run, loss, l.packets)
		}
		if l.run(24*time.Hour, loss, loss, false); l.changes != 1 {
			t.Errorf("seed %d, run %d: %d changes in a day at %g loss, %d packets; want none (%s)", seed, run, l.changes-1, loss, l.packets, l.reason(l.now))
			continue
		}
		// quic-go counts a small part of what connections with little traffic lose.
		if l.run(24*time.Hour, loss, loss/20, false); time.Duration(l.changes-1) > 2*24*time.Hour/(noLossPeriod+quicBackoff)+1 {
			t.Errorf("seed %d, run %d: %d changes in a day at %g loss, of which QUIC counts little", seed, run, l.changes-1, loss)
		}
		if !l.quic {
			l.run(6*time.Hour, loss, loss, true)
		}
		if l.run(noLossPeriod+quicBackoff, loss, 0, true); l.quic {
			t.Errorf("seed %d, run %d: QUIC after more than an hour without loss", seed, run)
		}
		if l.run(24*time.Hour, 0, 0, true); l.quic {
			t.Errorf("seed %d, run %d: QUIC on a line without loss", seed, run)
		}
	}
}

// A rate limit for UDP that drops packets is found within minutes, and costs little after that.
func TestSelectorLeavesUDPThatLosesMore(t *testing.T) {
	seed := rand.Uint64()
	for run := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, run))
		l := randomLine{Rand: r, now: time.Unix(1e9, 0), packets: 300 + r.IntN(2000)}
		loss := quicLossBBR * (1 + 3*r.Float64())
		l.run(6*time.Hour, loss, 0.08, true)
		began := l.now
		if l.run(time.Hour, loss, 0.08, true); l.quic || l.now.Sub(began) > 5*time.Minute {
			t.Errorf("seed %d, run %d: QUIC for %v at %g loss over TCP and 8 %% over QUIC", seed, run, l.now.Sub(began), loss)
		}
		l.changes = 0
		if l.run(24*time.Hour, loss, 0.08, false); l.changes > 8 {
			t.Errorf("seed %d, run %d: %d changes in a day at %g loss over TCP and 8 %% over QUIC", seed, run, l.changes, loss)
		}
	}
}

// lastIn returns how many times are in the last d.
func lastIn(times []time.Time, now time.Time, d time.Duration) (n int) {
	for _, at := range times {
		if now.Sub(at) < d {
			n++
		}
	}
	return n
}
