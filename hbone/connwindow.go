package hbone

import (
	"fmt"
	"sync"
	"time"
)

// maxLent is how many connection windows' worth of unread bytes a session takes
// on besides the window itself, so that streams which nobody reads do not starve
// the others: with 4 MiB per stream and 16 MiB per session, sixteen such streams
// and not four. What one stream can hold its own window bounds.
const maxLent = 3

// MaxUnread is the most bytes that one session with this configuration can have
// received and not delivered to an application, over all its streams: the
// connection window, and what is lent on top of it.
func (c Config) MaxUnread() int64 { return int64(c.withDefaults().ConnWindow) * (1 + maxLent) }

// connWindow is the connection's receive window, and the account of every byte of
// DATA, padding included, that the peer has sent against it. A byte is held from
// the header of its frame on until whoever has it releases it, exactly once: the
// reader, which throws it away, or the receiving half of its stream, when the
// application has taken it or nobody will. Always
//
//	avail + unacked + held - lent == size
//
// It has a lock of its own that is the innermost: it may be taken while any other
// is held.
type connWindow struct {
	mu      sync.Mutex
	size    int
	avail   int // left to the peer, as it knows or is about to be told
	held    int // received and not released
	lent    int // of what is held, given back to the peer already
	unacked int // given back, and not yet told to the peer

	empty time.Time // since when next to nothing is left to the peer; zero: something is
}

func (w *connWindow) init(size int) { w.size, w.avail = size, size }

// receive charges n bytes. low reports that the peer has used up most of the
// window, ok is false if it has sent more than it may.
func (w *connWindow) receive(n int) (low, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.avail -= n
	w.held += n
	if w.isEmptyLocked() && w.empty.IsZero() {
		w.empty = time.Now()
	}
	return w.avail < w.size/4, w.avail >= 0
}

// release takes back n bytes that were held and returns how much window the peer
// is to be told of, zero until that is a quarter of the whole.
func (w *connWindow) release(n int) (due int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held -= n
	repaid := max(0, w.lent-w.held)
	w.lent -= repaid
	w.unacked += n - repaid
	return w.dueLocked()
}

// lend gives back, before anybody has read them, bytes that are held. It is for a
// window that runs low: with readers that keep up next to nothing is held then.
func (w *connWindow) lend() (due int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := max(0, min(w.held, maxLent*w.size)-w.lent)
	w.lent += n
	w.unacked += n
	return w.dueLocked()
}

// dueLocked is a quarter of the window or more, or, once little of it is left, what lets
// the peer go on: nobody may take another byte until something has come.
func (w *connWindow) dueLocked() (due int) {
	if w.unacked < w.size/4 && (w.unacked < w.size/64 || w.avail > w.size/16) {
		return 0
	}
	due, w.unacked = w.unacked, 0
	w.avail += due
	if !w.isEmptyLocked() {
		w.empty = time.Time{}
	}
	return due
}

// isEmptyLocked reports whether next to nothing is left to the peer.
func (w *connWindow) isEmptyLocked() bool { return w.avail <= w.size/256 }

// lack says what of the window is lacking: crowded, that half of what may be lent is, for
// streams that are not read; and since when nothing is left, zero if something is.
func (w *connWindow) lack() (crowded bool, empty time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lent >= maxLent*w.size/2, w.empty
}

// holds is how many bytes are held.
func (w *connWindow) holds() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.held
}

// check states what always holds.
func (w *connWindow) check() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.avail+w.unacked+w.held-w.lent != w.size:
		return fmt.Errorf("connection window of %d bytes: %d left, %d to be told, %d held and %d lent do not add up", w.size, w.avail, w.unacked, w.held, w.lent)
	case w.isEmptyLocked() == w.empty.IsZero():
		return fmt.Errorf("connection window of %d bytes: %d left, empty since %v", w.size, w.avail, w.empty)
	case w.held < 0 || w.unacked < 0:
		return fmt.Errorf("connection window: %d held, %d to be told: bytes were given back twice", w.held, w.unacked)
	case w.lent < 0 || w.lent > min(w.held, maxLent*w.size):
		return fmt.Errorf("connection window: %d lent of %d held, at most %d may be", w.lent, w.held, maxLent*w.size)
	}
	return nil
}

// whole reports, as an error if not so, that nothing is held.
func (w *connWindow) whole() error {
	if err := w.check(); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held != 0 {
		return fmt.Errorf("connection window: %d of %d bytes are held and %d lent, though no stream is left", w.held, w.size, w.lent)
	}
	return nil
}
