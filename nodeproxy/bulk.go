package nodeproxy

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/flow"
)

// A connection that carries bulk delays small messages of the same sessions, and cannot be moved to others. So connections
// to a destination that mostly carried bulk lately get an inner session each, and share outer sessions that have bulk only.

// bulkTo is a destination of one source identity.
type bulkTo struct {
	source spiffeid.ID
	to     string // authority, host:port
}

const (
	bulkKept   = 10 * time.Minute // since the last connection
	bulkMost   = 4096             // destinations that are remembered
	bulkWeight = 4                // a connection counts as one in so many

	// QUIC without bbr may leave bulk a small part of the rate by which package flow detects it, and data arrives in pieces of
	// a packet. There, quicBulk bytes of one direction within quicBulkTime are bulk, without a byte of the other direction
	// between them.
	quicBulk     = 256 << 10
	quicBulkTime = 4 * time.Second
)

// bulkHistory remembers which destinations mostly have bulk. The zero value remembers none. Safe for concurrent use.
type bulkHistory struct {
	mu sync.Mutex
	by map[bulkTo]*bulkShare
}

// bulkShare is the share of the connections to a destination that carried bulk, the latest with the most weight.
type bulkShare struct {
	share float64 // 0 to 1
	last  time.Time
}

// expects reports whether the next connection to k is likely to carry bulk.
func (h *bulkHistory) expects(k bulkTo, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.by[k]
	return s != nil && s.share > 0.5 && now.Sub(s.last) < bulkKept
}

// carried counts a connection to k. A destination without bulk is not remembered.
func (h *bulkHistory) carried(k bulkTo, bulk bool, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.by[k]
	switch {
	case s != nil && now.Sub(s.last) < bulkKept:
		if s.share -= s.share / bulkWeight; bulk {
			s.share += 1. / bulkWeight
		}
		if s.last = now; s.share < 0.1 {
			delete(h.by, k)
		}
	case bulk:
		h.makeRoom(now)
		h.by[k] = &bulkShare{share: 1, last: now}
	default:
		delete(h.by, k)
	}
}

// makeRoom forgets destinations that were not used for long, and any one if there are still too many. The caller holds mu.
func (h *bulkHistory) makeRoom(now time.Time) {
	if h.by == nil {
		h.by = map[bulkTo]*bulkShare{}
	}
	if len(h.by) < bulkMost {
		return
	}
	for k, s := range h.by {
		if now.Sub(s.last) >= bulkKept {
			delete(h.by, k)
		}
	}
	for k := range h.by {
		if len(h.by) < bulkMost {
			return
		}
		delete(h.by, k)
	}
}

// bulkWatch finds out whether one connection carries bulk, and counts it once.
type bulkWatch struct {
	h        *bulkHistory
	to       bulkTo
	sent     flow.Bulk // used by the goroutine that reads from the application
	received flow.Bulk // used by the one that writes to it
	once     sync.Once
	quic     bool                      // the session is over QUIC
	latest   atomic.Pointer[flow.Bulk] // direction of the latest data, over QUIC
}

// watch returns the options of the connection's relay.
func (w *bulkWatch) watch(o hbone.RelayOptions) hbone.RelayOptions {
	look := func(b *flow.Bulk) func(p []byte) bool {
		if w.quic {
			return w.lookQUIC(b)
		}
		return func(p []byte) bool {
			if !b.Add(len(p)) {
				return true
			}
			now := time.Now()
			b.Step(now)
			if !b.Congested(now) {
				return true
			}
			w.count(true, now)
			return false
		}
	}
	o.OnReply, o.OnSend = look(&w.sent), look(&w.received)
	return o
}

// lookQUIC returns what watch calls for the direction b of a connection over QUIC.
func (w *bulkWatch) lookQUIC(b *flow.Bulk) func(p []byte) bool {
	n, since := 0, time.Time{}
	return func(p []byte) bool {
		if w.latest.Swap(b) != b {
			n, since = 0, time.Now()
		}
		if n += len(p); n < quicBulk {
			return true
		}
		now := time.Now()
		bulk := now.Sub(since) <= quicBulkTime
		if n, since = 0, now; bulk {
			w.count(true, now)
		}
		return !bulk
	}
}

// end counts a connection without bulk.
func (w *bulkWatch) end() { w.count(false, time.Now()) }

func (w *bulkWatch) count(bulk bool, now time.Time) {
	w.once.Do(func() { w.h.carried(w.to, bulk, now) })
}
