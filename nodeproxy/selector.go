package nodeproxy

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/lines"
)

// selector chooses the transport of new sessions for small messages with the gateways of one network, with
// lines.transport: auto. It starts with TCP, uses QUIC while TCP loses packets and UDP passes, and returns to TCP for
// udpPause when QUIC fails. Times are arguments. The zero value is ready. Not safe for concurrent use.
type selector struct {
	quic    bool      // QUIC is in use
	changed time.Time // when quic last changed, or UDP failed; zero: never
	cause   string    // of the failure; empty: none since quic last changed

	line  lineFigures // of TCP, since quic last changed
	udp   lineFigures // of QUIC, while it is in use
	start lineFigures // of TCP, when QUIC was last started
	lossy time.Time   // when a packet was last lost, or quic last changed

	bad     int       // consecutive samples in which QUIC lost far more than TCP
	worse   float64   // share of packets that QUIC lost when it was last left for that
	worseAt time.Time // when; zero: never since QUIC was last started

	probed time.Time // start of the last probe, or end of the last QUIC handshake
	slow   int       // consecutive slow QUIC handshakes

	doubt  bool      // QUIC is in use, but new sessions use TCP until the result of a probe
	losses int       // see lost and overtaken, since first
	first  time.Time // start of the last period of udpPause in which losses are counted
}

const (
	// A lost packet of TCP delays the messages of all streams by a round trip or two. Below quicRTT (the least of all sessions,
	// since peers that delay acknowledgements and queues add to the smoothed one) that is no gain worth
	// the CPU of QUIC, which is several times that of TCP per byte (docs/lines.md).
	quicRTT = 5 * time.Millisecond
	// quicLossBBR is the share of lost segments from which QUIC is used beside bbr, quicLoss that for other algorithms,
	// which also slow down at each loss.
	quicLossBBR = 0.001
	quicLoss    = 0.0001
	// lossEvidence is how many lost segments, and in how many samples, are needed to start with QUIC. One burst of loss, as
	// when a transfer fills a queue, is not enough.
	lossEvidence = 3
	lossySamples = 2.5 // the third one in a minute or two
	// QUIC is left after lineClean without a lost packet. An idle preconnect pool sends thousands of packets in that time
	// (docs/lines.md). A rate would not do: quic-go does not count packets that it repeats after a probe timeout, which are
	// most of those that connections with little traffic lose.
	lineClean = time.Hour
	// lineHalfLife is when a sample of the line counts half.
	lineHalfLife = 5 * time.Minute
	// QUIC is also left when it loses worseThan times as much as TCP did, and at least worseLoss, in all and in each of
	// worseSamples consecutive samples. A rate limit for UDP does that, and a short outage does not. At 1 to 3 % loss QUIC
	// delays messages about as much as TCP at 0.1 % (docs/lines.md). QUIC is not started again for worsePause, unless TCP
	// loses a quarter as much.
	worseThan    = 4
	worseLoss    = 0.02
	worseSamples = 6
	worsePause   = 6 * time.Hour

	// udpPause is the least time on TCP after a failure of UDP, and between other changes.
	udpPause = 10 * time.Minute
	// maxLosses is how many lost or overtaken sessions in udpPause are a failure.
	maxLosses = 3
	// maxSlow is how many consecutive slow handshakes are a failure: UDP is throttled.
	maxSlow = 3
	// probeEvery is the pause between probes while QUIC is in use. probeSoon is that after a slow one, and before QUIC is
	// in use.
	probeEvery = time.Minute
	probeSoon  = 10 * time.Second
)

// lineSample are statistics of the open sessions for small messages to a network, over one transport, since the last sample.
type lineSample struct {
	sessions       int
	rtt            time.Duration // mean; zero: no session is open
	minRTT         time.Duration // of any session
	segments, lost float64       // or packets of QUIC
	bbr            bool          // all sessions use bbr
}

// lineFigures adds samples up. Older ones count less.
type lineFigures struct {
	at             time.Time
	segments, lost float64
	lossy          float64 // samples with lost segments
	rtt, minRTT    time.Duration
	bbr            bool
}

func (f *lineFigures) add(now time.Time, s lineSample) {
	if !f.at.IsZero() {
		left := math.Exp2(-now.Sub(f.at).Seconds() / lineHalfLife.Seconds())
		f.segments, f.lost, f.lossy = f.segments*left, f.lost*left, f.lossy*left
	}
	f.at = now
	f.segments += s.segments
	f.lost += min(s.lost, s.segments)
	if s.lost > 0 {
		f.lossy++
	}
	if s.rtt > 0 {
		f.rtt, f.minRTT, f.bbr = s.rtt, s.minRTT, s.bbr
	}
}

func (f lineFigures) ratio() float64 { return f.lost / max(1, f.segments) }

// share returns the ratio, or nil if nothing was sent.
func (f lineFigures) share() *float64 {
	if f.segments == 0 {
		return nil
	}
	ratio := f.ratio()
	return &ratio
}

func (f lineFigures) least() float64 {
	if f.bbr {
		return quicLossBBR
	}
	return quicLoss
}

// missing returns what small messages need to gain from QUIC; empty if they do.
func (f lineFigures) missing() string {
	switch {
	case f.minRTT < quicRTT:
		return fmt.Sprintf("a round trip of %v, where the least is %v", quicRTT, f.minRTT.Round(100*time.Microsecond))
	case f.ratio() < f.least():
		return fmt.Sprintf("a loss of %g %%", 100*f.least())
	case f.lost < lossEvidence || f.lossy < lossySamples:
		return fmt.Sprintf("%d lost packets, and in %d samples of %v", lossEvidence, lossEvidence, sampleEvery)
	}
	return ""
}

// String is for the figures with which QUIC was started.
func (f lineFigures) String() string {
	congestion := "without bbr"
	if f.bbr {
		congestion = "with bbr"
	}
	return fmt.Sprintf("TCP %s lost %.2g %% of its packets at a round trip of %v", congestion, 100*f.ratio(), f.minRTT.Round(100*time.Microsecond))
}

// sample records samples of both transports.
func (s *selector) sample(now time.Time, tcp, quic lineSample) {
	s.line.add(now, tcp)
	if !s.quic {
		return
	}
	s.udp.add(now, quic)
	limit := max(worseLoss, worseThan*s.start.ratio())
	if quic.lost >= limit*max(1, quic.segments) {
		s.bad++
	} else if quic.segments > 0 {
		s.bad = 0
	}
	if ratio := s.udp.ratio(); s.bad >= worseSamples && ratio >= limit {
		s.worse, s.worseAt = ratio, now
		s.fail(now, fmt.Sprintf("QUIC lost %.2g %% of its packets, TCP %.2g %%", 100*ratio, 100*s.start.ratio()))
		return
	}
	if tcp.lost+quic.lost > 0 && cmp.Or(s.udp.minRTT, s.line.minRTT) >= quicRTT/2 {
		s.lossy = now
	}
	if now.Sub(s.lossy) >= lineClean {
		s.use(now, false)
	}
}

// use changes the transport. Both are measured anew then.
func (s *selector) use(now time.Time, quic bool) {
	if quic {
		s.start, s.worseAt = s.line, time.Time{}
	}
	s.quic, s.changed, s.cause, s.lossy = quic, now, "", now
	s.line, s.udp = lineFigures{at: s.line.at, rtt: s.line.rtt, minRTT: s.line.minRTT, bbr: s.line.bbr}, lineFigures{}
	s.doubt, s.losses, s.slow, s.bad = false, 0, 0, 0
}

// rtt returns the round-trip time of the transport in use.
func (s *selector) rtt() time.Duration { return cmp.Or(s.udp.rtt, s.line.rtt) }

// starts reports whether QUIC is to be started if UDP passes.
func (s *selector) starts(now time.Time) bool {
	return s.pause(now) <= 0 && s.line.missing() == "" && !s.barred(now)
}

// barred reports whether QUIC has lost far more than TCP does.
func (s *selector) barred(now time.Time) bool {
	return now.Sub(s.worseAt) < worsePause && worseThan*s.line.ratio() < s.worse
}

// pause returns the rest of the pause after a failure or a change. It is over at 0 or less.
func (s *selector) pause(now time.Time) time.Duration { return udpPause - now.Sub(s.changed) }

// wantsProbe reports whether a QUIC handshake is to be tried now. The caller sets probed when it starts.
func (s *selector) wantsProbe(now time.Time) bool {
	switch {
	case s.doubt:
		return true
	case s.quic && s.slow == 0:
		return now.Sub(s.probed) >= probeEvery
	}
	return (s.quic || s.starts(now)) && now.Sub(s.probed) >= probeSoon
}

// patience bounds a QUIC handshake. A longer one has failed. One over slowAfter is slow.
func (s *selector) patience() time.Duration  { return max(time.Second, 4*s.rtt()) }
func (s *selector) slowAfter() time.Duration { return 250*time.Millisecond + 3*s.rtt() }

// shook records the result of a QUIC handshake of a probe or a session. The first failure while QUIC is in use is a doubt,
// since the gateway may be gone.
func (s *selector) shook(now time.Time, took time.Duration, err error) {
	s.probed = now
	switch {
	case err != nil && s.transport() == lines.QUIC:
		s.lost(now)
		return
	case err != nil:
		s.fail(now, err.Error())
		return
	}
	s.doubt = false
	if took > s.slowAfter() {
		if s.slow++; s.slow >= maxSlow {
			s.slow = 0
			s.fail(now, fmt.Sprintf("%d QUIC handshakes were slow, the last took %v", maxSlow, took.Round(time.Millisecond)))
		}
		return
	}
	s.slow = 0
	if !s.quic && s.starts(now) {
		s.use(now, true)
	}
}

// suspect records that a QUIC session got no packets for several round trips, or that its handshake is late. Ordinary loss does
// that too, or its source alone may be affected. The probe that follows decides.
func (s *selector) suspect(time.Time) { s.doubt = s.quic }

// lost records that a QUIC session was lost for want of packets, or that none could be opened where TCP connects.
func (s *selector) lost(now time.Time) {
	s.suspect(now)
	s.overtaken(now)
}

// overtaken records that the QUIC handshake of a session succeeded after it was open over TCP.
func (s *selector) overtaken(now time.Time) {
	if !s.quic {
		return
	}
	if now.Sub(s.first) >= udpPause {
		s.first, s.losses = now, 0
	}
	if s.losses++; s.losses >= maxLosses {
		s.fail(now, fmt.Sprintf("%d QUIC sessions were lost or late within %v", maxLosses, udpPause))
	}
}

// fail records that UDP does not pass.
func (s *selector) fail(now time.Time, cause string) {
	if s.quic {
		s.use(now, false)
	}
	s.changed, s.cause = now, cause
}

// transport returns the transport of new sessions for small messages.
func (s *selector) transport() string {
	if s.quic && !s.doubt {
		return lines.QUIC
	}
	return lines.TCP
}

// failing reports whether new sessions use TCP only because QUIC failed.
func (s *selector) failing(now time.Time) bool {
	return s.cause != "" && (s.pause(now) > 0 || s.line.missing() == "")
}

// reason explains transport to an operator.
func (s *selector) reason(now time.Time) string {
	pause := s.pause(now)
	switch {
	case s.doubt:
		return "QUIC has stalled, UDP is being probed"
	case s.quic:
		return "started when " + s.start.String()
	case s.cause != "" && pause > 0:
		return fmt.Sprintf("UDP failed %v ago (%s), QUIC is tried again in %v at the earliest", (udpPause - pause).Round(time.Second), s.cause, pause.Round(time.Second))
	case s.line.at.IsZero():
		return "TCP is not measured yet"
	case s.line.missing() != "":
		return "QUIC needs " + s.line.missing()
	case s.barred(now):
		return fmt.Sprintf("QUIC lost %.2g %% of its packets %v ago, it is tried again in %v, or if TCP loses %.2g %%", 100*s.worse, now.Sub(s.worseAt).Round(time.Minute), s.worseAt.Add(worsePause).Sub(now).Round(time.Minute), 100*s.worse/worseThan)
	case pause > 0:
		return fmt.Sprintf("QUIC is tried in %v at the earliest", pause.Round(time.Second))
	}
	return "UDP is being probed"
}
