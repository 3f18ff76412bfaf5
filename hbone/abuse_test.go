package hbone

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// TestConnectionFaults: each breaks a rule of the connection; the session must
// say GOAWAY with the right code, and end.
func TestConnectionFaults(t *testing.T) {
	big := make([]byte, 70_000)
	for _, c := range []struct {
		name string
		code http2.ErrCode
		do   func(p *rawPeer)
	}{
		{"DATA on stream 0", http2.ErrCodeProtocol, func(p *rawPeer) { p.fr.WriteRawFrame(http2.FrameData, 0, 0, []byte("x")) }},
		{"DATA on idle stream", http2.ErrCodeProtocol, func(p *rawPeer) { p.fr.WriteData(7, false, []byte("x")) }},
		{"RST_STREAM on idle stream", http2.ErrCodeProtocol, func(p *rawPeer) { p.fr.WriteRSTStream(7, http2.ErrCodeCancel) }},
		{"WINDOW_UPDATE on idle stream", http2.ErrCodeProtocol, func(p *rawPeer) { p.fr.WriteWindowUpdate(7, 1) }},
		{"even stream", http2.ErrCodeProtocol, func(p *rawPeer) { p.connect(2) }},
		{"HEADERS on stream 0", http2.ErrCodeProtocol, func(p *rawPeer) { p.connect(0) }},
		{"frame too large", http2.ErrCodeFrameSize, func(p *rawPeer) { p.connect(1); p.fr.WriteData(1, false, big) }},
		{"PUSH_PROMISE", http2.ErrCodeProtocol, func(p *rawPeer) {
			p.connect(1)
			p.fr.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, EndHeaders: true})
		}},
		{"short PING", http2.ErrCodeFrameSize, func(p *rawPeer) { p.fr.WriteRawFrame(http2.FramePing, 0, 0, []byte("x")) }},
		{"short SETTINGS", http2.ErrCodeFrameSize, func(p *rawPeer) { p.fr.WriteRawFrame(http2.FrameSettings, 0, 0, []byte("x")) }},
		{"SETTINGS with a window too large", http2.ErrCodeFlowControl, func(p *rawPeer) {
			p.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 31})
		}},
		{"SETTINGS with a frame size too small", http2.ErrCodeProtocol, func(p *rawPeer) {
			p.fr.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 100})
		}},
		{"connection window overflow", http2.ErrCodeFlowControl, func(p *rawPeer) { p.fr.WriteWindowUpdate(0, 1<<31-1) }},
		{"connection WINDOW_UPDATE of 0", http2.ErrCodeProtocol, func(p *rawPeer) { p.fr.WriteWindowUpdate(0, 0) }},
		{"window overflow by SETTINGS", http2.ErrCodeFlowControl, func(p *rawPeer) {
			p.connect(1)
			p.fr.WriteWindowUpdate(1, 1<<31-1-65535)
			p.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
		}},
		{"padding longer than the frame", http2.ErrCodeProtocol, func(p *rawPeer) {
			p.connect(1)
			p.fr.WriteRawFrame(http2.FrameData, http2.FlagDataPadded, 1, []byte{9, 1, 2})
		}},
		{"padded without pad length", http2.ErrCodeFrameSize, func(p *rawPeer) {
			p.connect(1)
			p.fr.WriteRawFrame(http2.FrameData, http2.FlagDataPadded, 1, nil)
		}},
		{"DATA inside a header block", http2.ErrCodeProtocol, func(p *rawPeer) {
			p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x82}})
			p.fr.WriteData(1, false, []byte("x"))
		}},
		{"CONTINUATION of nothing", http2.ErrCodeProtocol, func(p *rawPeer) { p.fr.WriteContinuation(1, true, []byte{0x82}) }},
		{"header block that cannot be decoded", http2.ErrCodeCompression, func(p *rawPeer) {
			p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0xff, 0xff, 0xff, 0xff, 0xff}, EndHeaders: true})
		}},
		{"endless CONTINUATION", http2.ErrCodeEnhanceYourCalm, func(p *rawPeer) {
			p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x82}})
			for range 1000 {
				p.fr.WriteContinuation(1, false, nil)
			}
		}},
		{"endless header block", http2.ErrCodeEnhanceYourCalm, func(p *rawPeer) {
			p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x82}})
			for range 20 {
				p.fr.WriteContinuation(1, false, big[:60_000])
			}
		}},
		{"SETTINGS flood", http2.ErrCodeEnhanceYourCalm, func(p *rawPeer) { repeat(p, func(fr *http2.Framer) { fr.WriteSettings() }) }},
		{"PING flood", http2.ErrCodeEnhanceYourCalm, func(p *rawPeer) { repeat(p, func(fr *http2.Framer) { fr.WritePing(false, [8]byte{}) }) }},
		{"PRIORITY flood", http2.ErrCodeEnhanceYourCalm, func(p *rawPeer) {
			repeat(p, func(fr *http2.Framer) { fr.WritePriority(1, http2.PriorityParam{StreamDep: 3}) })
		}},
		{"unknown frame flood", http2.ErrCodeEnhanceYourCalm, func(p *rawPeer) { repeat(p, func(fr *http2.Framer) { fr.WriteRawFrame(0xee, 0, 0, nil) }) }},
		{"empty DATA flood", http2.ErrCodeEnhanceYourCalm, func(p *rawPeer) {
			p.connect(1)
			repeat(p, func(fr *http2.Framer) { fr.WriteData(1, false, nil) })
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, s := rawClient(t, DefaultConfig(), nil)
			p.kind(http2.FrameSettings, 0)
			c.do(p)
			p.goAway(c.code)
			<-s.Done()
			var pe *ProtocolError
			if err := s.Err(); !errors.As(err, &pe) || pe.Code != c.code {
				t.Errorf("session ended with %v, want a ProtocolError with %v", err, c.code)
			}
		})
	}
}

// repeat sends a frame far more often than a session puts up with, in one write.
func repeat(p *rawPeer, write func(*http2.Framer)) {
	inOneBurst(p, func(fr *http2.Framer) {
		for range 3 * maxIdleFrames {
			write(fr)
		}
	})
}

func TestFirstFrameMustBeSettings(t *testing.T) {
	a, s := bareServer(t)
	p := newRawPeer(t, a)
	go p.read()
	a.Write([]byte(http2.ClientPreface))
	p.fr.WritePing(false, [8]byte{})
	p.goAway(http2.ErrCodeProtocol)
	<-s.Done()
}

func TestBadPrefaceEndsTheSession(t *testing.T) {
	a, s := bareServer(t)
	a.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
	<-s.Done()
	if err := s.Err(); err == nil || !strings.Contains(err.Error(), "preface") {
		t.Errorf("session ended with %v", err)
	}
}

// TestStreamFaults: each breaks a rule on one stream; only that stream is reset.
func TestStreamFaults(t *testing.T) {
	cfg := DefaultConfig()
	cfg.StreamWindow = 100_000
	for _, c := range []struct {
		name string
		code http2.ErrCode
		do   func(p *rawPeer)
	}{
		{"DATA after END_STREAM", http2.ErrCodeStreamClosed, func(p *rawPeer) {
			p.connect(1)
			p.kind(http2.FrameHeaders, 1)
			p.fr.WriteData(1, true, nil)
			p.fr.WriteData(1, false, []byte("x"))
		}},
		{"DATA beyond the window", http2.ErrCodeFlowControl, func(p *rawPeer) {
			p.connect(1)
			p.fr.WriteData(1, false, make([]byte, 60_000))
			p.fr.WriteData(1, false, make([]byte, 60_000))
		}},
		{"window overflow", http2.ErrCodeFlowControl, func(p *rawPeer) { p.connect(1); p.fr.WriteWindowUpdate(1, 1<<31-1) }},
		{"WINDOW_UPDATE of 0", http2.ErrCodeProtocol, func(p *rawPeer) { p.connect(1); p.fr.WriteWindowUpdate(1, 0) }},
		{"second HEADERS without END_STREAM", http2.ErrCodeProtocol, func(p *rawPeer) { p.connect(1); p.connect(1) }},
		{"upper-case header name", http2.ErrCodeProtocol, func(p *rawPeer) {
			p.headers(1, false, ":method", "CONNECT", ":authority", "a:1", "Baggage", "x")
		}},
		{"pseudo header behind others", http2.ErrCodeProtocol, func(p *rawPeer) {
			p.headers(1, false, ":method", "CONNECT", "x", "y", ":authority", "a:1")
		}},
		{"line break in a value", http2.ErrCodeProtocol, func(p *rawPeer) {
			p.headers(1, false, ":method", "CONNECT", ":authority", "a:1", "x", "a\r\nb")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, _ := rawClient(t, cfg, func(ctx context.Context, in *Incoming) {
				st, err := in.Accept(nil)
				if err != nil {
					return
				}
				<-ctx.Done()
				st.Close()
			})
			c.do(p)
			if f := p.kind(http2.FrameRSTStream, 1); f.code != c.code {
				t.Errorf("reset with %v, want %v", f.code, c.code)
			}
			p.connect(3) // the session lives
			if f := p.kind(http2.FrameHeaders, 3); f.get(":status") != "200" {
				t.Errorf("next CONNECT: %v", f)
			}
		})
	}
}

func TestDataBeyondTheConnectionWindow(t *testing.T) {
	cfg := DefaultConfig()
	cfg.StreamWindow, cfg.ConnWindow = 100_000, 100_000
	p, _ := rawClient(t, cfg, func(ctx context.Context, in *Incoming) {
		in.Accept(nil)
		<-ctx.Done()
	})
	p.connect(1)
	p.connect(3)
	p.fr.WriteData(1, false, make([]byte, 60_000))
	p.fr.WriteData(3, false, make([]byte, 60_000))
	p.goAway(http2.ErrCodeFlowControl)
}

func TestOversizedHeaderListIsAnsweredWith431(t *testing.T) {
	p, _ := rawClient(t, DefaultConfig(), nil)
	kv := []string{":method", "CONNECT", ":authority", "a:1"}
	for i := range 200 { // one table entry, used again and again: small on the wire
		kv = append(kv, "x", strings.Repeat("y", 900)+fmt.Sprint(i%2))
	}
	p.headers(1, false, kv...)
	if f := p.kind(http2.FrameHeaders, 1); f.get(":status") != "431" || !f.Flags.Has(http2.FlagHeadersEndStream) {
		t.Errorf("answer %v, want 431 with END_STREAM", f)
	}
	p.connect(3)
	if f := p.kind(http2.FrameHeaders, 3); f.get(":status") != "200" {
		t.Errorf("the compression state is lost: %v", f)
	}
}

func TestHeaderBombStaysBounded(t *testing.T) {
	p, s := rawClient(t, DefaultConfig(), nil)
	p.hbuf.Reset()
	p.henc.WriteField(hpack.HeaderField{Name: "x", Value: strings.Repeat("y", 3900)})
	block := append(bytes.Clone(p.hbuf.Bytes()), bytes.Repeat([]byte{0xbe}, 50_000)...) // 200 MB decoded
	p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block, EndHeaders: true})
	p.next("an end of the stream or the session", func(f rawFrame) bool {
		return f.Type == http2.FrameGoAway || f.Type == http2.FrameRSTStream || f.get(":status") == "431"
	})
	s.Close(nil)
}

func TestStreamsBeyondTheLimitAreRefused(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxStreams = 3
	p, s := rawClient(t, cfg, nil)
	for id := uint32(1); id <= 9; id += 2 {
		p.connect(id)
	}
	for id := uint32(7); id <= 9; id += 2 {
		if f := p.kind(http2.FrameRSTStream, id); f.code != http2.ErrCodeRefusedStream {
			t.Errorf("stream %d: %v, want REFUSED_STREAM", id, f.code)
		}
	}
	if n := s.Streams(); n != 3 {
		t.Errorf("%d streams, want 3", n)
	}
}

// 10 000 CONNECTs that nobody answers: the handlers stay at the limit, the rest
// is refused, the session lives.
func TestHalfOpenConnectsAreBounded(t *testing.T) {
	var running, most atomic.Int64
	p, s := rawClient(t, DefaultConfig(), func(ctx context.Context, in *Incoming) {
		n := running.Add(1)
		defer running.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		<-ctx.Done()
	})
	for i := range 10_000 {
		p.connect(uint32(2*i + 1))
	}
	p.sync()
	if n := s.Streams(); n != 200 || most.Load() > 200 {
		t.Errorf("%d streams, %d handlers at once; want 200", n, most.Load())
	}
}

// In virtual time all of it is within one second, however slow the machine is:
// most are refused while the handlers of others end, and the rest counts.
func TestRapidResetIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running, most atomic.Int64
		p, s := rawClient(t, DefaultConfig(), func(ctx context.Context, in *Incoming) {
			n := running.Add(1)
			defer running.Add(-1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			<-ctx.Done()
		})
		for id := uint32(1); s.Err() == nil && id < 1_000_000; id += 2 {
			p.connect(id)
			p.fr.WriteRSTStream(id, http2.ErrCodeCancel)
			if id%200 == 1 {
				synctest.Wait()
			}
		}
		p.goAway(http2.ErrCodeEnhanceYourCalm)
		if n := most.Load(); n > 400 {
			t.Errorf("%d handlers at once", n)
		}
	})
}

func TestPaddingAndUnknownFramesAreHarmless(t *testing.T) {
	p, _ := rawClient(t, DefaultConfig(), nil, http2.Setting{ID: 0x99, Val: 1})
	p.hbuf.Reset()
	p.henc.WriteField(hpack.HeaderField{Name: ":method", Value: "CONNECT"})
	p.henc.WriteField(hpack.HeaderField{Name: ":authority", Value: "a:1"})
	block := p.hbuf.Bytes()
	p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:3], PadLength: 7})
	p.fr.WriteContinuation(1, true, block[3:])
	p.fr.WriteRawFrame(0xee, 0xff, 1, []byte("unknown"))
	p.fr.WriteDataPadded(1, false, []byte("padded"), make([]byte, 200))
	p.fr.WriteDataPadded(1, true, nil, make([]byte, 255))
	got := ""
	p.next("END_STREAM", func(f rawFrame) bool {
		got += string(f.data)
		return f.Type == http2.FrameData && f.Flags.Has(http2.FlagDataEndStream)
	})
	if got != "padded" {
		t.Errorf("echo %q", got)
	}
}
