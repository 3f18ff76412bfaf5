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
	if err := s.window.check(); err != nil {
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
	streams, ended := len(s.streams), s.life.err != nil
	err := s.send.checkUnused()
	s.mu.Unlock()
	switch {
	case streams > 0:
		return fmt.Errorf("%d streams are open", streams)
	case err != nil:
		return err
	case ended:
		return nil // the peer is told of no window any more
	}
	return s.window.whole()
}

// CheckPair returns how two ends of one idle connection differ in what they believe
// of each other: what the one may send is what the other has left of its window.
// It holds once nothing is under way between them.
func CheckPair(a, b *Session) error {
	for _, p := range [][2]*Session{{a, b}, {b, a}} {
		p[0].mu.Lock()
		send, ended := p[0].send.window, p[0].life.err != nil
		p[0].mu.Unlock()
		p[1].window.mu.Lock()
		left := p[1].window.avail
		p[1].window.mu.Unlock()
		if !ended && send != left {
			return fmt.Errorf("one end may send %d bytes, the other has %d left of its window of %d", send, left, p[1].window.size)
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
		if st.connect.pending != nil {
			unanswered++
		}
	}
	if s.life.err != nil {
		if len(s.streams) > 0 || !s.ping.stopped {
			return fmt.Errorf("session has ended: %d streams are left, its pings are stopped: %v", len(s.streams), s.ping.stopped)
		}
		return nil
	}
	if s.ping.waiting {
		unanswered++
	}
	if s.alive.Waiting != unanswered {
		return fmt.Errorf("%d questions are counted as unanswered, %d are", s.alive.Waiting, unanswered)
	}
	return s.send.checkLocked(s.streams)
}

// checkLocked states that whoever waits for the connection window or for room in
// the queue does so because there is none, or because it was promised to others
// that are awake; and that what is queued has somebody who writes it.
func (w *sender) checkLocked(streams map[uint32]*Stream) error {
	if w.broken {
		return nil // the session is about to end
	}
	credited, turns, claimed := 0, 0, 0
	for _, st := range streams {
		if st.send.promised {
			credited++
		}
		if st.send.turn {
			turns++
		}
		claimed += st.send.claimed
	}
	switch {
	case len(w.credit) > 0 && w.window > w.promised:
		return fmt.Errorf("%d streams wait for the connection window, of which %d bytes are there and %d promised", len(w.credit), w.window, w.promised)
	case len(w.room) > 0 && w.fits(maxPayload):
		return fmt.Errorf("%d streams wait for room in the queue, in which %d bytes lie and %d are reserved of %d", len(w.room), w.data.size(), w.reserved, w.limit)
	case w.promised%maxPayload != 0 || w.promised < credited*maxPayload:
		return fmt.Errorf("%d bytes of the connection window are promised to %d streams", w.promised, credited)
	case w.reserved%maxPayload != 0 || w.reserved < turns*maxPayload:
		return fmt.Errorf("%d bytes of the queue are reserved for %d streams", w.reserved, turns)
	case w.claimed < claimed:
		return fmt.Errorf("%d bytes are claimed, by streams that have claimed %d", w.claimed, claimed)
	case !w.busy && len(w.data.segs) > 0:
		return fmt.Errorf("%d bytes are queued and nobody writes them", w.data.size())
	case !w.busy && len(w.inFlight) > 0:
		return fmt.Errorf("%d streams wait for a burst that nobody writes", len(w.inFlight))
	}
	for what, list := range map[waiting][]*sendHalf{waitsCredit: w.credit, waitsRoom: w.room} {
		seen := make(map[*sendHalf]bool, len(list))
		for _, h := range list {
			if h.waits != what || seen[h] {
				return fmt.Errorf("a stream waits for %d and is in the list of those that wait for %d (twice: %v)", h.waits, what, seen[h])
			}
			seen[h] = true
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
func (w *sender) checkUnused() error {
	switch {
	case w.broken:
		return nil
	case len(w.credit) > 0 || len(w.room) > 0 || len(w.inFlight) > 0:
		return fmt.Errorf("%d streams wait for the connection window, %d for room, %d for a burst", len(w.credit), len(w.room), len(w.inFlight))
	case w.promised != 0 || w.reserved != 0 || w.claimed != 0:
		return fmt.Errorf("%d bytes of the connection window are promised, %d of the queue reserved, %d of both claimed", w.promised, w.reserved, w.claimed)
	case len(w.data.segs) > 0:
		return fmt.Errorf("%d segments of data are queued", len(w.data.segs))
	}
	return nil
}

// checkSendingLocked is what s.mu guards of a stream.
func (st *Stream) checkSendingLocked() error {
	switch {
	case st.send.stopped && st.send.err == nil:
		return fmt.Errorf("is dead and takes writes")
	case st.send.endSent && !st.send.ended:
		return fmt.Errorf("END_STREAM is on the wire and was not asked for")
	case st.send.waits != waitsNothing && (st.send.turn || st.send.promised):
		return fmt.Errorf("waits although it has its turn")
	case (st.send.waits != waitsNothing || st.send.turn || st.send.promised || st.send.claimed != 0) && !st.send.writing:
		return fmt.Errorf("nobody is in Write, and it waits for %d, has its turn: %v, was promised window: %v, has claimed %d bytes", st.send.waits, st.send.turn, st.send.promised, st.send.claimed)
	}
	return nil
}

// checkReceiving is what st.mu guards.
func (st *Stream) checkReceiving() error {
	st.recv.mu.Lock()
	defer st.recv.mu.Unlock()
	held, w := st.recv.queue.n+st.recv.taken, &st.recv.window
	switch {
	case st.recv.queue.n < 0 || st.recv.taken < 0:
		return fmt.Errorf("%d bytes are queued and %d taken by the sink", st.recv.queue.n, st.recv.taken)
	case st.recv.closed && held > 0:
		return fmt.Errorf("nobody will read, and %d bytes are held", held)
	case st.recv.ended && st.recv.err != nil:
		return fmt.Errorf("has ended both in order and with %w", st.recv.err)
	case !st.recv.closed && !st.recv.ended && st.recv.err == nil && w.Avail+w.Unacked+held > w.Size:
		return fmt.Errorf("window of %d bytes: %d left, %d to be told and %d held are more", w.Size, w.Avail, w.Unacked, held)
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
