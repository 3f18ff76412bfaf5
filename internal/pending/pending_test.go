package pending

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// conn is one connection of the model.
type conn struct {
	closed   int
	unread   bool // the peer has sent bytes that were not read
	spoke    bool
	answered bool
	work     []func() // of Work, not done
	from     netip.Prefix
	since    time.Duration // when it entered
	e        *Entry
}

func (c *conn) Close() error { c.closed++; return nil }

func newTestSet(limit int) *Set {
	s := New(limit)
	s.waits = func(c io.Closer, spoke bool) bool {
		x := c.(*conn)
		return x.unread || spoke && !x.answered
	}
	return s
}

func testAddress(n int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), 32)
}

// victimOf returns which of in, ordered by age, is evicted: of the addresses with the most
// connections, the one with the oldest; of its connections without work the oldest without
// unread bytes or an unanswered message, or the newest if each of the 16 oldest has such. If
// all have work it is the newest.
func victimOf(in []*conn) *conn {
	count := map[netip.Prefix]int{}
	for _, c := range in {
		count[c.from]++
	}
	first := in[0]
	for _, c := range in {
		if count[c.from] > count[first.from] {
			first = c
		}
	}
	of := slices.DeleteFunc(slices.Clone(in), func(c *conn) bool { return c.from != first.from })
	idle := slices.DeleteFunc(slices.Clone(of), func(c *conn) bool { return len(c.work) > 0 })
	if len(idle) == 0 {
		return of[len(of)-1]
	}
	for _, c := range idle[:min(len(idle), 16)] {
		if !c.unread && (!c.spoke || c.answered) {
			return c
		}
	}
	return idle[len(idle)-1]
}

// Connections of a few addresses enter, receive bytes, have work and leave in a random
// order. After each step the set agrees with a list.
func TestSetEvictsLikeSlowModel(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 3))
		limit, addresses := 1+rng.IntN(60), 1+rng.IntN(6)
		s := newTestSet(limit)
		var in []*conn // oldest first
		for step := range 600 {
			what := fmt.Sprintf("seed %d step %d", seed, step)
			switch rng.IntN(6) {
			case 0, 1:
				c := &conn{from: testAddress(rng.IntN(addresses)), unread: rng.IntN(3) == 0}
				if rng.IntN(8) == 0 {
					c.from = netip.Prefix{} // an address that is unknown counts as one
				}
				in = append(in, c)
				var want *conn
				if len(in) > limit {
					want = victimOf(in)
					in = slices.DeleteFunc(in, func(x *conn) bool { return x == want })
				}
				var evicted bool
				c.e, evicted = s.Enter(c, c.from)
				if evicted != (want != nil) || (c.e == nil) != (want == c) {
					t.Fatalf("%s: entered %t, evicted %t; want %t, %t", what, c.e != nil, evicted, want != c, want != nil)
				}
				if want != nil && want != c && want.closed != 1 {
					t.Fatalf("%s: the connection to evict was closed %d times, want once", what, want.closed)
				}
			case 2:
				if len(in) > 0 {
					c := in[rng.IntN(len(in))]
					c.unread = !c.unread
				}
			case 4:
				if len(in) > 0 {
					c := in[rng.IntN(len(in))]
					if c.answered = c.spoke; !c.spoke {
						c.spoke = true
						c.e.FirstMessage()
					}
				}
			case 5:
				if len(in) > 0 {
					c := in[rng.IntN(len(in))]
					if n := len(c.work); n > 0 && rng.IntN(3) == 0 {
						c.work[n-1]()
						c.work = c.work[:n-1]
					} else {
						c.work = append(c.work, c.e.Work())
					}
				}
			case 3:
				if i := len(in); i > 0 && rng.IntN(3) == 0 {
					i = rng.IntN(i)
					in[i].e.Leave()
					in[i].e.Leave()
					in = slices.Delete(in, i, i+1)
				}
			}
			for _, c := range in {
				if c.closed != 0 {
					t.Fatalf("%s: a connection that was not to be evicted is closed", what)
				}
			}
			if s.Len() != len(in) {
				t.Fatalf("%s: %d in the set, want %d", what, s.Len(), len(in))
			}
		}
		for _, c := range in {
			c.e.Leave()
		}
		if s.n != 0 || len(s.sources) != 0 || len(s.largest) != 0 {
			t.Fatalf("seed %d: %d connections, %d sources, %d in the heap after all have left", seed, s.n, len(s.sources), len(s.largest))
		}
	}
}

// Some addresses open connections at random rates and finish none. An honest client at
// one of these addresses, or at its own, finishes each handshake within the time that the
// package promises. None is evicted.
func TestHandshakeInTimeIsNotEvicted(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 5))
		limit, addresses := 16+rng.IntN(200), 1+rng.IntN(8)
		s := newTestSet(limit)
		own := rng.IntN(addresses + 1) // addresses: its own
		k := max(addresses, own+1)
		opens := make([]time.Duration, k) // between two connections of one address
		for i := range opens {
			opens[i] = time.Duration(1+rng.IntN(20)) * time.Millisecond
		}
		honestOpens := 10 * time.Millisecond
		perSecond := float64(time.Second/honestOpens) + float64(time.Second)/float64(opens[own])
		allowed := time.Duration(float64(limit) / (float64(k) * perSecond) * float64(time.Second))
		allowed -= 2 * opens[own] // an address opens its connections at fixed points in time
		if allowed <= 0 {
			continue
		}
		var honest []*conn
		for now := time.Duration(0); now < 3*time.Second; now += time.Millisecond {
			for len(honest) > 0 && now-honest[0].since >= allowed {
				if honest[0].closed != 0 || honest[0].e == nil {
					t.Fatalf("seed %d: a handshake that took %v of %v was evicted (limit %d, %d addresses)", seed, allowed, allowed, limit, k)
				}
				honest[0].e.Leave()
				honest = honest[1:]
			}
			for i := range k {
				if now%opens[i] == 0 && i < addresses {
					s.Enter(&conn{}, testAddress(i))
				}
			}
			if now%honestOpens == 0 {
				c := &conn{from: testAddress(own), since: now}
				c.e, _ = s.Enter(c, c.from)
				honest = append(honest, c)
			}
		}
	}
}

// After a restart more clients connect than the set holds, and each has sent its hello.
// The handshakes that are in the set finish; the newest is refused.
func TestStormOfClientsIsServedInOrder(t *testing.T) {
	s := newTestSet(4)
	var in []*conn
	for i := range 8 {
		c := &conn{unread: true}
		if c.e, _ = s.Enter(c, testAddress(1)); (c.e != nil) != (i < 4) {
			t.Errorf("connection %d entered: %t", i, c.e != nil)
		}
		in = append(in, c)
	}
	for i, c := range in[:4] {
		if c.closed != 0 {
			t.Errorf("connection %d, which waits for this process, was closed", i)
		}
	}
	if e, evicted := s.Enter(&conn{unread: true}, testAddress(2)); e == nil || !evicted || in[3].closed != 1 {
		t.Errorf("another address: entered %t, evicted %t; want the newest of the largest source evicted", e != nil, evicted)
	}
}

// Two processors sign for the oldest handshakes while new ones arrive. Those in progress are not evicted, but what is idle
// before or behind them, and peers that have their answer and hold the handshake.
func TestHandshakeInProgressIsNotEvicted(t *testing.T) {
	s := newTestSet(4)
	enter := func() *conn {
		c := &conn{}
		c.e, _ = s.Enter(c, testAddress(1))
		return c
	}
	first, second, idle, held := enter(), enter(), enter(), enter()
	for _, c := range []*conn{first, second, held} {
		c.e.FirstMessage()
	}
	held.answered = true
	enter().e.FirstMessage()
	if idle.closed != 1 {
		t.Error("the idle handshake is not the first to be evicted")
	}
	enter().e.FirstMessage()
	if held.closed != 1 {
		t.Error("the handshake that waits for its peer is not the second to be evicted")
	}
	if c := enter(); c.e != nil || first.closed+second.closed != 0 {
		t.Error("another handshake entered while all are in progress")
	}
	first.answered = true
	if c := enter(); c.e == nil || first.closed != 1 || second.closed != 0 {
		t.Error("the handshake that waits for its peer again was not evicted")
	}
}

func TestSocketWaitsForUs(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if waitsForUs(server, false) {
		t.Error("unread bytes before any were sent")
	}
	client.Write([]byte("hello"))
	for end := time.Now().Add(20 * time.Second); !waitsForUs(server, false); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no unread bytes after 5 were sent")
		}
	}
	io.ReadFull(server, make([]byte, 5))
	if waitsForUs(server, false) {
		t.Error("unread bytes after all were read")
	}
	if !waitsForUs(server, true) {
		t.Error("a message that was read and not answered does not wait for this process")
	}
	server.Write([]byte("hello"))
	if waitsForUs(server, true) {
		t.Error("a message that was answered waits for this process")
	}
}
