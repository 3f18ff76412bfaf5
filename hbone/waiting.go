package hbone

import (
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/flow"
)

// waiting says what a writer waits for. One that is woken has been promised what it
// waited for, until it uses that or gives it back: so there is never room, or
// window, and somebody asleep who waits for it.
type waiting uint8

const (
	waitsNothing waiting = iota
	waitsCredit          // for the connection's window
	waitsRoom            // for space in the data queue
)

// grant waits until some of want bytes of h may be sent, takes them from both
// windows, and says how many they are and whether the caller is to write them
// itself.
func (w *sender) grant(h *sendHalf, want int) (n int, direct bool, err error) {
	for {
		turn := w.takeBack(h)
		if err := h.takes(); err != nil {
			w.withdraw(h)
			return 0, false, err
		}
		n, direct, what := w.tryGrant(h, want, turn)
		if n > 0 {
			return n, direct, nil
		}
		w.enlist(h, what)
		h.cond.Wait()
	}
}

// enlist has h wait for what tryGrant or tryClaim has named, and passes on what it
// was woken for and does not use.
func (w *sender) enlist(h *sendHalf, what waiting) {
	if what != waitsNothing {
		w.wait(h, what)
	}
	w.admit()
	w.wakeCredit()
}

// tryGrant is grant that does not wait: with n zero it says for what it would have
// to, waitsNothing being h's own window.
func (w *sender) tryGrant(h *sendHalf, want int, turn bool) (n int, direct bool, what waiting) {
	n = min(want, h.window, w.window)
	switch {
	case h.window <= 0:
		return 0, false, waitsNothing
	case w.window <= 0:
		return 0, false, waitsCredit
	case w.free(h):
		direct = true
	case !w.hasRoom(n, turn):
		return 0, false, waitsRoom
	}
	w.charge(h, n)
	return n, direct, waitsNothing
}

// free reports whether a writer of h finds the transport free and uses it itself.
func (w *sender) free(h *sendHalf) bool {
	return !w.busy && len(w.data.segs) == 0 && !h.deadline.armed
}

// hasRoom reports whether n bytes may be queued now by a stream that has its turn or
// not. A small message waits for no turn.
func (w *sender) hasRoom(n int, turn bool) bool {
	if n < flow.BulkPiece && !w.turnsOnly && w.size()+n <= pendingFront+pendingMax {
		return true
	}
	return w.fits(n) && (turn || len(w.room) == 0)
}

// charge takes n bytes from both windows. h may have been woken out of turn.
func (w *sender) charge(h *sendHalf, n int) {
	w.unlist(h)
	h.window -= n
	if w.window -= n; w.window <= 0 {
		w.emptied = time.Now()
	}
	w.wakeCredit()
}

// halted is since when nobody can send for want of the connection's window; zero: they can.
func (w *sender) halted() time.Time {
	if w.window > 0 || w.claimed > 0 {
		return time.Time{}
	}
	return w.emptied
}

// takeBack takes back what was promised to h when it was woken, and reports whether
// that was its turn for space in the queue.
func (w *sender) takeBack(h *sendHalf) (turn bool) {
	if h.promised {
		h.promised = false
		w.promised -= maxPayload
	}
	if !h.turn {
		return false
	}
	h.turn = false
	w.reserved -= maxPayload
	return true
}

// wait enlists h, once.
func (w *sender) wait(h *sendHalf, what waiting) {
	if h.waits == what {
		return
	}
	w.unlist(h)
	h.waits = what
	if what == waitsCredit {
		w.credit = append(w.credit, h)
	} else {
		w.room = append(w.room, h)
	}
}

// withdraw strikes h, whose write has failed, off the lists and lets others go on.
func (w *sender) withdraw(h *sendHalf) {
	w.unlist(h)
	w.admit()
	w.wakeCredit()
}

func (w *sender) unlist(h *sendHalf) {
	is := func(o *sendHalf) bool { return o == h }
	switch h.waits {
	case waitsCredit:
		w.credit = slices.DeleteFunc(w.credit, is)
	case waitsRoom:
		w.room = slices.DeleteFunc(w.room, is)
	}
	h.waits = waitsNothing
}

// wakeCredit lets as many streams go on as the connection window feeds.
func (w *sender) wakeCredit() {
	for len(w.credit) > 0 && w.window > w.promised {
		h := w.credit[0]
		w.credit[0] = nil
		w.credit = w.credit[1:]
		h.waits, h.promised = waitsNothing, true
		w.promised += maxPayload
		h.cond.Broadcast()
	}
}

// admit gives streams that wait for space their turn.
func (w *sender) admit() {
	for len(w.room) > 0 && w.fits(maxPayload) {
		h := w.room[0]
		w.room[0] = nil
		w.room = w.room[1:]
		h.waits, h.turn = waitsNothing, true
		w.reserved += maxPayload
		h.cond.Broadcast()
	}
}

// setLimit changes how much may be queued.
func (w *sender) setLimit(n int) {
	grown := n > w.limit
	if w.limit = n; grown {
		w.admit()
	}
}

// fits reports whether n bytes of payload may be queued now.
func (w *sender) fits(n int) bool { return w.size()+n <= pendingFront+w.limit }

// size is what the data queue holds, and what it was promised to.
func (w *sender) size() int { return w.data.size() + w.reserved + w.claimed }

// queueLimit is how much data may be queued now.
func (s *Session) queueLimit() int {
	return flow.QueueLimit(pendingMax, s.path.isInteractive(time.Now()) || s.send.data.cost == pendingSizes[0])
}

// noteBulkLocked counts a piece of n bytes, in either direction.
func (s *Session) noteBulkLocked(n int) {
	if !s.cfg.Disable.Bulk && s.bulk.Add(n) {
		s.bulk.Step(time.Now())
	}
}
