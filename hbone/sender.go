package hbone

import (
	"bytes"
	"errors"
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/wire"
	"github.com/isthmus-mesh/isthmus/internal/memory"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// sender is what a session sends with: who may use the transport, what waits for
// it, and the connection's window that the peer has left. Guarded by the session's
// mu, with which all methods are called.
type sender struct {
	busy    bool  // somebody is writing or about to
	broken  bool  // the transport failed; nothing more goes out
	control queue // before any data
	data    queue // in order of arrival

	window    int         // of the connection
	emptied   time.Time   // when the window was used up last
	credit    []*sendHalf // wait for window, oldest first
	room      []*sendHalf // wait for space in data, oldest first
	promised  int         // bytes of window promised to those that have been woken for it
	reserved  int         // bytes of data promised to those that have their turn
	claimed   int         // bytes of data, and of both windows, that are claimed: see claim.go
	limit     int         // of data, for all but small messages: see flow.QueueLimit
	turnsOnly bool        // small messages wait for their turn too
	inFlight  []*Stream   // whose first payload is in the burst that is being written

	henc *hpack.Encoder
	hbuf bytes.Buffer
}

func (w *sender) init(client bool) {
	w.window = wire.DefaultWindow
	w.limit = pendingMax
	w.henc = hpack.NewEncoder(&w.hbuf)
	if !client {
		// A response is dropped from the queue when its stream is reset: its
		// header block must not have touched the peer's table.
		w.henc.SetMaxDynamicTableSizeLimit(0)
	}
}

func (w *sender) tableSize(n uint32) { w.henc.SetMaxDynamicTableSize(min(n, wire.HeaderTable)) }

func (w *sender) empty() bool { return len(w.control.segs) == 0 && len(w.data.segs) == 0 }

// dropData takes what st has queued out of the data queue. The peer will not learn
// of it and cannot give the connection window back, so that is done here; and there
// is room for those that wait for it.
func (w *sender) dropData(st *Stream) {
	w.window += w.data.drop(st)
	w.wakeCredit()
	w.admit()
}

// burst is what one writer took: control first, then data.
type burst struct {
	first, second []byte
	pool          *[]byte
	use           *memory.Use
	cost          int // bytes of use that pool is charged
}

func (b *burst) release() {
	if b.pool != nil {
		putPending(b.pool, b.use, b.cost)
	}
	*b = burst{}
}

// takeLocked empties the queues into a burst. From here on its frames go out before
// anything that is queued later.
func (s *Session) takeLocked(controlOnly bool) burst {
	w := &s.send
	b := burst{first: w.control.buf}
	s.takenLocked(w.control.segs)
	w.control = queue{segs: w.control.segs[:0]}
	if controlOnly || len(w.data.segs) == 0 {
		return b
	}
	s.takenLocked(w.data.segs)
	q := w.data
	w.data = queue{segs: q.segs[:0], use: q.use}
	if q.pool == nil {
		b.second = q.buf
	} else if start := pendingFront - len(b.first); start >= 0 {
		copy(q.buf[start:], b.first)
		b.first = q.buf[start:]
	} else {
		b.second = q.buf[pendingFront:]
	}
	b.pool, b.use, b.cost = q.pool, q.use, q.cost
	if q.pool != nil {
		*q.pool = q.buf[:0]
	}
	w.admit()
	return b
}

// takenLocked notes what is about to be on the wire.
func (s *Session) takenLocked(segs []segment) {
	for _, g := range segs {
		if g.st != nil && g.last > 0 {
			s.send.dataSent(g.st)
		}
		if g.st == nil || g.note == 0 {
			continue
		}
		if g.note&noteRST != 0 {
			g.st.send.stopped = true
		}
		if g.note&noteEnd != 0 {
			g.st.send.endSent = true
		}
		s.removeIfEndedLocked(g.st)
	}
	clear(segs)
}

// dataSent notes that payload of st is about to be on the wire, if st waits for its
// answer: from then on the peer may have it.
func (w *sender) dataSent(st *Stream) {
	if st.connect.pending != nil && !st.connect.dataSent {
		st.connect.dataSent = true
		w.inFlight = append(w.inFlight, st)
	}
}

// writeDoneLocked is called with what became of the write of a burst. One that
// the transport did not take at all has said nothing.
func (s *Session) writeDoneLocked(err error) {
	w := &s.send
	if len(w.inFlight) == 0 {
		return
	}
	if errors.Is(err, errUnsent) {
		for _, st := range w.inFlight {
			st.connect.dataSent = false
		}
	}
	clear(w.inFlight)
	w.inFlight = w.inFlight[:0]
	s.life.changed.Broadcast()
}

// awaitWriteLocked waits until the first payload of st, if it is being written, is out
// or has failed.
func (s *Session) awaitWriteLocked(st *Stream) {
	for slices.Contains(s.send.inFlight, st) {
		s.life.changed.Wait()
	}
}

// errUnsent marks the failure of a write of which not one byte went out.
var errUnsent = errors.New("nothing was sent")

// kickLocked makes sure that somebody writes what is queued: a goroutine that lives
// until the queue is empty.
func (s *Session) kickLocked() {
	if s.send.control.size() > controlMax && !s.send.broken {
		s.send.broken = true
		go s.fail(wire.ConnError(http2.ErrCodeEnhanceYourCalm, "peer provokes answers and does not read them"))
	}
	if s.send.busy || s.send.broken || s.send.empty() {
		return
	}
	s.send.busy = true
	go s.flush()
}

// flush writes until nothing is queued. The caller has set busy.
func (s *Session) flush() {
	for {
		s.mu.Lock()
		s.writeDoneLocked(nil)
		if s.send.broken || s.send.empty() {
			s.idleLocked()
			s.mu.Unlock()
			return
		}
		b := s.takeLocked(false)
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

// writeCost is what a write may hold for as long as the transport does not take it: one
// chunk, and one burst of ciphertext.
const writeCost = frameFront + maxPayload + corkBufferSize

// stuckAfter is how long a write waits before its session may be reset for want of
// memory. Before that the bytes are about to go.
const stuckAfter = time.Second

// resetIfStuck ends a session that holds memory because its peer does not read.
func (s *Session) resetIfStuck() bool {
	since := s.writing.Load()
	if since == 0 || time.Since(time.Unix(0, since)) < stuckAfter {
		return false
	}
	s.fail(ErrMemory)
	return true
}

// writeBurst writes first and then second; as one if both fit into a TLS record.
func (s *Session) writeBurst(first, second []byte) error {
	s.writing.Store(time.Now().UnixNano())
	s.use.Add(writeCost)
	defer func() {
		s.writing.Store(0)
		s.use.Release(writeCost)
	}()
	if t := s.traced(); t != nil {
		s.traceBurst(t, first)
		s.traceBurst(t, second)
	}
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
	s.writeDoneLocked(nil)
	if s.send.empty() || s.send.broken {
		s.idleLocked()
	} else {
		go s.flush()
	}
	s.mu.Unlock()
	return nil
}

// idleLocked hands the transport back.
func (s *Session) idleLocked() {
	s.send.busy = false
	s.life.changed.Broadcast()
}

func (s *Session) writeFailed(err error) {
	s.mu.Lock()
	s.writeDoneLocked(err)
	s.send.broken = true
	s.idleLocked()
	s.mu.Unlock()
	s.fail(writeError(s, err))
}
