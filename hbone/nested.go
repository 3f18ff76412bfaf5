package hbone

// A session may run inside a stream of another one, its parent: so the inner
// tunnel of double HBONE. Kept for many streams, it must not keep its parent
// from draining, nor take new streams that its parent would not take.

// parentOf returns the session of the stream that t runs on, nil if it runs on
// a connection.
func parentOf(t Transport) *Session {
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
	for s.parent != nil {
		s = s.parent
	}
	return s
}

// joinParent enlists s with its parent.
func (s *Session) joinParent() {
	c := s.parent
	if c == nil {
		return
	}
	c.mu.Lock()
	if c.life.children == nil {
		c.life.children = map[*Session]struct{}{}
	}
	c.life.children[s] = struct{}{}
	c.mu.Unlock()
	if s.Err() != nil { // it has ended before it was enlisted, and left too early
		s.leaveParent()
		return
	}
	if c.retired() {
		s.CloseWhenIdle()
	}
}

// leaveParent strikes s off its parent's list.
func (s *Session) leaveParent() {
	if c := s.parent; c != nil {
		c.mu.Lock()
		delete(c.life.children, s)
		c.mu.Unlock()
	}
}

// drainChildren has every child close as soon as it is idle.
func (s *Session) drainChildren() {
	for _, c := range s.childrenNow() {
		c.CloseWhenIdle()
	}
}

// childrenNow lists the sessions inside streams of s.
func (s *Session) childrenNow() []*Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.life.children) == 0 {
		return nil
	}
	children := make([]*Session, 0, len(s.life.children))
	for c := range s.life.children {
		children = append(children, c)
	}
	return children
}
