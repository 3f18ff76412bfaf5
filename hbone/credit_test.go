package hbone

import (
	"context"
	"io"
	"sync"
	"testing"

	"github.com/isthmus-mesh/isthmus/internal/simnet"
	"golang.org/x/net/http2"
)

// bareServer is a server session whose peer has sent nothing.
func bareServer(t testing.TB) (*simnet.Conn, *Session) {
	t.Helper()
	a, b := simnet.Pair(simnet.Options{Buffer: 1 << 20})
	s := NewServer(plainTransport{b}, DefaultConfig(), echoHandler)
	done := make(chan struct{})
	go func() { s.Serve(context.Background()); close(done) }()
	t.Cleanup(func() { a.Close(); s.Close(nil); <-done })
	return a, s
}

// collect reads n bytes of DATA on stream id and returns the largest frame.
func (p *rawPeer) collect(id uint32, n int) (largest int) {
	p.t.Helper()
	got := 0
	for got < n {
		f := p.kind(http2.FrameData, id)
		got += len(f.data)
		largest = max(largest, int(f.Length))
	}
	if got != n {
		p.t.Errorf("%d bytes on stream %d, want %d", got, id, n)
	}
	return largest
}

func TestPeerWithSmallWindowsAndFrames(t *testing.T) {
	p, s := rawServer(t, DefaultConfig()) // 64 KiB windows, 16 KiB frames, no MAX_CONCURRENT_STREAMS
	st, id := p.openRaw(s)
	go st.Write(make([]byte, 200_000))
	if largest := p.collect(id, 65535); largest > 16384 {
		t.Errorf("frame of %d bytes, peer accepts 16384", largest)
	}
	p.sync(id) // not a byte more
	p.fr.WriteWindowUpdate(id, 100_000)
	p.sync(id) // the connection window is used up
	p.fr.WriteWindowUpdate(0, 50_000)
	p.collect(id, 50_000)
	p.fr.WriteWindowUpdate(0, 1<<20)
	p.collect(id, 50_000)
	p.fr.WriteWindowUpdate(id, 1<<20)
	p.collect(id, 200_000-165_535)
}

func TestSettingsMoveTheWindowsOfOpenStreams(t *testing.T) {
	p, s := rawServer(t, DefaultConfig(), http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1000})
	p.fr.WriteWindowUpdate(0, 1<<20)
	st, id := p.openRaw(s)
	go st.Write(make([]byte, 10_000))
	p.collect(id, 1000)
	p.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 400}) // window is now -600
	p.fr.WriteWindowUpdate(id, 600)
	p.sync(id)
	p.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 500})
	p.collect(id, 100)
	p.fr.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 20_000}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
	p.collect(id, 8900)
}

func TestLargeFramesWhenThePeerAllowsThem(t *testing.T) {
	p, s := rawServer(t, DefaultConfig(),
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: 4 << 20}, http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 20})
	p.fr.WriteWindowUpdate(0, 16<<20)
	st, id := p.openRaw(s)
	go st.Write(make([]byte, 1<<20))
	if largest := p.collect(id, 1<<20); largest != maxPayload {
		t.Errorf("largest frame %d, want %d: four TLS records", largest, maxPayload)
	}
}

func TestCreditComesAtAQuarterOfTheWindow(t *testing.T) {
	cfg := DefaultConfig()
	cfg.StreamWindow, cfg.ConnWindow = 40_000, 80_000
	p, s := rawServer(t, cfg)
	st, id := p.openRaw(s)
	p.fr.WriteData(id, false, make([]byte, 30_000))
	p.sync(id) // nothing is consumed yet
	io.ReadFull(st, make([]byte, 9_999))
	p.sync(id)
	io.ReadFull(st, make([]byte, 1))
	if f := p.kind(http2.FrameWindowUpdate, id); f.n != 10_000 {
		t.Errorf("stream credit %d, want 10000", f.n)
	}
	io.ReadFull(st, make([]byte, 10_000))
	var conn, stream uint32
	p.next("both credits", func(f rawFrame) bool {
		if f.Type == http2.FrameWindowUpdate {
			if f.StreamID == 0 {
				conn += f.n
			} else {
				stream += f.n
			}
		}
		return conn > 0 && stream > 0
	})
	if conn != 20_000 || stream != 10_000 {
		t.Errorf("credit %d on the connection and %d on the stream, want 20000 and 10000", conn, stream)
	}
	p.fr.WriteData(id, true, make([]byte, 10_000))
	p.sync()
	p.sync() // the end is delivered after the batch that answered the first one
	got, err := io.ReadAll(st)
	if len(got) != 20_000 || err != nil {
		t.Errorf("read %d, %v", len(got), err)
	}
	p.sync(id) // no credit behind END_STREAM
}

func TestClosedStreamsGiveConnectionCreditBack(t *testing.T) {
	cfg := DefaultConfig()
	cfg.StreamWindow, cfg.ConnWindow = 80_000, 80_000
	p, s := rawServer(t, cfg)
	for range 5 {
		st, id := p.openRaw(s)
		p.fr.WriteData(id, false, make([]byte, 40_000))
		eventually(t, "data arrived", func() bool { return st.Buffered() == 40_000 })
		st.Close()
		if f := p.kind(http2.FrameWindowUpdate, 0); f.n != 40_000 {
			t.Fatalf("credit %d, want 40000", f.n)
		}
	}
}

// A stream that nobody reads must not slow its siblings or the pings.
func TestManyStalledReadersDoNotStarveSiblings(t *testing.T) {
	release := make(chan struct{})
	r := newRig(t, rigConfig{handler: func(ctx context.Context, in *Incoming) {
		if in.Authority == "slow:1" {
			st, err := in.Accept(nil)
			if err != nil {
				return
			}
			<-release
			io.Copy(io.Discard, st)
			st.Close()
			return
		}
		echoHandler(ctx, in)
	}})
	var writers sync.WaitGroup
	for range 10 { // the connection window alone holds four
		slow, _, err := r.client.Open(t.Context(), &Request{Authority: "slow:1"})
		check(t, err)
		writers.Go(func() {
			if _, err := slow.Write(make([]byte, 6<<20)); err != nil {
				t.Errorf("stalled stream: %v", err)
			}
			slow.CloseWrite()
			io.Copy(io.Discard, slow)
			slow.Close()
		})
	}
	st := open(t, r.client)
	go func() {
		st.Write(make([]byte, 40<<20))
		st.CloseWrite()
	}()
	n, err := io.Copy(io.Discard, st)
	if n != 40<<20 || err != nil {
		t.Fatalf("sibling echoed %d, %v", n, err)
	}
	st.Close()
	close(release) // what was stalled goes on, and every loan is repaid
	writers.Wait()
	if err := r.server.window.whole(); err != nil {
		t.Error(err)
	}
}

func TestSlowReaderDoesNotStarveSiblings(t *testing.T) {
	release := make(chan struct{})
	r := newRig(t, rigConfig{handler: func(ctx context.Context, in *Incoming) {
		if in.Authority == "slow:1" {
			in.Accept(nil)
			<-release
			return
		}
		echoHandler(ctx, in)
	}})
	defer close(release)
	slow, _, err := r.client.Open(t.Context(), &Request{Authority: "slow:1"})
	check(t, err)
	go slow.Write(make([]byte, 64<<20)) // until its window is full
	for range 3 {
		st := open(t, r.client)
		go func() {
			st.Write(make([]byte, 20<<20))
			st.CloseWrite()
		}()
		n, err := io.Copy(io.Discard, st)
		if n != 20<<20 || err != nil {
			t.Fatalf("sibling echoed %d, %v", n, err)
		}
		st.Close()
	}
	slow.Reset(http2.ErrCodeCancel)
}
