package hbone

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/wire"
	"github.com/isthmus-mesh/isthmus/internal/simnet"
	"golang.org/x/net/http2"
)

func simPair(o simnet.Options) func(testing.TB) (net.Conn, net.Conn) {
	return func(testing.TB) (net.Conn, net.Conn) { return simnet.Pair(o) }
}

func TestSettingsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := simnet.Pair(simnet.Options{})
		start := time.Now()
		_, err := NewClient(t.Context(), plainTransport{b}, DefaultConfig())
		if took := time.Since(start); !errors.Is(err, ErrSettingsTimeout) || took != 5*time.Second {
			t.Errorf("client gave up with %v after %v, want ErrSettingsTimeout after 5s", err, took)
		}
		_, b = simnet.Pair(simnet.Options{})
		start = time.Now()
		err = NewServer(plainTransport{b}, DefaultConfig(), echoHandler).Serve(t.Context())
		if took := time.Since(start); !errors.Is(err, ErrSettingsTimeout) || took != 5*time.Second {
			t.Errorf("server gave up with %v after %v, want ErrSettingsTimeout after 5s", err, took)
		}
	})
}

func TestHandshakeIsBoundedByItsContext(t *testing.T) {
	clientTLS, _ := testTLS()
	synctest.Test(t, func(t *testing.T) {
		_, b := simnet.Pair(simnet.Options{})
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		start := time.Now()
		_, err := ClientTLS(ctx, b, clientTLS)
		if took := time.Since(start); err == nil || took != 3*time.Second {
			t.Errorf("handshake ended with %v after %v, want an error after 3s", err, took)
		}
	})
}

func TestConnectTimeoutCancelsTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s := rawServer(t, DefaultConfig())
		start := time.Now()
		_, _, err := s.Open(t.Context(), &Request{Authority: "silent:1"})
		if took := time.Since(start); !errors.Is(err, ErrConnectTimeout) || took != 10*time.Second {
			t.Errorf("gave up with %v after %v, want ErrConnectTimeout after 10s", err, took)
		}
		if f := p.kind(http2.FrameRSTStream, 1); f.code != http2.ErrCodeCancel {
			t.Errorf("stream ended with %v, want CANCEL", f.code)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("application left")
		time.AfterFunc(time.Second, func() { cancel(why) })
		if _, _, err := s.Open(ctx, &Request{Authority: "silent:1"}); !errors.Is(err, why) {
			t.Errorf("gave up with %v, want %v", err, why)
		}
		if n := s.Streams(); n != 0 {
			t.Errorf("%d streams left", n)
		}
	})
}

func TestPingsFromBothEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, raw := range []func() *rawPeer{
			func() *rawPeer { p, _ := rawServer(t, DefaultConfig()); return p },
			func() *rawPeer { p, _ := rawClient(t, DefaultConfig(), nil); return p },
		} {
			p := raw()
			for range 3 {
				start := time.Now()
				p.kind(http2.FramePing, 0)
				if took := time.Since(start); took != 10*time.Second {
					t.Errorf("ping after %v, want 10s", took)
				}
			}
		}
	})
}

func TestUnansweredPingEndsTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s := rawServer(t, DefaultConfig())
		st, _ := p.openRaw(s)
		p.mu.Lock()
		p.pongs = false
		p.mu.Unlock()
		start := time.Now()
		_, err := st.Read(make([]byte, 1))
		if took := time.Since(start); !errors.Is(err, ErrPingTimeout) || took != 21*time.Second {
			t.Errorf("stream ended with %v after %v, want ErrPingTimeout after 1s (in use) + 20s", err, took)
		}
		st.Close()
	})
}

// A stream that was opened before the peer's SETTINGS arrived counts as use of the session.
func TestFirstPingAfterEarlyStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := simnet.Pair(simnet.Options{Buffer: 8 << 20})
		p := newRawPeer(t, a)
		s, err := StartClient(plainTransport{b}, DefaultConfig())
		check(t, err)
		t.Cleanup(func() { a.Close(); s.Close(nil); <-s.life.transportClosed })
		ch := openAsync(s, nil)
		_, err = io.ReadFull(a, make([]byte, len(http2.ClientPreface)))
		check(t, err)
		synctest.Wait() // the stream is opened
		p.fr.WriteSettings()
		go p.read()
		id := p.next("HEADERS", func(f rawFrame) bool { return f.Type == http2.FrameHeaders }).StreamID
		p.headers(id, false, ":status", "200")
		o := <-ch
		check(t, o.err)
		start := time.Now()
		p.kind(http2.FramePing, 0)
		if took := time.Since(start); took != time.Second {
			t.Errorf("ping after %v, want 1s", took)
		}
		o.st.Close()
	})
}

func TestStalledPeerIsNoticedWhileWriting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a, b *simnet.Conn
		r := newRig(t, rigConfig{pair: func(testing.TB) (net.Conn, net.Conn) {
			a, b = simnet.Pair(simnet.Options{})
			return a, b
		}})
		st := open(t, r.client)
		a.Stall()
		b.Stall()
		start := time.Now()
		_, err := st.Write(make([]byte, 8<<20))
		if took := time.Since(start); !errors.Is(err, ErrPingTimeout) || took > 31*time.Second {
			t.Errorf("write ended with %v after %v, want ErrPingTimeout within 30s", err, took)
		}
		st.Close()
	})
}

// A peer that does not read what we write gets its answer to PING at once when it
// reads again, before data, and until then our reader goes on.
func TestPingAnswerGoesBeforeQueuedData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s := rawClient(t, DefaultConfig(), nil, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
		p.fr.WriteWindowUpdate(0, 8<<20)
		p.connect(1)
		p.kind(http2.FrameHeaders, 1)
		s.mu.Lock()
		st := s.streams[1]
		s.send.busy = true // a write that hangs
		s.mu.Unlock()
		for range 3 {
			st.Write(make([]byte, 60_000))
		}
		p.fr.WritePing(false, [8]byte{1})
		p.fr.WriteSettings()
		synctest.Wait()
		s.mu.Lock()
		s.send.busy = false
		s.kickLocked()
		s.mu.Unlock()
		f := p.next("first frame", func(rawFrame) bool { return true })
		if f.Type != http2.FramePing || !f.Flags.Has(http2.FlagPingAck) {
			t.Errorf("first frame out is %v, want the answer to PING", f)
		}
		if f := p.next("second frame", func(rawFrame) bool { return true }); f.Type != http2.FrameSettings {
			t.Errorf("second frame out is %v, want the SETTINGS ack", f)
		}
		p.collect(1, 180_000)
	})
}

func TestDrainIsATwoStepGoAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s := rawClient(t, DefaultConfig(), nil)
		p.connect(1)
		p.kind(http2.FrameHeaders, 1)
		p.mu.Lock()
		p.pongs = false
		p.mu.Unlock()
		drained := make(chan error, 1)
		go func() { drained <- s.Drain(context.Background()) }()
		if f := p.goAway(http2.ErrCodeNo); f.n != wire.MaxStreamID {
			t.Errorf("first GOAWAY names stream %d, want 2^31-1", f.n)
		}
		ping := p.kind(http2.FramePing, 0)
		p.connect(3) // was under way: still served
		if f := p.kind(http2.FrameHeaders, 3); f.get(":status") != "200" {
			t.Errorf("CONNECT before the answer to PING: %v", f)
		}
		p.fr.WritePing(true, [8]byte(ping.data))
		if f := p.goAway(http2.ErrCodeNo); f.n != 3 {
			t.Errorf("final GOAWAY names stream %d, want 3", f.n)
		}
		p.connect(5) // too late
		if f := p.kind(http2.FrameRSTStream, 5); f.code != http2.ErrCodeRefusedStream {
			t.Errorf("CONNECT after the final GOAWAY: %v", f)
		}
		for id := uint32(1); id <= 3; id += 2 {
			p.fr.WriteData(id, true, []byte("late but fine"))
			for end := false; !end; {
				end = p.kind(http2.FrameData, id).Flags.Has(http2.FlagDataEndStream)
			}
		}
		if err := <-drained; err != nil {
			t.Errorf("drain ended with %v", err)
		}
		<-s.life.transportClosed
	})
}

func TestDrainGivesUpWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, rigConfig{pair: simPair(simnet.Options{Delay: time.Millisecond})})
		st := open(t, r.client)
		ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
		defer cancel()
		start := time.Now()
		if err := r.server.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 7*time.Second {
			t.Errorf("drain ended with %v after %v", err, time.Since(start))
		}
		if r.client.CanOpen() || !r.client.Leaving() {
			t.Error("client may still open after GOAWAY, or is not leaving")
		}
		if r.server.Leaving() {
			t.Error("server is leaving without GOAWAY from the client")
		}
		if _, _, err := r.client.Open(t.Context(), &Request{Authority: "a:1"}); !errors.Is(err, ErrRetryable) {
			t.Errorf("open after GOAWAY: %v, want retryable", err)
		}
		st.Write([]byte("still here"))
		if _, err := io.ReadFull(st, make([]byte, 10)); err != nil {
			t.Errorf("old stream after GOAWAY: %v", err)
		}
		st.CloseWrite()
		io.ReadAll(st)
		st.Close()
		<-r.client.Done() // its last stream has ended
	})
}

func TestFinalGoAwayMakesLaterStreamsRetryable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s := rawServer(t, DefaultConfig())
		st, _ := p.openRaw(s)
		late := openAsync(s, nil)
		p.kind(http2.FrameHeaders, 3)
		p.fr.WriteGoAway(wire.MaxStreamID, http2.ErrCodeNo, nil)
		p.sync()
		if n := s.Streams(); n != 2 || s.CanOpen() {
			t.Errorf("after the first GOAWAY: %d streams, can open: %v", n, s.CanOpen())
		}
		p.fr.WriteGoAway(1, http2.ErrCodeNo, nil)
		if o := <-late; !errors.Is(o.err, ErrRetryable) {
			t.Errorf("stream above the last id: %v, want retryable", o.err)
		}
		p.fr.WriteData(1, true, []byte("x"))
		st.CloseWrite()
		if got, err := io.ReadAll(st); string(got) != "x" || err != nil {
			t.Errorf("stream below the last id: %q, %v", got, err)
		}
		st.Close()
		<-s.Done()
	})
}

func TestRefusedStreamAndDeadSessionAreRetryable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s := rawServer(t, DefaultConfig())
		ch := openAsync(s, nil)
		p.kind(http2.FrameHeaders, 1)
		p.fr.WriteRSTStream(1, http2.ErrCodeRefusedStream)
		if o := <-ch; !errors.Is(o.err, ErrRetryable) {
			t.Errorf("REFUSED_STREAM: %v, want retryable", o.err)
		}
		ch = openAsync(s, nil)
		p.kind(http2.FrameHeaders, 3)
		p.fr.WriteRSTStream(3, http2.ErrCodeInternal)
		if o := <-ch; o.err == nil || errors.Is(o.err, ErrRetryable) {
			t.Errorf("INTERNAL_ERROR: %v, want an error that is not retryable", o.err)
		}
		ch = openAsync(s, nil)
		p.kind(http2.FrameHeaders, 5)
		p.c.(*simnet.Conn).Cut()
		if o := <-ch; !errors.Is(o.err, ErrRetryable) {
			t.Errorf("cut connection: %v, want retryable", o.err)
		}
	})
}

func TestStreamDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s := rawServer(t, DefaultConfig())
		st, id := p.openRaw(s)
		start := time.Now()
		st.SetDeadline(start.Add(2 * time.Second))
		if _, err := st.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != 2*time.Second {
			t.Errorf("read: %v after %v", err, time.Since(start))
		}
		st.SetDeadline(time.Now().Add(3 * time.Second))
		n, err := st.Write(make([]byte, 100_000))
		if !errors.Is(err, os.ErrDeadlineExceeded) || n != 65535 || time.Since(start) != 5*time.Second {
			t.Errorf("write: %d, %v after %v", n, err, time.Since(start))
		}
		st.SetDeadline(time.Time{})
		p.fr.WriteWindowUpdate(0, 1000)
		p.fr.WriteWindowUpdate(id, 1000)
		if _, err := st.Write(make([]byte, 1000)); err != nil {
			t.Errorf("write after the deadline is lifted: %v", err)
		}
		st.Close()
		if _, err := st.Read(nil); !errors.Is(err, net.ErrClosed) {
			t.Errorf("read after close: %v", err)
		}
	})
}

func TestOverLongPathsTakeTheRoundTripsTheyMust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rtt = 80 * time.Millisecond
		r := newRig(t, rigConfig{pair: simPair(simnet.Options{Delay: rtt / 2})})
		time.Sleep(time.Second)
		start := time.Now()
		st := open(t, r.client)
		if took := time.Since(start); took != rtt {
			t.Errorf("CONNECT on a warm session took %v, want one round trip of %v", took, rtt)
		}
		st.Write([]byte("x"))
		io.ReadFull(st, make([]byte, 1))
		if took := time.Since(start); took != 2*rtt {
			t.Errorf("first byte after %v, want %v", took, 2*rtt)
		}
		st.Close()
	})
}
