package pending

import "testing"

type conn struct{ closed bool }

func (c *conn) Close() error { c.closed = true; return nil }

func TestTheOldestMakesRoom(t *testing.T) {
	s := New(2)
	a, b, c, d := &conn{}, &conn{}, &conn{}, &conn{}
	leaveA, _ := s.Enter(a)
	leaveB, evicted := s.Enter(b)
	if evicted || s.Len() != 2 {
		t.Fatalf("two of two: evicted %v, %d pending", evicted, s.Len())
	}
	if _, evicted = s.Enter(c); !evicted || !a.closed || b.closed || s.Len() != 2 {
		t.Errorf("third: evicted %v, closed %v %v, %d pending; want the first closed", evicted, a.closed, b.closed, s.Len())
	}
	leaveA() // evicted already: must not take out anybody else
	leaveB()
	if s.Len() != 1 {
		t.Errorf("%d pending after two have left, want 1", s.Len())
	}
	if _, evicted = s.Enter(d); evicted || c.closed || d.closed {
		t.Errorf("room was free: evicted %v, closed %v %v", evicted, c.closed, d.closed)
	}
}
