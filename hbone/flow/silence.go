package flow

import "time"

// Limits of SilentAfter. The least time is many times what a loaded machine needs
// to answer a PING; a session whose round trip is not known is given the most.
const (
	silentFactor  = 4
	SilentAtLeast = 300 * time.Millisecond
	SilentAtMost  = 2 * time.Second
)

// SilentAfter is for how long a peer that owes the answer to a PING may send
// nothing before it counts as silent.
func SilentAfter(rtt time.Duration) time.Duration {
	if rtt <= 0 {
		return SilentAtMost
	}
	return min(max(silentFactor*rtt, SilentAtLeast), SilentAtMost)
}

// UnansweredPing is what is known when the timer of a PING fires.
type UnansweredPing struct {
	Sent     time.Time
	Due      time.Time     // when the timer was to fire
	Received bool          // anything was received since the PING, or since the last look
	After    time.Duration // SilentAfter
	Timeout  time.Duration // Config.PingTimeout
}

// PingVerdict is what to make of it.
type PingVerdict uint8

const (
	PingWaits  PingVerdict = iota // look again
	PingSilent                    // the peer is silent; look again when the PING times out
	PingDead                      // the PING has timed out
)

// Judge says what to make of a PING without an answer, and when to look again. A
// timer that fires late shows that this process is late, and has perhaps not read
// yet what its peer has sent: then nothing is decided before one more look.
func (u UnansweredPing) Judge(now time.Time) (v PingVerdict, again time.Duration) {
	left := u.Timeout - now.Sub(u.Sent)
	switch {
	case now.Before(u.Due): // fired before the PING was sent, and ran after
		return PingWaits, u.Due.Sub(now)
	case now.Sub(u.Due) > u.After/2:
		return PingWaits, u.After
	case left <= 0:
		return PingDead, 0
	case u.Received:
		return PingWaits, min(u.After, left)
	}
	return PingSilent, left
}
