package hbone

import (
	"bytes"
	"context"
	"errors"
	"net"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	"golang.org/x/net/http2"

	"github.com/isthmus-mesh/isthmus/internal/simnet"
)

// relayed starts a relay between st and one end of a connection, and returns the other.
func relayed(t testing.TB, st *Stream, pair func(testing.TB) (net.Conn, net.Conn)) (app net.Conn, result chan RelayResult) {
	app, ours := pair(t)
	result = make(chan RelayResult, 1)
	go func() { result <- Relay(context.Background(), st, ours) }()
	t.Cleanup(func() { app.Close() })
	return app, result
}

func memoryPair(testing.TB) (net.Conn, net.Conn) {
	a, b := simnet.Pair(simnet.Options{})
	return a, b
}

// writing reports whether a relay is in the middle of a write to st, waiting or not.
func (st *Stream) isWriting() bool {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	return st.send.writing
}

// Whatever it is that keeps streams from sending, their relays leave what applications
// send in the applications' sockets.
func TestStalledStreamsHoldNoBuffers(t *testing.T) {
	const streams = 200
	windows := func(n uint32) func(t *testing.T) func() *Stream {
		return func(t *testing.T) func() *Stream {
			p, s := rawServer(t, DefaultConfig(), http2.Setting{ID: http2.SettingInitialWindowSize, Val: n}, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: streams})
			return func() *Stream { st, _ := p.openRaw(s); return st }
		}
	}
	for name, opener := range map[string]func(t *testing.T) func() *Stream{
		"by their windows":           windows(0),
		"by the connection's window": windows(1 << 20),
		"by the transport": func(t *testing.T) func() *Stream {
			p, _, get, _ := jam(t)
			p.fr.WriteWindowUpdate(0, 256<<20)
			id := uint32(0)
			return func() *Stream { id += 2; return get(id - 1) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			next := opener(t)
			var before, after runtime.MemStats
			heap := func(m *runtime.MemStats) uint64 {
				runtime.GC()
				runtime.GC()
				runtime.ReadMemStats(m)
				return m.HeapAlloc
			}
			heap(&before)
			data := make([]byte, 512<<10)
			var sending sync.WaitGroup
			var all []*Stream
			var apps []net.Conn
			for range streams {
				st := next()
				app, _ := relayed(t, st, tcpPair)
				all, apps = append(all, st), append(apps, app)
				sending.Go(func() { app.Write(data) })
			}
			for _, st := range all {
				eventually(t, "a stream is stalled", st.isWriting)
			}
			held := int64(heap(&after)) - int64(before.HeapAlloc)
			if most := int64(streams * maxPayload / 8); held > most {
				t.Errorf("%d stalled streams hold %d bytes, want at most %d", streams, held, most)
			}
			for _, app := range apps {
				app.(*net.TCPConn).SetLinger(0)
				app.Close()
			}
			sending.Wait()
			runtime.KeepAlive(next)
		})
	}
}

// The end of an application needs no window.
func TestAnEndIsToldWithoutAWindow(t *testing.T) {
	for name, pair := range map[string]func(testing.TB) (net.Conn, net.Conn){"socket": tcpPair, "memory": memoryPair} {
		t.Run(name, func(t *testing.T) {
			p, s := rawServer(t, DefaultConfig(), http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			st, id := p.openRaw(s)
			app, _ := relayed(t, st, pair)
			app.(interface{ CloseWrite() error }).CloseWrite()
			if f := p.kind(http2.FrameData, id); !f.Flags.Has(http2.FlagDataEndStream) || f.Length != 0 {
				t.Errorf("%v behind the application's FIN, want END_STREAM", f)
			}
		})
	}
}

// A reset is told before what the application sent and nobody may send.
func TestAResetIsToldWithoutAWindow(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { resetWithoutWindow(t, memoryPair) })
	})
	t.Run("socket", func(t *testing.T) { resetWithoutWindow(t, tcpPair) })
}

func resetWithoutWindow(t *testing.T, pair func(testing.TB) (net.Conn, net.Conn)) {
	p, s := rawServer(t, DefaultConfig(), http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	st, id := p.openRaw(s)
	app, result := relayed(t, st, pair)
	app.Write([]byte("never sent"))
	eventually(t, "the stream is stalled", st.isWriting)
	app.(interface{ SetLinger(int) error }).SetLinger(0)
	app.Close()
	f := p.next("the end of the stream", func(f rawFrame) bool { return f.StreamID == id && f.Type != http2.FrameHeaders })
	if f.Type != http2.FrameRSTStream || f.code != http2.ErrCodeConnect {
		t.Errorf("%v, want RST_STREAM(CONNECT_ERROR)", f)
	}
	if res := <-result; !errors.Is(res.Err, syscall.ECONNRESET) || res.ToStream != 0 {
		t.Errorf("the relay ended with %v after %d bytes, want ECONNRESET", res.Err, res.ToStream)
	}
	eventually(t, "all is as before the stream", func() bool { return s.CheckIdle() == nil })
}

// A stream that is read by a relay and reset has no more to say either.
func TestAResetOfAStreamIsToldWithoutAWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s := rawServer(t, DefaultConfig(), http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		from, far := rawServer(t, DefaultConfig())
		st, id := p.openRaw(s)
		app, aid := from.openRaw(far)
		result := make(chan RelayResult, 1)
		go func() { result <- Relay(context.Background(), st, app) }()
		from.fr.WriteData(aid, false, []byte("never sent"))
		synctest.Wait()
		if !st.isWriting() || app.Buffered() != 10 {
			t.Errorf("%d bytes are left in the stream that is read, want 10", app.Buffered())
		}
		from.fr.WriteRSTStream(aid, http2.ErrCodeConnect)
		p.kind(http2.FrameRSTStream, id)
		var reset *ResetError
		if res := <-result; !errors.As(res.Err, &reset) {
			t.Errorf("the relay ended with %v, want a reset", res.Err)
		}
	})
}

// What a window allows is read and sent, and no more.
func TestARelayReadsWhatTheWindowAllows(t *testing.T) {
	for name, pair := range map[string]func(testing.TB) (net.Conn, net.Conn){"socket": tcpPair, "memory": memoryPair} {
		t.Run(name, func(t *testing.T) {
			p, s := rawServer(t, DefaultConfig(), http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1000})
			st, id := p.openRaw(s)
			app, result := relayed(t, st, pair)
			data := bytes.Repeat([]byte("0123456789"), 300)
			app.Write(data)
			app.(interface{ CloseWrite() error }).CloseWrite()
			p.collect(id, 1000)
			eventually(t, "the stream is stalled", st.isWriting)
			p.sync(id)
			p.fr.WriteWindowUpdate(id, 700)
			p.collect(id, 700)
			p.fr.WriteWindowUpdate(id, 5000)
			p.collect(id, 1300)
			p.headers(id, true, "x", "y")
			if res := <-result; res.Err != nil || res.ToStream != int64(len(data)) {
				t.Errorf("the relay ended with %v after %d bytes", res.Err, res.ToStream)
			}
			eventually(t, "all is as before the stream", func() bool { return s.CheckIdle() == nil })
		})
	}
}

// A small message of an application waits for no turn, as one that is written does.
func TestASmallMessageOfAnApplicationWaitsForNoTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s, get, resume := jam(t)
		p.fr.WriteWindowUpdate(0, 256<<20)
		fill(t, s, get(1))
		for id := uint32(3); id < 15; id += 2 {
			app, _ := relayed(t, get(id), memoryPair)
			app.Write(make([]byte, 128<<10))
		}
		small := get(15)
		app, _ := relayed(t, small, memoryPair)
		synctest.Wait()
		app.Write([]byte("small"))
		synctest.Wait()
		if small.isWriting() {
			t.Error("it waits")
		}
		if err := s.Check(); err != nil {
			t.Error(err)
		}
		resume()
	})
}
