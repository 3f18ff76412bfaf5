package hbone

import (
	"fmt"
	"math/rand/v2"
)

// What always holds for a session and its streams, in one place. Tests call these
// after every step; a build with the tag isthmus_debug does so after every batch
// that was read and every burst that was written, and panics with what does not
// hold. Without the tag nothing of this is called.

// Check returns the first invariant of s and its streams that does not hold, nil if
// all do. It may be called at any time.
func (s *Session) Check() error {
	if err := s.recv.check(); err != nil {
		return err
	}
	s.mu.Lock()
	err := s.checkLocked()
	streams := make([]*Stream, 0, len(s.streams))
	for _, st := range s.streams {
		streams = append(streams, st)
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	for _, st := range streams {
		if err := st.checkReceiving(); err != nil {
			return fmt.Errorf("stream %d: %w", st.id, err)
		}
	}
	return nil
}

// CheckIdle returns what keeps s from being as it was before its first stream: no
// stream is open and each was closed, the connection's receive window is whole,
// and nothing is lent, queued, promised or waited for. What has just ended may
// take a moment to get there: ask until it holds or your patience ends.
func (s *Session) CheckIdle() error {
	if err := s.Check(); err != nil {
		return err
	}
	s.mu.Lock()
	streams, ended := len(s.streams), s.err != nil
	err := s.w.checkUnused()
	s.mu.Unlock()
	switch {
	case streams > 0:
		return fmt.Errorf("%d streams are open", streams)
	case err != nil:
		return err
	case ended:
		return nil // the peer is told of no window any more
	}
	return s.recv.whole()
}

// CheckPair returns how two ends of one idle connection differ in what they believe
// of each other: what the one may send is what the other has left of its window.
// It holds once nothing is under way between them.
func CheckPair(a, b *Session) error {
	for _, p := range [][2]*Session{{a, b}, {b, a}} {
		p[0].mu.Lock()
		send, ended := p[0].w.sendAvail, p[0].err != nil
		p[0].mu.Unlock()
		p[1].recv.mu.Lock()
		left := p[1].recv.avail
		p[1].recv.mu.Unlock()
		if !ended && send != left {
			return fmt.Errorf("one end may send %d bytes, the other has %d left of its window of %d", send, left, p[1].recv.size)
		}
	}
	return nil
}

// checkLocked is what s.mu guards.
func (s *Session) checkLocked() error {
	unanswered := 0
	for _, st := range s.streams {
		if err := st.checkSendingLocked(); err != nil {
			return fmt.Errorf("stream %d: %w", st.id, err)
		}
		if st.answered != nil {
			unanswered++
		}
	}
	if s.err != nil {
		if len(s.streams) > 0 || !s.ping.stopped {
			return fmt.Errorf("session has ended: %d streams are left, its pings are stopped: %v", len(s.streams), s.ping.stopped)
		}
		return nil
	}
	if s.ping.waiting {
		unanswered++
	}
	if s.alive.waiting != unanswered {
		return fmt.Errorf("%d questions are counted as unanswered, %d are", s.alive.waiting, unanswered)
	}
	return s.w.checkLocked(s.streams)
}

// checkLocked states that whoever waits for the connection window or for room in
// the queue does so because there is none, or because it was promised to others
// that are awake; and that what is queued has somebody who writes it.
func (w *writer) checkLocked(streams map[uint32]*Stream) error {
	if w.broken {
		return nil // the session is about to end
	}
	credited, turns := 0, 0
	for _, st := range streams {
		if st.credited {
			credited++
		}
		if st.turn {
			turns++
		}
	}
	switch {
	case len(w.credit) > 0 && w.sendAvail > w.promised:
		return fmt.Errorf("%d streams wait for the connection window, of which %d bytes are there and %d promised", len(w.credit), w.sendAvail, w.promised)
	case len(w.room) > 0 && w.fits(maxPayload):
		return fmt.Errorf("%d streams wait for room in the queue, in which %d bytes lie and %d are reserved of %d", len(w.room), w.data.size(), w.reserved, w.limit)
	case w.promised%maxPayload != 0 || w.promised < credited*maxPayload:
		return fmt.Errorf("%d bytes of the connection window are promised to %d streams", w.promised, credited)
	case w.reserved%maxPayload != 0 || w.reserved < turns*maxPayload:
		return fmt.Errorf("%d bytes of the queue are reserved for %d streams", w.reserved, turns)
	case !w.busy && len(w.data.segs) > 0:
		return fmt.Errorf("%d bytes are queued and nobody writes them", w.data.size())
	case !w.busy && len(w.flying) > 0:
		return fmt.Errorf("%d streams wait for a burst that nobody writes", len(w.flying))
	}
	for what, list := range map[waiting][]*Stream{waitsCredit: w.credit, waitsRoom: w.room} {
		seen := make(map[*Stream]bool, len(list))
		for _, st := range list {
			if st.waits != what || seen[st] {
				return fmt.Errorf("stream %d waits for %d and stands in the list of those that wait for %d (twice: %v)", st.id, st.waits, what, seen[st])
			}
			seen[st] = true
		}
	}
	for _, q := range []*queue{&w.control, &w.data} {
		if err := q.check(); err != nil {
			return err
		}
	}
	return nil
}

// check states that the segments are the frames.
func (q *queue) check() error {
	n := 0
	if q.pool != nil {
		n = min(pendingFront, len(q.buf))
	}
	for _, g := range q.segs {
		if g.data > g.n || g.last > g.data {
			return fmt.Errorf("segment of %d bytes with %d of payload, %d in its last frame", g.n, g.data, g.last)
		}
		n += g.n
	}
	if n != len(q.buf) {
		return fmt.Errorf("queue of %d bytes, its segments have %d", len(q.buf), n)
	}
	return nil
}

// checkUnused states that no stream has anything here.
func (w *writer) checkUnused() error {
	switch {
	case w.broken:
		return nil
	case len(w.credit) > 0 || len(w.room) > 0 || len(w.flying) > 0:
		return fmt.Errorf("%d streams wait for the connection window, %d for room, %d for a burst", len(w.credit), len(w.room), len(w.flying))
	case w.promised != 0 || w.reserved != 0:
		return fmt.Errorf("%d bytes of the connection window are promised and %d of the queue reserved", w.promised, w.reserved)
	case len(w.data.segs) > 0:
		return fmt.Errorf("%d segments of data are queued", len(w.data.segs))
	}
	return nil
}

// checkSendingLocked is what s.mu guards of a stream.
func (st *Stream) checkSendingLocked() error {
	switch {
	case st.dead && st.werr == nil:
		return fmt.Errorf("is dead and takes writes")
	case st.endTaken && !st.localEnd:
		return fmt.Errorf("END_STREAM is on the wire and was not asked for")
	case st.waits != waitsNothing && (st.turn || st.credited):
		return fmt.Errorf("waits although it has its turn")
	case (st.waits != waitsNothing || st.turn || st.credited) && !st.writing:
		return fmt.Errorf("nobody is in Write, and it waits for %d, has its turn: %v, was promised window: %v", st.waits, st.turn, st.credited)
	}
	return nil
}

// checkReceiving is what st.mu guards.
func (st *Stream) checkReceiving() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	held, w := st.rq.n+st.taken, &st.window
	switch {
	case st.rq.n < 0 || st.taken < 0:
		return fmt.Errorf("%d bytes are queued and %d taken by the sink", st.rq.n, st.taken)
	case st.rclosed && held > 0:
		return fmt.Errorf("nobody will read, and %d bytes are held", held)
	case st.rEnd && st.rerr != nil:
		return fmt.Errorf("has ended both in order and with %w", st.rerr)
	case !st.rclosed && !st.rEnd && st.rerr == nil && w.avail+w.unacked+held > w.size:
		return fmt.Errorf("window of %d bytes: %d left, %d to be told and %d held are more", w.size, w.avail, w.unacked, held)
	}
	return nil
}

// checkedStreams is how many streams a session may have to be checked each time; one
// with more is checked less often, so that a debug build is not too slow to use.
const checkedStreams = 32

// mustHold panics if s.Check fails. Called in debug builds.
func (s *Session) mustHold(when string) {
	if n := s.Streams(); n > checkedStreams && rand.IntN(n) > checkedStreams {
		return
	}
	if err := s.Check(); err != nil {
		panic(fmt.Sprintf("hbone: broken invariant %s: %v", when, err))
	}
}
