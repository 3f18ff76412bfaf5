package hbone

import "time"

// claimer waits for claims of st, and sends with them. It belongs to one goroutine.
type claimer struct {
	st   *Stream
	lost func() error // why what is to be sent will never be there

	tick  *time.Timer // nil before the first wait
	began time.Time   // when the wait began
	look  bool        // tick has fired; guarded by the session's mu
}

// stallCheck is how often one that waits for a claim asks whether all is lost.
const stallCheck = time.Second

// claim waits for a claim of up to want bytes.
func (c *claimer) claim(want int) (int, error) {
	if n, err := c.st.tryClaim(want); n > 0 || err != nil {
		return n, err
	}
	return c.awaitClaim(want)
}

// awaitClaim is claim after tryClaim has got none.
func (c *claimer) awaitClaim(want int) (int, error) {
	s, h := c.st.s, &c.st.send
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := h.lock(); err != nil {
		return 0, err
	}
	c.startLocked()
	defer c.tick.Stop()
	s.send.setLimit(s.queueLimit())
	for {
		err := c.lookLocked()
		turn := s.send.takeBack(h)
		if err == nil {
			err = h.takes()
		}
		if err != nil {
			s.send.withdraw(h)
			h.unlock()
			return 0, err
		}
		n, what := s.send.tryClaim(h, want, turn)
		if n > 0 {
			return n, nil
		}
		s.send.enlist(h, what)
		h.cond.Wait()
	}
}

// startLocked starts the clock of a wait.
func (c *claimer) startLocked() {
	c.look, c.began = false, time.Now()
	if c.tick != nil {
		c.tick.Reset(stallCheck)
		return
	}
	c.tick = time.AfterFunc(stallCheck, func() {
		c.st.s.mu.Lock()
		c.look = true
		c.st.send.cond.Broadcast()
		c.st.s.mu.Unlock()
	})
}

// patient reports whether a wait for a claim may go on although who sends is gone, and has
// sent its end.
func (c *claimer) patient() bool { return time.Since(c.began) < stallTime }

// lookLocked asks lost, without the lock, if it is time.
func (c *claimer) lookLocked() error {
	if !c.look {
		return nil
	}
	c.st.s.mu.Unlock()
	err := c.lost()
	c.st.s.mu.Lock()
	c.look = false
	c.tick.Reset(stallCheck)
	return err
}

// send sends the n bytes of f that were read with the claim. It may be called once for
// each f.
func (c *claimer) send(f *frameBuf, n int) (int, error) {
	defer putFrameBuf(f)
	return c.st.sendClaimed(f, n)
}
