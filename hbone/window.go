package hbone

import "time"

// A stream's window bounds what its peer may have sent and its reader has not
// taken. A large one keeps a long path full; but on a shared session everything
// in it lies in front of other streams' small messages. So a stream starts with
// Config.FirstWindow and has all of Config.StreamWindow from its first credit on, on
// a long path from the start, as long as nobody sends small messages beside it. Beside those it has what the
// path needs, at least sharedWindow.
const (
	sharedWindow = 256 << 10
	// pathFactor is how many times the bytes of one round trip a window holds
	// beside small messages: with two, a sender that only the window limits
	// doubles what it sends with each round trip.
	pathFactor = 2
	// companyFrames is how many small frames in a row make a stream one of small
	// messages: the remainders of a transfer come one by one. companyHold is how
	// long it counts as one after the last.
	companyFrames = 8
	companyHold   = time.Second
	// rateStep is how many bytes a reader takes between two looks at the clock.
	rateStep = 64 << 10
)

// recvWindow is the receiving side of a stream's window. Guarded by the stream's
// mu.
type recvWindow struct {
	avail   int       // left to the peer
	size    int       // avail, what is queued, and what is consumed and not credited
	unacked int       // consumed and not credited
	since   time.Time // when taken was zero
	taken   int       // consumed since then
	path    int       // what the path needs; zero: not known
}

func (w *recvWindow) init(size int) { w.avail, w.size = size, size }

// consumed notes that n bytes were read and returns how many are to be credited:
// nothing until that is a quarter of the window, so that credit is not given in
// crumbs.
func (w *recvWindow) consumed(n int, s *Session) (due int) {
	w.unacked += n
	w.taken += n
	if w.unacked < w.size/4 && w.taken < rateStep {
		return 0
	}
	limit := w.limit(s)
	due = w.unacked + limit - w.size
	if due < limit/4 {
		return 0
	}
	w.unacked = 0
	w.size = limit
	w.avail += due
	return due
}

// limit is how large the window is to be now.
func (w *recvWindow) limit(s *Session) int {
	rtt := time.Duration(s.rtt.Load())
	now := time.Now()
	if rtt == 0 || !s.hasCompany(now) {
		w.taken, w.path = 0, 0
		return s.cfg.StreamWindow
	}
	if w.path == 0 {
		w.path, w.since, w.taken = w.size/pathFactor, now, 0
	}
	if d := now.Sub(w.since); d >= rtt {
		w.path = int(float64(w.taken) * float64(rtt) / float64(d))
		w.since, w.taken = now, 0
	}
	return min(max(sharedWindow, pathFactor*w.path), s.cfg.StreamWindow)
}

// longPath is the round trip from which on a stream has its whole window at once:
// an object of a few MiB would pay one more round trip for less, and what the path
// holds is more than what the window keeps from small messages.
const longPath = 5 * time.Millisecond

// widen gives a new stream on a long path its whole window. Called with mu held,
// when the peer is about to know the stream.
func (s *Session) widen(st *Stream) {
	more := s.cfg.StreamWindow - s.cfg.FirstWindow
	if more == 0 || time.Duration(s.rtt.Load()) < longPath {
		return
	}
	st.window.init(s.cfg.StreamWindow) // nobody else has the stream yet
	s.w.control.add(st, appendWindowUpdate(nil, st.id, more), 0)
}

// meet notes a DATA frame of n bytes on st, which may show that small messages
// have bulk beside them. Called with mu held.
func (s *Session) meet(st *Stream, n int) {
	if n >= bulkPiece {
		st.small = 0
		return
	}
	if st.small++; st.small >= companyFrames {
		s.company.Store(time.Now().UnixNano())
	}
}

// hasCompany reports whether small messages were received lately.
func (s *Session) hasCompany(now time.Time) bool {
	return now.UnixNano()-s.company.Load() <= int64(companyHold)
}

// tookRTT notes that the peer answered after d. The shortest time counts, as
// longer ones were spent in queues, until longer ones are all that there is.
func (s *Session) tookRTT(d time.Duration) {
	if old := time.Duration(s.rtt.Load()); old > 0 && d > old {
		d = old + (d-old)/8
	}
	s.rtt.Store(int64(max(d, 1)))
}
