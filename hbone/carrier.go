package hbone

// A session may run inside a stream of another one, its carrier: so the inner
// tunnel of double HBONE. Kept for many streams, it must not keep its carrier
// from draining, nor take new streams that its carrier would not take.

// carrierOf returns the session of the stream that t runs on, nil if it runs on
// a connection.
func carrierOf(t Transport) *Session {
	if tt, ok := t.(*TLSTransport); ok {
		if st, ok := tt.rec.Conn.(*Stream); ok {
			return st.s
		}
	}
	return nil
}

// Base returns the session on a connection that carries s, s itself if it runs
// on one.
func (s *Session) Base() *Session {
	for s.carrier != nil {
		s = s.carrier
	}
	return s
}

// board enlists s with its carrier.
func (s *Session) board() {
	c := s.carrier
	if c == nil {
		return
	}
	c.mu.Lock()
	if c.carried == nil {
		c.carried = map[*Session]struct{}{}
	}
	c.carried[s] = struct{}{}
	c.mu.Unlock()
	if c.retired() {
		s.CloseWhenIdle()
	}
}

// leave strikes s off its carrier's list.
func (s *Session) leave() {
	if c := s.carrier; c != nil {
		c.mu.Lock()
		delete(c.carried, s)
		c.mu.Unlock()
	}
}

// unload has every carried session close as soon as it is idle.
func (s *Session) unload() {
	for _, c := range s.carriedNow() {
		c.CloseWhenIdle()
	}
}

// carriedNow lists the sessions inside streams of s.
func (s *Session) carriedNow() []*Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.carried) == 0 {
		return nil
	}
	carried := make([]*Session, 0, len(s.carried))
	for c := range s.carried {
		carried = append(carried, c)
	}
	return carried
}
