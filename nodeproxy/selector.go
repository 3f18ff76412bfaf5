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
// quicBackoff when QUIC fails. Times are arguments. The zero value is ready. Not safe for concurrent use.
type selector struct {
	quic    bool      // QUIC is in use
	changed time.Time // when quic last changed, or UDP failed; zero: never
	cause   string    // of the failure; empty: none since quic last changed

	tcp      lineFigures // since quic last changed
	udp      lineFigures // of QUIC, while it is in use
	baseline lineFigures // of TCP, when QUIC was last started
	lastLoss time.Time   // when a packet was last lost, or quic last changed

	excessSamples int       // consecutive samples in which QUIC lost far more than TCP
	rejectedLoss  float64   // share of packets that QUIC lost when it was last left for that
	rejectedAt    time.Time // when; zero: never since QUIC was last started

	probed       time.Time // start of the last probe
	probePending bool      // QUIC is in use, but new sessions use TCP until a probe succeeds
	slow         int       // consecutive slow probes
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
	// minLost is how many lost segments, and in how many samples, are needed to start with QUIC. One burst of loss, as
	// when a transfer fills a queue, is not enough.
	minLost         = 3
	minLossySamples = 2.5 // the third one in a minute or two
	// QUIC is left after noLossPeriod without a lost packet. An idle preconnect pool sends thousands of packets in that time
	// (docs/lines.md). A rate would not do: quic-go does not count packets that it repeats after a probe timeout, which are
	// most of those that connections with little traffic lose.
	noLossPeriod = time.Hour
	// lineHalfLife is when a sample of the line counts half.
	lineHalfLife = 5 * time.Minute
	// QUIC is also left when it loses maxLossFactor times as much as TCP did, and at least minExcessLoss, in all and in each of
	// maxExcessSamples consecutive samples. A rate limit for UDP does that, and a short outage does not. At 1 to 3 % loss QUIC
	// delays messages about as much as TCP at 0.1 % (docs/lines.md). QUIC is not started again for lossBackoff, unless TCP
	// loses a quarter as much.
	maxLossFactor    = 4
	minExcessLoss    = 0.02
	maxExcessSamples = 6
	lossBackoff      = 6 * time.Hour

	// quicBackoff is the least time on TCP after a failure of UDP, and between other changes.
	quicBackoff = 10 * time.Minute
	// maxSlowProbes is how many consecutive slow probes are a failure: UDP is throttled.
	maxSlowProbes = 3
	// Pauses between the starts of probes: while QUIC is in use, while a probe is pending, and before QUIC is in use.
	probeEvery   = time.Minute
	probeAgain   = time.Second
	probeToStart = 10 * time.Second
)

// lineSample are statistics of the open sessions for small messages to a network, over one transport, since the last sample.
type lineSample struct {
	sessions       int
	rtt            time.Duration // mean; zero: no session is open
	minRTT         time.Duration // of any session
	segments, lost float64       // or packets of QUIC
	bbr            bool          // all sessions use bbr
}

// lineFigures are sums of samples. Older ones count less.
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

func (f lineFigures) minLoss() float64 {
	if f.bbr {
		return quicLossBBR
	}
	return quicLoss
}

// unmet returns the first unmet condition for QUIC. Empty if all are met.
func (f lineFigures) unmet() string {
	switch {
	case f.minRTT < quicRTT:
		return fmt.Sprintf("a round trip of %v, where the least is %v", quicRTT, f.minRTT.Round(100*time.Microsecond))
	case f.ratio() < f.minLoss():
		return fmt.Sprintf("a loss of %g %%", 100*f.minLoss())
	case f.lost < minLost || f.lossy < minLossySamples:
		return fmt.Sprintf("%d lost packets, and in %d samples of %v", minLost, minLost, sampleEvery)
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
	if tcp.lost > tcp.segments/2 { // an outage, not the loss of the line
		tcp.segments, tcp.lost = 0, 0
	}
	s.tcp.add(now, tcp)
	if !s.quic {
		return
	}
	s.udp.add(now, quic)
	limit := max(minExcessLoss, maxLossFactor*s.baseline.ratio())
	if quic.lost >= limit*max(1, quic.segments) {
		s.excessSamples++
	} else if quic.segments > 0 {
		s.excessSamples = 0
	}
	if ratio := s.udp.ratio(); s.excessSamples >= maxExcessSamples && ratio >= limit {
		started := s.changed
		s.rejectedLoss, s.rejectedAt = ratio, now
		s.fail(now, fmt.Sprintf("QUIC lost %.2g %% of its packets, TCP %.2g %%", 100*ratio, 100*s.baseline.ratio()))
		s.changed = started // if the line has become worse, TCP also shows it, and QUIC is started again
		return
	}
	if tcp.lost+quic.lost > 0 && cmp.Or(s.udp.minRTT, s.tcp.minRTT) >= quicRTT/2 {
		s.lastLoss = now
	}
	if now.Sub(s.lastLoss) >= noLossPeriod {
		s.use(now, false)
	}
}

// use changes the transport. Both are measured anew then.
func (s *selector) use(now time.Time, quic bool) {
	if quic {
		s.baseline, s.rejectedAt = s.tcp, time.Time{}
	}
	s.quic, s.changed, s.cause, s.lastLoss = quic, now, "", now
	s.tcp, s.udp = lineFigures{at: s.tcp.at, rtt: s.tcp.rtt, minRTT: s.tcp.minRTT, bbr: s.tcp.bbr}, lineFigures{}
	s.probePending, s.slow, s.excessSamples = false, 0, 0
}

// rtt returns the round-trip time of the transport in use.
func (s *selector) rtt() time.Duration { return cmp.Or(s.udp.rtt, s.tcp.rtt) }

// wantsQUIC reports whether QUIC is to be started if UDP passes.
func (s *selector) wantsQUIC(now time.Time) bool {
	return s.backoff(now) <= 0 && s.tcp.unmet() == "" && !s.rejected(now)
}

// rejected reports whether QUIC is not started because it lost far more than TCP does.
func (s *selector) rejected(now time.Time) bool {
	return now.Sub(s.rejectedAt) < lossBackoff && maxLossFactor*s.tcp.ratio() < s.rejectedLoss
}

// backoff returns the rest of the pause after a failure or a change. It is over at 0 or less.
func (s *selector) backoff(now time.Time) time.Duration { return quicBackoff - now.Sub(s.changed) }

// wantsProbe reports whether a probe is to start now. The caller sets probed when it starts.
func (s *selector) wantsProbe(now time.Time) bool {
	every := probeToStart
	switch {
	case s.probePending:
		every = probeAgain
	case s.quic:
		every = probeEvery
	case !s.wantsQUIC(now):
		return false
	}
	return now.Sub(s.probed) >= every
}

// handshakeTimeout bounds a QUIC handshake. One over slowLimit is slow.
func (s *selector) handshakeTimeout() time.Duration { return max(time.Second, 4*s.rtt()) }
func (s *selector) slowLimit() time.Duration        { return 250*time.Millisecond + 3*s.rtt() }

// probeDone records the result of a probe, which did a QUIC handshake where TCP had just connected. Only probes decide that UDP
// fails, since they have a single cause: sessions also fail with their gateway, their client or the whole line.
func (s *selector) probeDone(now time.Time, took time.Duration, err error) {
	switch {
	case err != nil && s.quic && !s.probePending:
		s.probePending = true // confirmed by another one
	case err != nil:
		s.fail(now, err.Error())
	case took > s.slowLimit():
		s.probePending = s.quic
		if s.slow++; s.slow >= maxSlowProbes {
			s.fail(now, fmt.Sprintf("%d QUIC handshakes were slow, the last took %v", s.slow, took.Round(time.Millisecond)))
		}
	default:
		s.probePending, s.slow = false, 0
		if !s.quic && s.wantsQUIC(now) {
			s.use(now, true)
		}
	}
}

// requestProbe records a sign that UDP may fail: a QUIC session got no packets for several round trips or closed for want of
// them, or its handshake took longer than one over TCP.
func (s *selector) requestProbe(time.Time) { s.probePending = s.quic }

// fail records that UDP does not pass.
func (s *selector) fail(now time.Time, cause string) {
	if s.quic {
		s.use(now, false)
	}
	s.changed, s.cause, s.slow = now, cause, 0
}

// transport returns the transport of new sessions for small messages.
func (s *selector) transport() string {
	if s.quic && !s.probePending {
		return lines.QUIC
	}
	return lines.TCP
}

// failing reports whether new sessions use TCP only because QUIC failed.
func (s *selector) failing(now time.Time) bool {
	return s.cause != "" && (s.backoff(now) > 0 || s.rejected(now) || s.tcp.unmet() == "")
}

// reason explains transport to an operator.
func (s *selector) reason(now time.Time) string {
	pause := s.backoff(now)
	switch {
	case s.probePending:
		return "QUIC has stalled, UDP is being probed"
	case s.quic:
		return "started when " + s.baseline.String()
	case s.rejected(now):
		return fmt.Sprintf("QUIC lost %.2g %% of its packets %v ago, it is tried again in %v, or if TCP loses %.2g %%", 100*s.rejectedLoss, now.Sub(s.rejectedAt).Round(time.Minute), s.rejectedAt.Add(lossBackoff).Sub(now).Round(time.Minute), 100*s.rejectedLoss/maxLossFactor)
	case s.cause != "" && pause > 0:
		return fmt.Sprintf("UDP failed %v ago (%s), QUIC is tried again in %v at the earliest", (quicBackoff - pause).Round(time.Second), s.cause, pause.Round(time.Second))
	case s.tcp.at.IsZero():
		return "TCP is not measured yet"
	case s.tcp.unmet() != "":
		return "QUIC needs " + s.tcp.unmet()
	case pause > 0:
		return fmt.Sprintf("QUIC is tried in %v at the earliest", pause.Round(time.Second))
	}
	return "UDP is being probed"
}
