package hbone

// A claim is the right to send up to some bytes: they are taken from both windows,
// and there is room for them in the queue. A relay claims before it reads, so that
// what cannot be sent stays in the application's socket, where it holds the sender
// back, and not in a buffer of ours. A claim is held only while its bytes are read,
// which does not block; its stream is being written meanwhile.

// tryClaim claims up to want bytes, zero if there are none to be had now.
func (st *Stream) tryClaim(want int) (int, error) {
	s := st.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := st.send.takes(); err != nil || st.send.writing {
		return 0, err
	}
	s.send.setLimit(s.queueLimit())
	n, _ := s.send.tryClaim(&st.send, want, false)
	st.send.writing = n > 0
	return n, nil
}

// unclaim gives all of a claim back.
func (st *Stream) unclaim() {
	st.s.mu.Lock()
	st.s.send.unclaim(&st.send, st.send.claimed)
	st.send.unlock()
	st.s.mu.Unlock()
}

// sendClaimed sends n bytes at f.b[frameFront:] with the claim, the rest of which it
// gives back. f may be reused when it returns.
func (st *Stream) sendClaimed(f *frameBuf, n int) (int, error) {
	s := st.s
	defer st.endWrite()
	s.mu.Lock()
	if err := st.send.takes(); err != nil {
		s.send.unclaim(&st.send, st.send.claimed)
		s.mu.Unlock()
		return 0, err
	}
	s.send.unclaim(&st.send, st.send.claimed-n)
	s.send.claimed -= n
	st.send.claimed = 0
	return st.sendGranted(f.b[frameFront:frameFront+n], s.send.free(&st.send), f, frameFront)
}

// tryClaim is tryGrant for a claim: that the transport is free says nothing about the
// moment when the bytes are there.
func (w *sender) tryClaim(h *sendHalf, want int, turn bool) (n int, what waiting) {
	n = min(want, h.window, w.window)
	switch {
	case h.window <= 0:
		return 0, waitsNothing
	case w.window <= 0:
		return 0, waitsCredit
	case !w.hasRoom(n, turn):
		return 0, waitsRoom
	}
	h.claimed = n
	w.claimed += n
	w.charge(h, n)
	return n, waitsNothing
}

// unclaim gives n bytes of a claim back.
func (w *sender) unclaim(h *sendHalf, n int) {
	h.claimed -= n
	w.claimed -= n
	h.window += n
	w.window += n
	w.wakeCredit()
	w.admit()
}
