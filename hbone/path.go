package hbone

import (
	"sync/atomic"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/flow"
)

// path is what a session knows of the way to its peer and of what shares it. Safe
// for concurrent use; the zero value knows nothing.
type path struct {
	rtt         atomic.Int64 // in nanoseconds, 0: not known
	interactive atomic.Int64 // when small messages were last received, in nanoseconds since 1970
	off         bool         // nothing counts as interactive
}

// roundTrip is the time to the peer and back, zero if it is not known.
func (p *path) roundTrip() time.Duration { return time.Duration(p.rtt.Load()) }

// at is the path as package flow wants it.
func (p *path) at(now time.Time) flow.Path {
	return flow.Path{RTT: p.roundTrip(), Interactive: p.isInteractive(now)}
}

// isInteractive reports whether small messages were received lately.
func (p *path) isInteractive(now time.Time) bool {
	return flow.Interactive(now, time.Unix(0, p.interactive.Load()))
}

// observeRTT notes that the peer answered after d.
func (p *path) observeRTT(d time.Duration) {
	p.rtt.Store(int64(flow.RTT(p.roundTrip(), d)))
}

// noteFrame notes a DATA frame of n bytes on st, which may show that small messages
// have bulk beside them. Called by the reading goroutine.
func (p *path) noteFrame(st *Stream, n int) {
	if st.smallFrames.Add(n) && !p.off {
		p.interactive.Store(time.Now().UnixNano())
	}
}
