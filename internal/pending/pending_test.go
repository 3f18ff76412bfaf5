package pending

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
)

type conn struct {
	closed int
	from   netip.Prefix
	spoken bool
	spoke  time.Time
	e      *Entry
}

func (c *conn) Close() error { c.closed++; return nil }

var anyone netip.Prefix

func TestTheOldestSilentOneMakesRoom(t *testing.T) {
	s := New(2, 0)
	a, b, c, d := &conn{}, &conn{}, &conn{}, &conn{}
	ea, _ := s.Enter(a, anyone)
	eb, evicted := s.Enter(b, anyone)
	if evicted || s.Len() != 2 {
		t.Fatalf("two of two: evicted %v, %d pending", evicted, s.Len())
	}
	ea.FirstMessage()
	if _, evicted = s.Enter(c, anyone); !evicted || b.closed != 1 || a.closed != 0 || s.Len() != 2 {
		t.Errorf("third: evicted %v, closed %v %v, %d pending; want the silent one closed", evicted, a.closed, b.closed, s.Len())
	}
	eb.Leave() // evicted already: must not take out anybody else
	if s.Len() != 2 {
		t.Errorf("%d pending after an evicted one has left, want 2", s.Len())
	}
	ea.Leave()
	if _, evicted = s.Enter(d, anyone); evicted || c.closed != 0 {
		t.Errorf("room was free: evicted %v, closed %v", evicted, c.closed)
	}
}

// Who has spoken and then does not finish cannot keep others out for longer than
// Patience, however many they are.
func TestTheOldestUnfinishedOneMakesRoomInTheEnd(t *testing.T) {
	s, now := New(2, 0), time.Unix(1000, 0)
	s.now = func() time.Time { return now }
	a, b := &conn{}, &conn{}
	ea, _ := s.Enter(a, anyone)
	eb, _ := s.Enter(b, anyone)
	eb.FirstMessage()
	now = now.Add(time.Millisecond)
	ea.FirstMessage()
	now = now.Add(Patience - 2*time.Millisecond)
	if e, _ := s.Enter(&conn{}, anyone); e != nil || a.closed+b.closed != 0 {
		t.Fatal("one that has just spoken is closed for another")
	}
	now = now.Add(time.Millisecond)
	if e, evicted := s.Enter(&conn{}, anyone); e == nil || !evicted || b.closed != 1 || a.closed != 0 {
		t.Errorf("entered %v evicted %v, closed %d and %d; want the one closed that spoke first", e != nil, evicted, b.closed, a.closed)
	}
}

// Random connections of few addresses enter, speak and leave: the bounds hold, only
// the oldest silent one, or else the one that spoke first, is closed for another, and the books agree with a list.
func TestTheSetAgreesWithAList(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 3))
		limit, per := 1+rng.IntN(8), rng.IntN(5)
		s, now := New(limit, per), time.Unix(1000, 0)
		s.now = func() time.Time { return now }
		var in []*conn // oldest first
		count := func(p netip.Prefix) (n int) {
			for _, c := range in {
				if c.from == p {
					n++
				}
			}
			return n
		}
		for step := range 300 {
			what := fmt.Sprintf("seed %d step %d", seed, step)
			now = now.Add(time.Duration(rng.Int64N(int64(Patience))))
			switch rng.IntN(4) {
			case 0, 1:
				c := &conn{}
				if n := rng.IntN(4); n > 0 {
					c.from = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}), 32)
				}
				ofAddress := c.from.IsValid() && per > 0 && count(c.from) >= per
				full := ofAddress || len(in) >= limit
				victim := slices.IndexFunc(in, func(x *conn) bool { return !x.spoken && (!ofAddress || x.from == c.from) })
				for i, x := range in {
					if silent := victim >= 0 && !in[victim].spoken; !silent && x.spoken && now.Sub(x.spoke) >= Patience && (!ofAddress || x.from == c.from) &&
						(victim < 0 || x.spoke.Before(in[victim].spoke)) {
						victim = i
					}
				}
				e, evicted := s.Enter(c, c.from)
				if (e != nil) != (!full || victim >= 0) || evicted != (full && victim >= 0) {
					t.Fatalf("%s: entered %v evicted %v; full %v, victim %d of %d", what, e != nil, evicted, full, victim, len(in))
				}
				if evicted {
					if in[victim].closed != 1 {
						t.Fatalf("%s: another one was closed", what)
					}
					in = slices.Delete(in, victim, victim+1)
				}
				if e != nil {
					c.e = e
					in = append(in, c)
				}
			case 2:
				if len(in) > 0 {
					c := in[rng.IntN(len(in))]
					if !c.spoken {
						c.spoken, c.spoke = true, now
					}
					c.e.FirstMessage()
				}
			case 3:
				if len(in) > 0 {
					i := rng.IntN(len(in))
					in[i].e.Leave()
					in[i].e.Leave()
					in = slices.Delete(in, i, i+1)
				}
			}
			for _, c := range in {
				if c.closed != 0 {
					t.Fatalf("%s: one that is pending is closed", what)
				}
			}
			if s.Len() != len(in) || len(in) > limit {
				t.Fatalf("%s: %d pending, want %d of at most %d", what, s.Len(), len(in), limit)
			}
		}
		for _, c := range in {
			c.e.Leave()
		}
		if s.n != 0 || s.quiet.Len() != 0 || s.talking.Len() != 0 || len(s.from) != 0 {
			t.Fatalf("seed %d: %d pending, %d silent, %d addresses when all have left", seed, s.n, s.quiet.Len(), len(s.from))
		}
	}
}
