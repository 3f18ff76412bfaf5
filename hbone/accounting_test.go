package hbone

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/wire"
	"github.com/isthmus-mesh/isthmus/internal/simnet"
	"golang.org/x/net/http2"
)

// asBefore waits until both sessions of r are as they were before the first stream.
func (r *rig) asBefore(t testing.TB) {
	t.Helper()
	var err error
	pair := func() error { return CheckPair(r.client, r.server) }
	if transports != nil { // they are the ends of two pipes
		pair = func() error { return nil }
	}
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if err = firstError(r.client.CheckIdle, r.server.CheckIdle, pair); err == nil {
			return
		}
	}
	t.Fatal(err)
}

func firstError(checks ...func() error) error {
	for _, c := range checks {
		if err := c(); err != nil {
			return err
		}
	}
	return nil
}

// The connection window against the obvious model: whatever order bytes are
// received, released and lent in, nothing is lost and nothing given back twice.
func TestConnectionWindowAddsUp(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var w connWindow
		w.init(1 + rng.IntN(1<<20))
		held, told := 0, w.size // what a peer knows
		for range 500 {
			switch {
			case rng.IntN(2) == 0 && told > 0:
				n := 1 + rng.IntN(told)
				if _, ok := w.receive(n); !ok {
					t.Fatalf("seed %d: %d bytes are refused, the peer was told of %d", seed, n, told)
				}
				held, told = held+n, told-n
			case rng.IntN(4) == 0:
				told += w.lend()
			case held > 0:
				n := 1 + rng.IntN(held)
				held -= n
				told += w.release(n)
			}
			if err := w.check(); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if told != w.avail || w.holds() != held || held != w.held || held > (1+maxLent)*w.size {
				t.Fatalf("seed %d: %+v; the peer knows of %d and %d are held", seed, &w, told, held)
			}
		}
		if w.release(held); w.whole() != nil || w.lent != 0 {
			t.Fatalf("seed %d: %v", seed, w.whole())
		}
	}
}

// The window opens for others as soon as any stream is read, whichever bytes were
// lent: a loan is repaid last.
func TestReadingAnyStreamOpensTheWindow(t *testing.T) {
	var w connWindow
	w.init(100)
	told := 100
	for told > 0 {
		w.receive(told)
		told = w.lend()
	}
	if w.held != (1+maxLent)*100 {
		t.Fatalf("%d bytes are held of a window of 100, want four of it", w.held)
	}
	if due := w.release(50); due != 50 {
		t.Errorf("%d bytes of window for 50 that were read", due)
	}
}

// brokenConn is an application that takes so many bytes and then fails.
type brokenConn struct {
	net.Conn
	left int
}

func (c *brokenConn) Write(p []byte) (int, error) {
	n := min(len(p), c.left)
	c.left -= n
	if n < len(p) {
		return n, syscall.EPIPE
	}
	return n, nil
}

// shutConn is a TCP connection with small buffers whose other end app closes.
func shutConn(t testing.TB) (relayed net.Conn, app *net.TCPConn) {
	a, b := tcpPair(t)
	a.(*net.TCPConn).SetWriteBuffer(8192)
	b.(*net.TCPConn).SetReadBuffer(8192)
	return a, b.(*net.TCPConn)
}

// Transfers that an application breaks off, in either direction, cost the session
// none of its window.
func TestAbortedTransfersLeaveTheWindowWhole(t *testing.T) {
	const each = 256 << 10
	for name, conn := range map[string]func(rng *rand.Rand) (net.Conn, func()){
		"write fails": func(rng *rand.Rand) (net.Conn, func()) {
			a, b := simnet.Pair(simnet.Options{})
			return &brokenConn{Conn: a, left: rng.IntN(each)}, func() { b.Close() }
		},
		"socket is reset": func(rng *rand.Rand) (net.Conn, func()) {
			a, app := shutConn(t)
			go func() {
				io.CopyN(io.Discard, app, int64(rng.IntN(4096)))
				app.SetLinger(0)
				app.Close()
			}()
			return a, func() { app.Close() }
		},
	} {
		rng := rand.New(rand.NewPCG(1, 1))
		r := newRig(t, rigConfig{handler: func(ctx context.Context, in *Incoming) {
			st, err := in.Accept(nil)
			if err != nil {
				return
			}
			if in.Authority == "down:1" {
				st.Write(make([]byte, each))
				st.Close()
				return
			}
			c, done := conn(rand.New(rand.NewPCG(uint64(st.ID()), 2)))
			defer done()
			Relay(ctx, st, c)
		}})
		for i := range 200 {
			if i%2 == 0 {
				st, _, err := r.client.Open(t.Context(), &Request{Authority: "down:1"})
				check(t, err)
				c, done := conn(rng)
				Relay(t.Context(), st, c)
				done()
			} else {
				st, _, err := r.client.Open(t.Context(), &Request{Authority: "up:1"})
				check(t, err)
				st.Write(make([]byte, each))
				st.Close()
			}
		}
		t.Log(name)
		r.asBefore(t)
		r.close()
	}
}

// What a client says early to a stream that is refused, or reset before anybody
// has accepted it, is given back too.
func TestEarlyBytesOfStreamsThatAreNotAcceptedAreGivenBack(t *testing.T) {
	got := make(chan struct{}, 1)
	r := newRig(t, rigConfig{handler: func(ctx context.Context, in *Incoming) {
		eventually(t, "early bytes are in", func() bool { return in.st.Buffered() == 60_000 })
		got <- struct{}{}
		switch in.Authority {
		case "refuse:1":
			in.Refuse(503, nil)
		case "late:1":
			<-ctx.Done()
		case "then:1":
			in.Then(func(ctx context.Context) { <-ctx.Done() })
		}
	}})
	for _, authority := range []string{"refuse:1", "late:1", "then:1", "nothing:1"} {
		st, err := r.client.Start(&Request{Authority: authority})
		check(t, err)
		st.Write(make([]byte, 60_000))
		<-got
		if authority == "late:1" || authority == "then:1" {
			st.Reset(http2.ErrCodeCancel)
			continue
		}
		st.AwaitResponse(t.Context())
	}
	r.asBefore(t)
}

// A peer that pads gets the padding back, wherever the stream ends.
func TestPaddingIsGivenBack(t *testing.T) {
	cfg := DefaultConfig()
	cfg.StreamWindow, cfg.ConnWindow = 80_000, 80_000
	p, s := rawServer(t, cfg)
	for i := range 8 {
		st, id := p.openRaw(s)
		for range 10 {
			p.fr.WriteDataPadded(id, false, make([]byte, 100), make([]byte, 200))
		}
		eventually(t, "data arrived", func() bool { return st.Buffered() == 1000 })
		if i%2 == 0 {
			io.ReadFull(st, make([]byte, 500))
		}
		st.Reset(http2.ErrCodeCancel)
		p.fr.WriteDataPadded(id, true, make([]byte, 100), make([]byte, 200)) // crosses the reset
	}
	p.sync()
	if err := s.CheckIdle(); err != nil {
		t.Error(err)
	}
}

// jam is a server session whose peer reads nothing, with a stream that has filled
// the transport and is in the middle of its last write.
func jam(t *testing.T) (p *rawPeer, s *Session, get func(id uint32) *Stream, resume func()) {
	a, b := simnet.Pair(simnet.Options{Buffer: 16 << 10})
	streams := make(chan *Stream, 8)
	s = NewServer(plainTransport{b}, Config{PingEvery: -1}, func(ctx context.Context, in *Incoming) {
		if st, err := in.Accept(nil); err == nil {
			streams <- st
			<-ctx.Done()
		}
	})
	served := make(chan error, 1)
	go func() { served <- s.Serve(context.Background()) }()
	t.Cleanup(func() { a.Close(); s.Close(nil); <-served })
	p = newRawPeer(t, a)
	a.Write([]byte(http2.ClientPreface))
	p.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 64 << 20}, http2.Setting{ID: http2.SettingMaxFrameSize, Val: 64 << 10})
	get = func(id uint32) *Stream { p.connect(id); return <-streams }
	return p, s, get, func() { go p.read() }
}

// fill has st write, queueing nothing of its own, until it blocks in the transport.
func fill(t *testing.T, s *Session, st *Stream) {
	t.Helper()
	go st.Write(make([]byte, maxPayload))
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.send.busy || len(s.send.data.segs) > 0 {
		t.Fatalf("nobody is in the transport, %d segments are queued", len(s.send.data.segs))
	}
}

// What a stream had queued when it was reset makes room for those that wait for it.
func TestDroppedDataWakesWhoWaitsForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s, get, resume := jam(t)
		p.fr.WriteWindowUpdate(0, 256<<20)
		one, three, five := get(1), get(3), get(5)
		fill(t, s, five)
		_, err := one.Write(make([]byte, 4*maxPayload)) // all of it queued: it has nothing more to say
		check(t, err)
		var wrote error
		done := false
		go func() { _, wrote = three.Write(make([]byte, maxPayload)); done = true }()
		synctest.Wait()
		if done {
			t.Fatal("stream 3 did not have to wait for room")
		}
		p.fr.WriteRSTStream(1, http2.ErrCodeCancel)
		synctest.Wait()
		if err := s.Check(); err != nil {
			t.Error(err)
		}
		if !done || wrote != nil {
			t.Errorf("stream 3 waits for room that there is (done: %v, %v)", done, wrote)
		}
		resume()
	})
}

// The connection's window that dropped data had taken is there again: the peer
// never hears of those bytes.
func TestDroppedDataGivesItsSendWindowBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s, get, resume := jam(t)
		p.fr.WriteWindowUpdate(0, 256<<20)
		one, five := get(1), get(5)
		fill(t, s, five)
		window := func() int {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.send.window
		}
		before := window()
		_, err := one.Write(make([]byte, 2*maxPayload))
		check(t, err)
		if n := before - window(); n != 2*maxPayload {
			t.Fatalf("%d bytes of window for %d queued", n, 2*maxPayload)
		}
		one.Reset(http2.ErrCodeCancel)
		if n := before - window(); n != 0 {
			t.Errorf("%d bytes of the connection's window are lost with what was dropped", n)
		}
		resume()
	})
}

// A stream that was woken for the connection's window and cannot use it passes it on.
func TestWindowThatAStreamCannotUseIsPassedOn(t *testing.T) {
	p, s := rawServer(t, DefaultConfig(), http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
	one, id1 := p.openRaw(s)
	two, id2 := p.openRaw(s)
	one.Write(make([]byte, wire.DefaultWindow-1000)) // all but 1000 bytes of the connection's window
	p.collect(id1, wire.DefaultWindow-1000)
	two.Write(make([]byte, 1000))
	p.collect(id2, 1000)
	for i, st := range []*Stream{one, two} {
		go st.Write(make([]byte, 1000))
		eventually(t, "waits for window", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.send.credit) == i+1
		})
	}
	p.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 2000}) // stream one has less than nothing now
	p.fr.WriteWindowUpdate(0, 10)
	p.collect(id2, 10)
	if err := s.Check(); err != nil {
		t.Error(err)
	}
}

// What is claimed and not sent belongs to the window: an update beyond the limit is an error while all of it is
// claimed, too.
func TestAClaimHidesNoOverflow(t *testing.T) {
	p, s := rawServer(t, DefaultConfig(), http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
	st, id := p.openRaw(s)
	if n, err := st.tryClaim(wire.DefaultWindow); n != wire.DefaultWindow || err != nil {
		t.Fatalf("claimed %d bytes (%v), want the connection's window", n, err)
	}
	defer st.unclaim()
	for _, of := range []uint32{0, id} {
		f := &http2.WindowUpdateFrame{FrameHeader: http2.FrameHeader{Type: http2.FrameWindowUpdate, StreamID: of}, Increment: wire.MaxWindow}
		if err := s.onWindowUpdate(f); err == nil {
			t.Errorf("a window beyond 2^31-1 is taken, of stream %d", of)
		}
	}
}
