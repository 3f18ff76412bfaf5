package hbone

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/wire"
	"github.com/isthmus-mesh/isthmus/internal/simnet"
	"golang.org/x/net/http2"
)

// holdingConn collects what is written, to have it sent in one piece.
type holdingConn struct {
	net.Conn
	hold bool
	held []byte
}

func (c *holdingConn) Write(p []byte) (int, error) {
	if c.hold {
		c.held = append(c.held, p...)
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// A read that fills its buffer to the last byte must not look for room for a
// record that needs none: one that says it is shorter than its own overhead.
func TestTinyRecordBehindAFullReadEndsTheSession(t *testing.T) {
	clientTLS, serverTLS := testTLS()
	synctest.Test(t, func(t *testing.T) {
		a, b := simnet.Pair(simnet.Options{Buffer: 1 << 20})
		served := make(chan error, 1)
		go func() {
			st, err := ServerTLS(context.Background(), b, serverTLS)
			if err != nil {
				served <- err
				return
			}
			served <- NewServer(st, Config{}, echoHandler).Serve(context.Background())
		}()
		c := &holdingConn{Conn: a}
		tc := tls.Client(c, clientTLS)
		check(t, tc.Handshake())
		go io.Copy(io.Discard, a)
		tc.Write(append([]byte(http2.ClientPreface), wire.AppendSettings(nil)...))
		full := make([]byte, len(readBuf{}))
		wire.PutHeader(full, len(full)-wire.HeaderLen, 0xee, 0, 0)
		for i := range 5 { // the first ones only make the read buffer grow
			synctest.Wait()
			c.hold, c.held = true, nil
			tc.Write(full)
			c.hold = false
			if i == 4 {
				c.held = append(c.held, 0x17, 3, 3, 0, 0)
			}
			a.Write(c.held)
		}
		select {
		case err := <-served:
			if err == nil {
				t.Error("the session ended without an error")
			}
		case <-time.After(time.Minute): // virtual: a reader that spins never lets it pass
			t.Error("the session still runs")
		}
		a.Close()
	})
}

// A SETTINGS frame costs what its entries cost, not what a frame costs.
func TestSettingsWithThousandsOfEntriesAreAbuse(t *testing.T) {
	p, _ := rawClient(t, DefaultConfig(), nil)
	p.connect(1)
	p.kind(http2.FrameHeaders, 1)
	var entries []http2.Setting
	for i := range 10_000 {
		entries = append(entries, http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(wire.DefaultWindow + i%2)})
	}
	for range 4 {
		p.fr.WriteSettings(entries...)
	}
	p.goAway(http2.ErrCodeEnhanceYourCalm)
}

// Frames that a session does not even answer have a bound, too.
func TestFramesThatNobodyAskedForAreAbuse(t *testing.T) {
	for name, write := range map[string]func(*http2.Framer){
		"acknowledgements of SETTINGS": func(fr *http2.Framer) { fr.WriteSettingsAck() },
		"answers to PING":              func(fr *http2.Framer) { fr.WritePing(true, drainPing) },
		"GOAWAY":                       func(fr *http2.Framer) { fr.WriteGoAway(0, http2.ErrCodeNo, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			p, _ := rawClient(t, DefaultConfig(), nil)
			repeat(p, write)
			p.goAway(http2.ErrCodeEnhanceYourCalm)
		})
	}
}

// CONNECTs that are answered at once hold no stream, so that only their number
// within a second says that they are too many. The time is virtual.
func TestNewStreamsPerSecondAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var refused atomic.Int64
		cfg := DefaultConfig()
		cfg.Refused = func(why Refusal) {
			if why != RefusedRate {
				t.Errorf("refused for %q", why)
			}
			refused.Add(1)
		}
		p, s := rawClient(t, cfg, func(context.Context, *Incoming) {})
		id := uint32(1)
		open := func(n int) {
			for range n {
				p.connect(id)
				if id += 2; id%100 == 1 {
					synctest.Wait()
				}
			}
			synctest.Wait()
		}
		open(maxNewStreams)
		if n := refused.Load(); n != 0 {
			t.Fatalf("%d of the first %d are refused", n, maxNewStreams)
		}
		open(10)
		if n := refused.Load(); n != 10 {
			t.Errorf("%d of 10 beyond the bound are refused", n)
		}
		time.Sleep(time.Second)
		open(10)
		if n := refused.Load(); n != 10 || s.Err() != nil {
			t.Errorf("a second later: %d refused in all, session %v", n, s.Err())
		}
		open(2*maxNewStreams - 10)
		if s.Err() != nil {
			t.Fatalf("session ended at the bound: %v", s.Err())
		}
		open(1)
		p.goAway(http2.ErrCodeEnhanceYourCalm)
		if o := OutcomeOf(s.Err()); o != OutcomeAbuse {
			t.Errorf("outcome %q", o)
		}
	})
}

// Of several values for the window in one frame the last one holds; none on the
// way may be too much.
func TestSettingsCountInTheirOrder(t *testing.T) {
	window := func(n uint32) http2.Setting {
		return http2.Setting{ID: http2.SettingInitialWindowSize, Val: n}
	}
	p, _ := rawClient(t, DefaultConfig(), nil, window(0))
	p.connect(1)
	p.kind(http2.FrameHeaders, 1)
	p.fr.WriteData(1, false, []byte("hello"))
	p.fr.WriteSettings(window(9), window(0), window(3))
	got := p.kind(http2.FrameData, 1)
	if string(got.data) != "hel" {
		t.Errorf("echo %q with a window of 3 bytes", got.data)
	}
	p.fr.WriteSettings(window(0), window(3))
	p.sync(1)
	p.fr.WriteWindowUpdate(1, wire.MaxWindow)
	p.kind(http2.FrameData, 1)
	p.fr.WriteSettings(window(1<<20), window(3))
	p.goAway(http2.ErrCodeFlowControl)
}

// A CONNECT that crosses the final GOAWAY is refused, and what follows on its
// stream is thrown away, while the streams that are served go on.
func TestLateConnectAtADrainingSessionIsRefused(t *testing.T) {
	p, s := rawClient(t, DefaultConfig(), nil)
	p.mu.Lock()
	p.pongs = false
	p.mu.Unlock()
	p.connect(1)
	p.kind(http2.FrameHeaders, 1)
	drained := make(chan error, 1)
	go func() { drained <- s.Drain(context.Background()) }()
	p.kind(http2.FrameGoAway, 0)
	ping := p.kind(http2.FramePing, 0)
	p.fr.WritePing(true, [8]byte(ping.data))
	if f := p.goAway(http2.ErrCodeNo); f.n != 1 {
		t.Errorf("final GOAWAY names stream %d, want 1", f.n)
	}
	p.connect(3)
	p.fr.WriteData(3, false, []byte("hello"))
	p.fr.WriteWindowUpdate(3, 10)
	p.fr.WriteData(3, true, nil)
	p.fr.WriteRSTStream(3, http2.ErrCodeCancel)
	if f := p.kind(http2.FrameRSTStream, 3); f.code != http2.ErrCodeRefusedStream {
		t.Errorf("late stream reset with %v, want REFUSED_STREAM", f.code)
	}
	p.fr.WriteData(1, false, []byte("still there?"))
	if f := p.kind(http2.FrameData, 1); string(f.data) != "still there?" {
		t.Errorf("echo %q", f.data)
	}
	p.fr.WriteData(1, true, nil)
	if f := p.goAway(http2.ErrCodeNo); f.n != 1 {
		t.Errorf("last GOAWAY names stream %d, want 1: it must not increase", f.n)
	}
	check(t, <-drained)
}
