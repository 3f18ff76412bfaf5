package nodeproxy

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// relayPlainOnce is relayPlain whose relay begins with start, once ready says so of its two connections.
func relayPlainOnce(t *testing.T, ready func(near, far *net.TCPConn) bool) (r *relayed, start func()) {
	t.Helper()
	r = &relayed{ended: make(chan struct{})}
	var near, far *net.TCPConn
	r.client, near = tcpPair(t)
	far, r.server = tcpPair(t)
	p := newProxy(DefaultConfig(), zerolog.Nop())
	t.Cleanup(p.stop)
	r.relay = &plainRelay{p: p, near: near, far: far, access: access{direction: "outbound", plain: true, started: time.Now()}}
	return r, func() {
		for limit := time.Now().Add(5 * time.Second); !ready(near, far) && time.Now().Before(limit); {
			time.Sleep(50 * time.Microsecond)
		}
		go func() {
			r.relay.run(t.Context())
			close(r.ended)
		}()
	}
}

// The kernel tells of a reset once, and a write may be who is told: ECONNRESET, which each later write calls EPIPE, as the
// first one does of a reset behind a FIN.
func TestAWriteOfAPlainRelaySaysWhatItWasToldFirst(t *testing.T) {
	t.Parallel()
	for want, leave := range map[syscall.Errno]func(c *net.TCPConn){
		syscall.ECONNRESET: func(c *net.TCPConn) { c.SetLinger(0); c.Close() },
		syscall.EPIPE:      func(c *net.TCPConn) { c.CloseWrite(); c.SetLinger(0); c.Close() },
	} {
		near, _ := tcpPair(t)
		far, server := tcpPair(t)
		leave(server)
		for !appClosed(far) {
			time.Sleep(time.Millisecond)
		}
		up, down := &plainHalf{from: near, to: far}, &plainHalf{from: far, to: near}
		up.other, down.other = down, up
		if _, err := up.write([]byte("x"), 0); !errors.Is(err, want) {
			t.Errorf("the first write fails with %v, want %v", err, want)
		}
		if got := down.endedFirst(); got != (want == syscall.EPIPE) {
			t.Errorf("told %v: the end came first is %v", want, got)
		}
	}
}

// plainEnds are the ways in which one side of a connection ends it, and whether the other one reads an end.
var plainEnds = []struct {
	name string
	end  bool
	do   func(c *net.TCPConn)
}{
	{"FIN", true, func(c *net.TCPConn) { c.CloseWrite() }},
	{"RST", false, func(c *net.TCPConn) { c.SetLinger(0); c.Close() }},
	{"FIN, RST", true, func(c *net.TCPConn) { c.CloseWrite(); c.SetLinger(0); c.Close() }},
}

// However a side ends, and whatever the other one sends meanwhile, that one reads all that was said, and then an end if
// there was one, and a reset if not: an answer that was cut short must not look complete. So it is on one connection, and
// both are tried.
func TestAPlainRelayEndsAsItsSidesDo(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		rnd := rand.New(rand.NewPCG(seed, 11))
		how := plainEnds[rnd.IntN(len(plainEnds))]
		before := rnd.IntN(2) == 0 // the relay begins when all has happened
		part := make([]byte, rnd.IntN(4<<10))
		writes := rnd.IntN(4)
		pause := time.Duration(rnd.IntN(200)) * time.Microsecond
		for _, through := range []bool{false, true} {
			var by, other *net.TCPConn
			start := func() {}
			if through {
				var r *relayed
				r, start = relayPlainOnce(t, func(near, far *net.TCPConn) bool {
					return !before || how.name == "FIN" || appClosed(far) || appClosed(near)
				})
				if by, other = r.server, r.client; rnd.IntN(2) == 0 {
					by, other = other, by
				}
			} else {
				by, other = tcpPair(t)
			}
			if !before {
				start()
			}
			said := make(chan error, 1)
			say := func() {
				for range writes {
					if _, err := other.Write([]byte("something more")); err != nil {
						said <- err
						return
					}
					time.Sleep(pause)
				}
				said <- nil
			}
			if before {
				say()
			} else {
				go say()
			}
			by.Write(part)
			how.do(by)
			if before {
				start()
			}
			told := <-said // a write of its own may have taken the reset
			other.SetReadDeadline(time.Now().Add(5 * time.Second))
			got, err := io.ReadAll(other)
			if want := how.end; (err == nil) != want && !(told != nil && !want) || len(got) != len(part) || err != nil && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("seed %d, %s, relayed %v (begun behind it %v), %d writes of the other side (%v): it reads %d of %d bytes, then %v",
					seed, how.name, through, before, writes, told, len(got), len(part), err)
			}
			other.SetLinger(0)
			other.Close()
			by.Close()
		}
	}
}
