package nodeproxy

import (
	"errors"
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
			s.sample(now, lineSample{rtt: rtt, segments: (segments + i) / 3, lost: (lost + i) / 3, bbr: congestion == "bbr"})
		}
	}
}

// burst is loss in a single sample.
func burst(segments, lost uint64) selectorInput {
	return func(s *selector, now time.Time) {
		s.sample(now, lineSample{rtt: 40 * msec, segments: segments, lost: lost, bbr: true})
	}
}

func handshake(took time.Duration) selectorInput {
	return func(s *selector, now time.Time) { s.shook(now, took, nil) }
}

var (
	noHandshake = func(s *selector, now time.Time) { s.shook(now, time.Second, errors.New("no answer")) }
	probeStarts = func(s *selector, now time.Time) { s.probing(now) }
	stalls      = func(s *selector, now time.Time) { s.suspect(now) }
	late        = func(s *selector, now time.Time) { s.late(now) }
	overtaken   = func(s *selector, now time.Time) { s.shook(now, 200*time.Millisecond, nil); s.stalled(now) }
	nothing     = func(*selector, time.Time) {}
)

type selectorStep struct {
	at    time.Duration
	input selectorInput
	want  string // transport, and "probe" if one is wanted
	why   string // in the reason
}

const msec = time.Millisecond

func TestSelectorTranscripts(t *testing.T) {
	const min = time.Minute
	lossy := tcpLine(40*msec, "bbr", 1000, 10)
	onQUIC := []selectorStep{
		{0, lossy, "tcp probe", "lost 1 %"},
		{0, probeStarts, "tcp", "probed"},
		{0, handshake(90 * msec), "quic", "lost 1 %"},
	}
	for _, c := range []struct {
		name  string
		steps []selectorStep
	}{
		{"starts with TCP", []selectorStep{
			{0, nothing, "tcp", "not measured"},
		}},
		{"no loss", []selectorStep{
			{0, tcpLine(40*msec, "bbr", 1e6, 0), "tcp", "too little"},
			{10 * min, tcpLine(40*msec, "cubic", 1e6, 0), "tcp", "too little"},
			{11 * min, handshake(80 * msec), "tcp", "too little"},
		}},
		{"loss that bbr bears", []selectorStep{
			{0, tcpLine(40*msec, "bbr", 100000, 50), "tcp", "0.05 %"},
		}},
		{"the same with cubic", []selectorStep{
			{0, tcpLine(40*msec, "cubic", 100000, 50), "tcp probe", "without bbr"},
		}},
		{"too few lost packets to tell", []selectorStep{
			{0, tcpLine(40*msec, "cubic", 100, 2), "tcp", "too little"},
			{min, tcpLine(40*msec, "cubic", 100, 2), "tcp probe", "probed"},
		}},
		{"a transfer that overflows a queue at its start", []selectorStep{
			{0, burst(10000, 500), "tcp", "too little"},
			{10 * time.Second, burst(60000, 0), "tcp", "too little"},
			{20 * time.Second, burst(60000, 100), "tcp", "too little"},
			{30 * time.Second, burst(60000, 0), "tcp", "too little"},
		}},
		{"loss in each sample", []selectorStep{
			{0, burst(100, 1), "tcp", "too little"},
			{10 * time.Second, burst(100, 1), "tcp", "too little"},
			{20 * time.Second, burst(100, 1), "tcp", "too little"},
			{30 * time.Second, burst(100, 1), "tcp probe", "probed"},
		}},
		{"lossy but near", []selectorStep{
			{0, tcpLine(msec, "cubic", 1000, 10), "tcp", "round trip of 1ms"},
		}},
		{"loss and UDP", onQUIC},
		{"UDP blocked from the start", []selectorStep{
			{0, lossy, "tcp probe", ""},
			{0, probeStarts, "tcp", ""},
			{1 * time.Second, noHandshake, "tcp", "UDP failed 0s ago (no answer)"},
			{9 * min, lossy, "tcp", "again in 1m1s"},
			{10*min + time.Second, lossy, "tcp probe", "probed"},
			{10*min + time.Second, probeStarts, "tcp", ""},
			{10*min + 2*time.Second, noHandshake, "tcp", "UDP failed"},
			{20*min + 2*time.Second, lossy, "tcp probe", ""},
			{20*min + 2*time.Second, handshake(90 * msec), "quic", ""},
		}},
		{"a session stalls, UDP passes", append(onQUIC[:3:3],
			selectorStep{min, stalls, "tcp probe", "stalled"},
			selectorStep{min + 90*msec, handshake(90 * msec), "quic", ""},
		)},
		{"a session stalls, UDP is blocked", append(onQUIC[:3:3],
			selectorStep{min, stalls, "tcp probe", ""},
			selectorStep{min + time.Second, noHandshake, "tcp", "no answer"},
			selectorStep{10 * min, lossy, "tcp", "again in 1m1s"},
			selectorStep{11*min + time.Second, lossy, "tcp probe", ""},
		)},
		{"sessions stall again and again", append(onQUIC[:3:3],
			selectorStep{min, stalls, "tcp probe", ""},
			selectorStep{min + 90*msec, handshake(90 * msec), "quic", ""},
			selectorStep{2 * min, stalls, "tcp probe", ""},
			selectorStep{2*min + 90*msec, handshake(90 * msec), "quic", ""},
			selectorStep{3 * min, stalls, "tcp", "stalled 3 times"},
			selectorStep{4 * min, handshake(90 * msec), "tcp", "stalled 3 times"},
		)},
		{"handshakes of some sources fail, others do not", append(onQUIC[:3:3],
			selectorStep{min, late, "tcp probe", "stalled"},
			selectorStep{min + 90*msec, handshake(90 * msec), "quic", ""},
			selectorStep{2 * min, late, "tcp probe", ""},
			selectorStep{2*min + 90*msec, handshake(90 * msec), "quic", ""},
			selectorStep{3 * min, late, "tcp probe", ""},
			selectorStep{3*min + 90*msec, handshake(90 * msec), "quic", ""},
			selectorStep{4 * min, late, "tcp probe", ""},
			selectorStep{4*min + 90*msec, handshake(90 * msec), "quic", ""},
		)},
		{"a handshake is late, UDP is blocked", append(onQUIC[:3:3],
			selectorStep{min, late, "tcp probe", ""},
			selectorStep{min + time.Second, noHandshake, "tcp", "no answer"},
		)},
		{"TCP overtakes QUIC again and again", append(onQUIC[:3:3],
			selectorStep{min, late, "tcp probe", ""},
			selectorStep{min, overtaken, "quic", ""},
			selectorStep{2 * min, late, "tcp probe", ""},
			selectorStep{2 * min, overtaken, "quic", ""},
			selectorStep{3 * min, late, "tcp probe", ""},
			selectorStep{3 * min, overtaken, "tcp", "stalled 3 times"},
		)},
		{"one probe fails, the next one does not", append(onQUIC[:3:3],
			selectorStep{min, nothing, "quic probe", ""},
			selectorStep{min, probeStarts, "quic", ""},
			selectorStep{min + time.Second, noHandshake, "tcp probe", "stalled"},
			selectorStep{min + 2*time.Second, handshake(90 * msec), "quic", ""},
		)},
		{"UDP is throttled", append(onQUIC[:3:3],
			selectorStep{min, probeStarts, "quic", ""},
			selectorStep{min + 600*msec, handshake(600 * msec), "quic", ""},
			selectorStep{min + 11*time.Second, nothing, "quic probe", ""},
			selectorStep{min + 12*time.Second, handshake(700 * msec), "quic", ""},
			selectorStep{min + 23*time.Second, handshake(800 * msec), "tcp", "3 QUIC handshakes were slow, the last took 800ms"},
		)},
		{"a long line is not a throttled one", []selectorStep{
			{0, tcpLine(300*msec, "bbr", 1000, 10), "tcp probe", ""},
			{0, handshake(900 * msec), "quic", ""},
		}},
		{"loss goes away", append(onQUIC[:3:3],
			selectorStep{9 * min, tcpLine(40*msec, "bbr", 1e6, 0), "quic probe", ""},
			selectorStep{11 * min, tcpLine(40*msec, "bbr", 1e6, 0), "tcp", "too little"},
			selectorStep{12 * min, tcpLine(40*msec, "bbr", 1e6, 1e5), "tcp", "tried in 9m0s"},
			selectorStep{21 * min, lossy, "tcp probe", ""},
		)},
		{"less loss than at first keeps QUIC", []selectorStep{
			{0, tcpLine(40*msec, "bbr", 1e6, 1100), "tcp probe", ""},
			{0, handshake(90 * msec), "quic", ""},
			{30 * min, tcpLine(40*msec, "bbr", 1e6, 500), "quic probe", ""},
			{31 * min, tcpLine(40*msec, "bbr", 1e6, 500), "quic probe", ""},
		}},
		{"no TCP traffic tells of loss", append(onQUIC[:3:3],
			selectorStep{30 * min, tcpLine(40*msec, "bbr", 10, 0), "quic probe", ""},
			selectorStep{59 * min, tcpLine(0, "", 0, 0), "quic probe", ""},
			selectorStep{60 * min, tcpLine(0, "", 0, 0), "tcp", ""},
		)},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s selector
			start := time.Unix(1e9, 0)
			for i, step := range c.steps {
				now := start.Add(step.at)
				step.input(&s, now)
				got := s.transport()
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

// Under random inputs the selector keeps to what it promises.
func TestSelectorRandomSchedules(t *testing.T) {
	seed := rand.Uint64()
	switches := 0
	for run := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, run))
		var s selector
		now := time.Unix(1e9, 0)
		var all, settled, lates []time.Time // changes of transport, and those that were not a doubt; late handshakes
		var failed time.Time
		lost := uint64(0)
		for range 2000 {
			now = now.Add(time.Duration(r.Int64N(int64(time.Minute))))
			before, quic := s.transport(), s.quic
			opens := false // the input allows a change to QUIC
			switch r.IntN(13) {
			case 0:
				s.suspect(now)
			case 12:
				if lates = append(lates, now); r.IntN(2) == 0 {
					s.late(now)
				} else {
					s.stalled(now)
				}
			case 1:
				if r.IntN(20) == 0 {
					s.fail(now, "lost")
					failed = now
				}
			case 2, 3, 4:
				if s.wantsProbe(now) {
					s.probing(now)
				}
				if r.IntN(4) == 0 {
					s.shook(now, time.Second, errors.New("no answer"))
				} else {
					took := time.Duration(r.Int64N(int64(600 * msec)))
					opens = took <= s.slowAfter()
					s.shook(now, took, nil)
				}
			default:
				x := lineSample{rtt: time.Duration(r.Int64N(int64(100 * msec))), segments: r.Uint64N(5000), bbr: r.IntN(2) == 0}
				if r.IntN(3) == 0 {
					x.lost = r.Uint64N(50)
				}
				lost += x.lost
				s.sample(now, x)
			}
			if after := s.transport(); after != before {
				all = append(all, now)
			}
			if s.quic != quic {
				settled = append(settled, now)
				switches++
			}
			switch {
			case s.quic && !quic && !opens:
				t.Fatalf("seed %d, run %d: QUIC without a QUIC handshake", seed, run)
			case s.quic && !quic && lost == 0:
				t.Fatalf("seed %d, run %d: QUIC without loss", seed, run)
			case !failed.IsZero() && now.Sub(failed) < udpPause && s.transport() != lines.TCP:
				t.Fatalf("seed %d, run %d: QUIC %v after a failure", seed, run, now.Sub(failed))
			case quic && !s.quic && !s.doubt.IsZero():
				t.Fatalf("seed %d, run %d: in doubt of a transport that is not in use", seed, run)
			case lastIn(settled, now, time.Hour) > 12:
				t.Fatalf("seed %d, run %d: %d changes in an hour", seed, run, lastIn(settled, now, time.Hour))
			case lastIn(all, now, udpPause) > 4*maxDoubts+2*lastIn(lates, now, udpPause):
				t.Fatalf("seed %d, run %d: %d changes in %v, doubts among them", seed, run, lastIn(all, now, udpPause), udpPause)
			}
			if s.reason(now) == "" {
				t.Fatalf("seed %d, run %d: no reason", seed, run)
			}
		}
	}
	if switches < 1000 {
		t.Errorf("seed %d: %d changes in all: these schedules test nothing", seed, switches)
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
