package hbone

import (
	"bytes"
	"errors"
	"slices"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// writer is the sending half of a session: who may use the transport, and what
// waits for it. All fields are guarded by the session's mu.
type writer struct {
	busy    bool  // somebody is writing or about to
	broken  bool  // the transport failed; nothing more goes out
	control queue // before any data
	data    queue // in order of arrival

	sendAvail int       // connection window
	credit    []*Stream // wait for sendAvail, oldest first
	room      []*Stream // wait for space in data, oldest first
	promised  int       // bytes of sendAvail promised to streams that have been woken for it
	reserved  int       // bytes of data promised to streams that have their turn
	flying    []*Stream // whose first payload is in the burst that is being written
	limit     int       // of data, for all but small messages: see queueLimit

	henc *hpack.Encoder
	hbuf bytes.Buffer
}

func (w *writer) init(client bool) {
	w.sendAvail = defaultWindow
	w.limit = pendingMax
	w.henc = hpack.NewEncoder(&w.hbuf)
	if !client {
		// An answer is dropped from the queue when its stream is reset: its
		// header block must not have touched the peer's table.
		w.henc.SetMaxDynamicTableSizeLimit(0)
	}
}

func (w *writer) tableSize(n uint32) { w.henc.SetMaxDynamicTableSize(min(n, hpackTable)) }

func (w *writer) empty() bool { return len(w.control.segs) == 0 && len(w.data.segs) == 0 }

// queue is frames in the order in which they go out, and whose they are.
type queue struct {
	buf  []byte
	segs []segment
	pool *[]byte // where buf came from, nil if it is not pooled
}

type segment struct {
	st   *Stream // nil: the session's
	n    int
	data int // bytes of the windows that it has taken: payload
	last int // payload bytes of the last DATA frame, 0 if it is none
	note note
}

// note says what writing a segment means for its stream.
type note uint8

const (
	noteEnd  note = 1 << iota // our half ends
	noteRST                   // the stream is over
	noteKeep                  // must go out even if the stream dies (hpack state)
)

func (q *queue) add(st *Stream, frame []byte, n note) {
	q.buf = append(q.buf, frame...)
	q.mark(st, len(frame), n)
}

func (q *queue) mark(st *Stream, size int, n note) {
	q.segs = append(q.segs, segment{st: st, n: size, note: n})
}

func (q *queue) size() int { return len(q.buf) }

// drop takes the frames of st out of the queue and returns how many bytes of
// payload they carried.
func (q *queue) drop(st *Stream) (data int) {
	out, segs := q.buf[:0], q.segs[:0]
	if q.pool != nil {
		out = q.buf[:min(pendingFront, len(q.buf))]
	}
	r := len(out)
	for _, g := range q.segs {
		if g.st != st || g.note&noteKeep != 0 {
			out = append(out, q.buf[r:r+g.n]...)
			segs = append(segs, g)
		} else {
			data += g.data
		}
		r += g.n
	}
	clear(q.segs[len(segs):])
	q.buf, q.segs = out, segs
	return data
}

// dropData takes what st has queued out of the data queue. The peer will not hear
// of it and cannot give the connection window back, so that is done here; and there
// is room for those that wait for it.
func (w *writer) dropData(st *Stream) {
	w.sendAvail += w.data.drop(st)
	w.wakeCredit()
	w.admit()
}

func (q *queue) clear() {
	clear(q.segs)
	q.segs = q.segs[:0]
	q.buf = q.buf[:0]
	q.pool = nil
}

// addData is add for the data queue.
func (q *queue) addData(st *Stream, frame []byte, n note) {
	q.reserve()
	q.add(st, frame, n)
}

// reserve makes buf a pooled one with pendingFront free bytes at its start.
func (q *queue) reserve() {
	if q.pool != nil || len(q.segs) > 0 {
		return
	}
	q.pool = pendingBufs.Get().(*[]byte)
	q.buf = (*q.pool)[:pendingFront]
}

// burst is what one writer took: control first, then data.
type burst struct {
	first, second []byte
	pool          *[]byte
}

func (b *burst) release() {
	if b.pool != nil {
		pendingBufs.Put(b.pool)
	}
	*b = burst{}
}

// take empties the queues into a burst. From here on its frames go out before
// anything that is queued later. Called with mu held.
func (s *Session) take(controlOnly bool) burst {
	w := &s.w
	b := burst{first: w.control.buf}
	s.taken(w.control.segs)
	w.control = queue{segs: w.control.segs[:0]}
	if controlOnly || len(w.data.segs) == 0 {
		return b
	}
	s.taken(w.data.segs)
	q := w.data
	w.data = queue{segs: q.segs[:0]}
	if q.pool == nil {
		b.second = q.buf
	} else if start := pendingFront - len(b.first); start >= 0 {
		copy(q.buf[start:], b.first)
		b.first = q.buf[start:]
	} else {
		b.second = q.buf[pendingFront:]
	}
	b.pool = q.pool
	if q.pool != nil {
		*q.pool = q.buf[:0]
	}
	w.admit()
	return b
}

// taken notes what is about to be on the wire.
func (s *Session) taken(segs []segment) {
	for _, g := range segs {
		if g.st != nil && g.last > 0 {
			s.w.speak(g.st)
		}
		if g.st == nil || g.note == 0 {
			continue
		}
		if g.note&noteRST != 0 {
			g.st.dead = true
		}
		if g.note&noteEnd != 0 {
			g.st.endTaken = true
		}
		s.settleLocked(g.st)
	}
	clear(segs)
}

// speak notes that payload of st is about to be on the wire, if st waits for its
// answer: from then on the peer may have it.
func (w *writer) speak(st *Stream) {
	if st.answered != nil && !st.spoke {
		st.spoke = true
		w.flying = append(w.flying, st)
	}
}

// landed is called with what became of the write of a burst; mu is held. One that
// the transport did not take at all has said nothing.
func (s *Session) landed(err error) {
	w := &s.w
	if len(w.flying) == 0 {
		return
	}
	if errors.Is(err, errUnsent) {
		for _, st := range w.flying {
			st.spoke = false
		}
	}
	clear(w.flying)
	w.flying = w.flying[:0]
	s.changed.Broadcast()
}

// landLocked waits until the first payload of st, if it is being written, is out
// or has failed.
func (s *Session) landLocked(st *Stream) {
	for slices.Contains(s.w.flying, st) {
		s.changed.Wait()
	}
}

// errUnsent marks the failure of a write of which not one byte went out.
var errUnsent = errors.New("nothing was sent")

// kick makes sure that somebody writes what is queued: a goroutine that lives
// until the queue is empty. Called with mu held.
func (s *Session) kick() {
	if s.w.control.size() > controlMax && !s.w.broken {
		s.w.broken = true
		go s.fail(connFault(http2.ErrCodeEnhanceYourCalm, "peer provokes answers and does not read them"))
	}
	if s.w.busy || s.w.broken || s.w.empty() {
		return
	}
	s.w.busy = true
	go s.flush()
}

// flush writes until nothing is queued. The caller has set busy.
func (s *Session) flush() {
	for {
		s.mu.Lock()
		s.landed(nil)
		if s.w.broken || s.w.empty() {
			s.idle()
			s.mu.Unlock()
			return
		}
		b := s.take(false)
		s.mu.Unlock()
		err := s.writeBurst(b.first, b.second)
		b.release()
		if debugChecks {
			s.mustHold("after a burst was written")
		}
		if err != nil {
			s.writeFailed(err)
			return
		}
	}
}

// writeBurst writes first and then second; as one if both fit into a TLS record.
func (s *Session) writeBurst(first, second []byte) error {
	if len(first) > 0 && len(second) > 0 && len(first)+len(second) <= oneRecord {
		f := getFrameBuf()
		defer putFrameBuf(f)
		n := copy(f.b[:], first)
		n += copy(f.b[n:], second)
		return s.t.WriteBurst(f.b[:n])
	}
	for _, p := range [2][]byte{first, second} {
		if len(p) == 0 {
			continue
		}
		if err := s.t.WriteBurst(p); err != nil {
			return err
		}
	}
	return nil
}

// writeDirect writes control frames that are due and then p, one chunk of a
// stream that found the writer free. The caller has set busy and taken control.
func (s *Session) writeDirect(control burst, p []byte) error {
	if err := s.writeBurst(control.first, p); err != nil {
		s.writeFailed(err)
		return s.Err() // which may have another cause, and closed the transport
	}
	s.mu.Lock()
	s.landed(nil)
	if s.w.empty() || s.w.broken {
		s.idle()
	} else {
		go s.flush()
	}
	s.mu.Unlock()
	return nil
}

// idle hands the transport back. Called with mu held.
func (s *Session) idle() {
	s.w.busy = false
	s.changed.Broadcast()
}

func (s *Session) writeFailed(err error) {
	s.mu.Lock()
	s.landed(err)
	s.w.broken = true
	s.idle()
	s.mu.Unlock()
	s.fail(writeError(s, err))
}

// wakeCredit lets as many streams go on as the connection window feeds.
func (w *writer) wakeCredit() {
	for len(w.credit) > 0 && w.sendAvail > w.promised {
		st := w.credit[0]
		w.credit[0] = nil
		w.credit = w.credit[1:]
		st.waits, st.credited = waitsNothing, true
		w.promised += maxPayload
		st.wcond.Broadcast()
	}
}

// admit gives streams that wait for space their turn.
func (w *writer) admit() {
	for len(w.room) > 0 && w.fits(maxPayload) {
		st := w.room[0]
		w.room[0] = nil
		w.room = w.room[1:]
		st.waits, st.turn = waitsNothing, true
		w.reserved += maxPayload
		st.wcond.Broadcast()
	}
}

// setLimit changes how much may be queued.
func (w *writer) setLimit(n int) {
	grown := n > w.limit
	if w.limit = n; grown {
		w.admit()
	}
}

// fits reports whether n bytes of payload may be queued now.
func (w *writer) fits(n int) bool {
	return w.data.size()+w.reserved+n <= pendingFront+w.limit
}

// queueLimit is how much data may be queued: one chunk while small messages pass,
// so that they have little bulk in front of them. They themselves are queued as
// long as there is space at all. Bulk waits and is not starved: whoever takes what
// is queued gives those that wait their turn before anything else is added.
func (s *Session) queueLimit() int {
	if s.hasCompany(time.Now()) {
		return pendingMax / 4
	}
	return pendingMax
}
