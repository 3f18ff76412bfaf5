package nodeproxy

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// plainSide is one side of a connection: what it does, and what came of it. Its reading goes on to the end, with pauses.
type plainSide struct {
	conn    *net.TCPConn
	mark    byte // of its bytes
	writes  []int
	pauses  []time.Duration // before each write, and before the end
	end     string          // how it ends: see plainModelEnds
	first   time.Duration   // before the first read
	slow    []time.Duration // before each read
	piece   int             // of a read
	written int             // bytes that the kernel has taken
	failed  error           // of a write
	unread  bool            // it ended with bytes that it had not read: its kernel sends RST
	arrived bool            // all its bytes were acknowledged before its RST

	got   int // bytes of the other side
	wrong int // where they are not as they were sent; -1: nowhere
	ended error
}

// The ways in which a side ends. One that closes reads nothing before that, if unread is to be seen.
var plainModelEnds = []string{"FIN", "FIN", "RST", "FIN, RST", "close", lateRST, lateRST}

// lateRST is a reset by a side all of whose bytes its kernel has seen acknowledged.
const lateRST = "RST behind acknowledged bytes"

func (s *plainSide) write() {
	k := 0
	for i, n := range s.writes {
		time.Sleep(s.pauses[i])
		p := make([]byte, n)
		for j := range p {
			p[j] = s.mark + byte((k+j)*31)
		}
		m, err := s.conn.Write(p)
		k += m
		if s.written = k; err != nil {
			s.failed = err
			break
		}
	}
	time.Sleep(s.pauses[len(s.writes)])
}

func (s *plainSide) finish() {
	switch s.end {
	case "FIN":
		s.conn.CloseWrite()
	case lateRST:
		for end := time.Now().Add(time.Second); !s.arrived && !appClosed(s.conn) && time.Now().Before(end); time.Sleep(time.Millisecond) {
			s.arrived = unsentBytes(s.conn) == 0
		}
		s.arrived = s.arrived && s.failed == nil
		s.conn.SetLinger(0)
		s.conn.Close()
	case "RST":
		s.conn.SetLinger(0)
		s.conn.Close()
	case "FIN, RST":
		s.conn.CloseWrite()
		s.conn.SetLinger(0)
		s.conn.Close()
	case "close":
		raw, err := s.conn.SyscallConn()
		if err != nil {
			return
		}
		raw.Control(func(fd uintptr) {
			n, _ := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
			s.unread = n > 0
		})
		s.conn.Close()
	}
}

// unsentBytes is how many bytes of c its peer has not acknowledged; -1 if that is not known.
func unsentBytes(c *net.TCPConn) int {
	n := -1
	if raw, err := c.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) {
			if k, err := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ); err == nil {
				n = k
			}
		})
	}
	return n
}

func (s *plainSide) read(other byte) {
	s.wrong = -1
	buf := make([]byte, s.piece)
	s.conn.SetReadDeadline(time.Now().Add(60 * time.Second))
	time.Sleep(s.first)
	for i := 0; ; i++ {
		time.Sleep(s.slow[i%len(s.slow)])
		n, err := s.conn.Read(buf)
		for j, b := range buf[:n] {
			if b != other+byte((s.got+j)*31) && s.wrong < 0 {
				s.wrong = s.got + j
			}
		}
		if s.got += n; err != nil {
			s.ended = err
			return
		}
	}
}

// ends reports whether s ends what it says in order, as its kernel tells it.
func (s *plainSide) ends() bool {
	return s.end != "RST" && s.end != lateRST && !s.unread && s.failed == nil
}

// Whatever both sides do, in whatever order: what one gets are the first bytes that the other has sent, as they were; and it
// reads an end only behind the last of them, if that is how they ended.
func TestAPlainRelayUnderRandomSchedules(t *testing.T) {
	t.Parallel()
	for seed := range uint64(150) {
		plainSchedule(t, seed, true)
	}
}

// So it is on one connection: the model asks for no more than TCP gives.
func TestThePlainModelIsTCPs(t *testing.T) {
	t.Parallel()
	for seed := range uint64(150) {
		plainSchedule(t, seed, false)
	}
}

func plainSchedule(t *testing.T, seed uint64, through bool) {
	rnd := rand.New(rand.NewPCG(seed, 29))
	few := func() time.Duration {
		return []time.Duration{0, 0, 0, time.Duration(rnd.IntN(300)) * time.Microsecond, time.Duration(rnd.IntN(3)) * time.Millisecond}[rnd.IntN(5)]
	}
	sides := [2]*plainSide{{mark: 3}, {mark: 101}}
	for _, s := range sides {
		s.end = plainModelEnds[rnd.IntN(len(plainModelEnds))]
		for range rnd.IntN(5) {
			n := []int{1 + rnd.IntN(100), 1 + rnd.IntN(64<<10), 1 + rnd.IntN(2<<20)}[rnd.IntN(3)]
			if s.end == lateRST { // or a slow reader would need the whole time that a relay gives it
				n = 1 + n/4
			}
			if s.end == "close" { // two that do not read must not wait for each other
				n = 1 + rnd.IntN(200)
			}
			s.writes = append(s.writes, n)
		}
		for range len(s.writes) + 1 {
			s.pauses = append(s.pauses, few())
		}
		for range 7 {
			s.slow = append(s.slow, few())
		}
		s.piece = []int{64 << 10, 4 << 10, 256 << 10}[rnd.IntN(3)]
	}
	for i, s := range sides {
		if sides[1-i].end == lateRST && rnd.IntN(2) == 0 {
			s.first = 200 * time.Millisecond
		}
	}
	late := rnd.IntN(3) == 0 // the relay begins when some has happened
	var r *relayed
	start := func() {}
	if through {
		begun := time.Now()
		wait := few()
		r, start = relayPlainOnce(t, func(near, far *net.TCPConn) bool { return !late || time.Since(begun) >= wait })
		sides[0].conn, sides[1].conn = r.client, r.server
	} else {
		sides[0].conn, sides[1].conn = tcpPair(t)
	}
	var wg sync.WaitGroup
	for i, s := range sides {
		other := sides[1-i]
		if s.end != "close" {
			wg.Go(func() { s.read(other.mark) })
		}
		wg.Go(func() {
			s.write()
			s.finish()
		})
	}
	start()
	wg.Wait()
	for i, s := range sides {
		other := sides[1-i]
		switch {
		case s.end == "close":
			continue
		case s.wrong >= 0:
			t.Errorf("seed %d, through %v: side %d has got other bytes than were sent, at %d of %d", seed, through, i, s.wrong, s.got)
		case s.got > other.written && other.failed == nil:
			t.Errorf("seed %d, through %v: side %d has got %d bytes of %d", seed, through, i, s.got, other.written)
		case s.end == "FIN" && other.arrived && s.got < other.written:
			t.Errorf("seed %d, through %v: side %d has got %d bytes of %d that were acknowledged before the reset, then %v", seed, through, i, s.got, other.written, s.ended)
		case errors.Is(s.ended, os.ErrDeadlineExceeded):
			t.Errorf("seed %d, through %v: side %d (%s) waits for an end although the other side ended with %s", seed, through, i, s.end, other.end)
		case s.failed != nil && s.ended == io.EOF: // a write of its own was told of the reset, which the kernel tells once
		case s.ended == io.EOF && (!other.ends() || s.got != other.written):
			t.Errorf("seed %d, through %v: side %d (%s) has got an end behind %d of %d bytes, of a side that ended with %s (unread %v, a write failed: %v)",
				seed, through, i, s.end, s.got, other.written, other.end, other.unread, other.failed)
		case s.end == "FIN" && other.end == "FIN" && s.ended != io.EOF:
			t.Errorf("seed %d, through %v: side %d ends with %v, and both ended in order", seed, through, i, s.ended)
		case s.ended != io.EOF && !errors.Is(s.ended, syscall.ECONNRESET) && !errors.Is(s.ended, net.ErrClosed):
			t.Errorf("seed %d, through %v: side %d ends with %v", seed, through, i, s.ended)
		}
		s.conn.Close()
	}
	if r == nil {
		return
	}
	select {
	case <-r.ended:
	case <-time.After(lastWordsWithin + 5*time.Second):
		t.Errorf("seed %d: the relay goes on, sides %s and %s", seed, sides[0].end, sides[1].end)
	}
}
