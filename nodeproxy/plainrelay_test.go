package nodeproxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// relayed is a connection through a plainRelay, by its two ends.
type relayed struct {
	client, server *net.TCPConn
	relay          *plainRelay
	stop           context.CancelFunc
	ended          chan struct{}
}

func tcpPair(t *testing.T) (dialled, accepted *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); s.Close() })
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

func relayPlain(t *testing.T) *relayed {
	t.Helper()
	r := &relayed{ended: make(chan struct{})}
	var near, far *net.TCPConn
	r.client, near = tcpPair(t)
	far, r.server = tcpPair(t)
	p := newProxy(DefaultConfig(), zerolog.Nop())
	t.Cleanup(p.stop)
	r.relay = &plainRelay{p: p, near: near, far: far, access: access{direction: "outbound", plain: true, started: time.Now()}}
	ctx, stop := context.WithCancel(t.Context())
	r.stop = stop
	go func() {
		r.relay.run(ctx)
		close(r.ended)
	}()
	t.Cleanup(func() { stop(); <-r.ended })
	return r
}

// result waits for the end.
func (r *relayed) result(t *testing.T) access {
	t.Helper()
	select {
	case <-r.ended:
	case <-time.After(5 * time.Second):
		t.Fatal("the relay does not end")
	}
	return r.relay.access
}

// readEnd reads to the end, and returns how that came.
func readEnd(c net.Conn) (n int, err error) {
	c.SetReadDeadline(time.Now().Add(5 * time.Second))
	m, err := io.Copy(io.Discard, c)
	return int(m), err
}

// Whatever both sides do, in whatever order: what one has sent before its end the other has got, an end is an
// end and a reset a reset, and the relay is over when both sides are.
func TestAPlainRelayIsAsOneConnection(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		r := relayPlain(t)
		sizes := [2]int{rnd.IntN(3) * rnd.IntN(1<<20), rnd.IntN(3) * rnd.IntN(1<<20)}
		pauses := [2]time.Duration{time.Duration(rnd.IntN(4)) * time.Millisecond, time.Duration(rnd.IntN(4)) * time.Millisecond}
		var got [2]bytes.Buffer
		var errs [2]error
		var wg sync.WaitGroup
		sent := [2][]byte{make([]byte, sizes[0]), make([]byte, sizes[1])}
		for i, c := range []*net.TCPConn{r.client, r.server} {
			for k := range sent[i] {
				sent[i][k] = byte(k*7 + i)
			}
			wg.Go(func() {
				time.Sleep(pauses[i])
				c.Write(sent[i])
				c.CloseWrite()
			})
			wg.Go(func() {
				c.SetReadDeadline(time.Now().Add(5 * time.Second))
				_, errs[i] = io.Copy(&got[i], c)
			})
		}
		wg.Wait()
		for i := range got {
			if errs[i] != nil || !bytes.Equal(got[i].Bytes(), sent[1-i]) {
				t.Fatalf("seed %d: side %d has got %d bytes and %v, want %d", seed, i, got[i].Len(), errs[i], sizes[1-i])
			}
		}
		a := r.result(t)
		if a.result != resultOK || a.err != nil || a.sent != int64(sizes[0]) || a.received != int64(sizes[1]) {
			t.Fatalf("seed %d: %q, %v, %d bytes sent and %d received, want %v", seed, a.result, a.err, a.sent, a.received, sizes)
		}
	}
}

func TestAPlainRelayPassesResetsOn(t *testing.T) {
	t.Parallel()
	sides := func(r *relayed) map[string][2]*net.TCPConn {
		return map[string][2]*net.TCPConn{resultClientReset: {r.client, r.server}, resultServerReset: {r.server, r.client}}
	}
	for want := range sides(&relayed{}) {
		for _, when := range []string{"at rest", "after its FIN", "after the other's FIN"} {
			r := relayPlain(t)
			by, other := sides(r)[want][0], sides(r)[want][1]
			switch when {
			case "after its FIN":
				by.CloseWrite()
				if n, err := readEnd(other); n != 0 || err != nil {
					t.Fatalf("%d bytes, %v", n, err)
				}
			case "after the other's FIN":
				other.CloseWrite()
				if n, err := readEnd(by); n != 0 || err != nil {
					t.Fatalf("%d bytes, %v", n, err)
				}
			}
			by.SetLinger(0)
			by.Close()
			if a := r.result(t); a.result != want {
				t.Errorf("%s, %s: the result is %q, %v", want, when, a.result, a.err)
			}
			if when != "after its FIN" { // who has had a FIN reads that first
				if _, err := readEnd(other); !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("%s, %s: the other side reads %v, want a reset", want, when, err)
				}
			} else if _, err := other.Write([]byte("x")); err == nil {
				if _, err = other.Write([]byte("x")); err == nil {
					t.Errorf("%s, %s: the other side can write", want, when)
				}
			}
		}
	}
}

func TestAPlainRelayThatIsStoppedResetsBoth(t *testing.T) {
	t.Parallel()
	r := relayPlain(t)
	r.stop()
	for _, c := range []net.Conn{r.client, r.server} {
		if _, err := readEnd(c); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a side reads %v, want a reset", err)
		}
	}
	if a := r.result(t); a.result != resultStopped {
		t.Errorf("the result is %q, %v", a.result, a.err)
	}
}
