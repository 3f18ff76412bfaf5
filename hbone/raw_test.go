package hbone

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/simnet"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// plainTransport is a Transport without TLS.
type plainTransport struct{ net.Conn }

func (t plainTransport) Peer() Peer { return Peer{} }
func (t plainTransport) WriteBurst(p []byte) error {
	_, err := t.Write(p)
	return err
}

// rawPeer speaks frames by hand. A goroutine reads everything the session under
// test sends; want* look at it in order.
type rawPeer struct {
	t    testing.TB
	c    net.Conn
	fr   *http2.Framer
	hbuf bytes.Buffer
	henc *hpack.Encoder

	mu        sync.Mutex
	cond      *sync.Cond
	frames    []rawFrame
	err       error
	pongs     bool // answer pings
	undrained bool // but not the one of a drain
}

// rawFrame is a copy of a frame.
type rawFrame struct {
	http2.FrameHeader
	fields   []hpack.HeaderField
	settings []http2.Setting
	data     []byte
	n        uint32 // increment, error code or last stream
	code     http2.ErrCode
}

func (f rawFrame) String() string {
	return fmt.Sprintf("%v %d end=%v len=%d n=%d code=%v %v", f.Type, f.StreamID, f.Flags.Has(1), f.Length, f.n, f.code, f.fields)
}

func (f rawFrame) get(name string) string {
	for _, hf := range f.fields {
		if hf.Name == name {
			return hf.Value
		}
	}
	return ""
}

func newRawPeer(t testing.TB, c net.Conn) *rawPeer {
	p := &rawPeer{t: t, c: c, fr: http2.NewFramer(c, c), pongs: true}
	p.fr.AllowIllegalWrites = true
	p.fr.SetMaxReadFrameSize(1 << 20)
	p.fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	p.henc = hpack.NewEncoder(&p.hbuf)
	p.cond = sync.NewCond(&p.mu)
	return p
}

func (p *rawPeer) read() {
	for {
		f, err := p.fr.ReadFrame()
		p.mu.Lock()
		if err != nil {
			p.err = err
			p.cond.Broadcast()
			p.mu.Unlock()
			return
		}
		p.frames = append(p.frames, copyFrame(f))
		p.cond.Broadcast()
		pong, undrained := p.pongs, p.undrained
		p.mu.Unlock()
		if ping, ok := f.(*http2.PingFrame); ok && !ping.IsAck() && pong && !(undrained && ping.Data == drainPing) {
			var b bytes.Buffer
			http2.NewFramer(&b, nil).WritePing(true, ping.Data)
			p.c.Write(b.Bytes())
		}
	}
}

func copyFrame(f http2.Frame) rawFrame {
	r := rawFrame{FrameHeader: f.Header()}
	switch f := f.(type) {
	case *http2.MetaHeadersFrame:
		r.fields = slices.Clone(f.Fields)
	case *http2.SettingsFrame:
		f.ForeachSetting(func(s http2.Setting) error { r.settings = append(r.settings, s); return nil })
	case *http2.DataFrame:
		r.data = bytes.Clone(f.Data())
	case *http2.WindowUpdateFrame:
		r.n = f.Increment
	case *http2.RSTStreamFrame:
		r.code = f.ErrCode
	case *http2.GoAwayFrame:
		r.n, r.code, r.data = f.LastStreamID, f.ErrCode, bytes.Clone(f.DebugData())
	case *http2.PingFrame:
		r.data = bytes.Clone(f.Data[:])
	}
	return r
}

// next waits for the first frame that match accepts and drops it and all before.
func (p *rawPeer) next(what string, match func(rawFrame) bool) rawFrame {
	p.t.Helper()
	timer := time.AfterFunc(20*time.Second, func() {
		p.mu.Lock()
		p.err = errors.New("test waited too long")
		p.cond.Broadcast()
		p.mu.Unlock()
	})
	defer timer.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	var seen []string
	for {
		for len(p.frames) > 0 {
			f := p.frames[0]
			p.frames = p.frames[1:]
			if match(f) {
				return f
			}
			seen = append(seen, f.String())
		}
		if p.err != nil {
			p.t.Fatalf("no %s: %v; saw %s", what, p.err, strings.Join(seen, "; "))
		}
		p.cond.Wait()
	}
}

func (p *rawPeer) kind(kind http2.FrameType, id uint32) rawFrame {
	p.t.Helper()
	return p.next(fmt.Sprintf("%v on stream %d", kind, id), func(f rawFrame) bool { return f.Type == kind && f.StreamID == id })
}

func (p *rawPeer) goAway(code http2.ErrCode) rawFrame {
	p.t.Helper()
	f := p.kind(http2.FrameGoAway, 0)
	if f.code != code {
		p.t.Fatalf("GOAWAY %v %q, want %v", f.code, f.data, code)
	}
	return f
}

// sync returns when the session has taken in all that was sent so far; it fails
// if a frame on one of the quiet streams came meanwhile.
func (p *rawPeer) sync(quiet ...uint32) {
	p.t.Helper()
	tag := [8]byte{'s', 'y', 'n', 'c', byte(time.Now().UnixNano())}
	p.fr.WritePing(false, tag)
	p.next("answer to ping", func(f rawFrame) bool {
		if slices.Contains(quiet, f.StreamID) {
			p.t.Errorf("frame on stream %d that must be quiet: %v", f.StreamID, f)
		}
		return f.Type == http2.FramePing && f.Flags.Has(http2.FlagPingAck) && bytes.Equal(f.data, tag[:])
	})
}

func (p *rawPeer) headers(id uint32, end bool, kv ...string) {
	p.hbuf.Reset()
	for i := 0; i < len(kv); i += 2 {
		p.henc.WriteField(hpack.HeaderField{Name: kv[i], Value: kv[i+1]})
	}
	p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.hbuf.Bytes(), EndStream: end, EndHeaders: true})
}

func (p *rawPeer) connect(id uint32) {
	p.headers(id, false, ":method", "CONNECT", ":authority", "app.default:80")
}

// rawClient is a raw peer of a server session, prefaces exchanged.
func rawClient(t testing.TB, cfg Config, h Handler, settings ...http2.Setting) (*rawPeer, *Session) {
	t.Helper()
	a, b := simnet.Pair(simnet.Options{Buffer: 8 << 20})
	if h == nil {
		h = echoHandler
	}
	s := NewServer(plainTransport{b}, cfg, h)
	done := make(chan struct{})
	go func() { s.Serve(context.Background()); close(done) }()
	p := newRawPeer(t, a)
	go p.read()
	io.WriteString(a, http2.ClientPreface)
	p.fr.WriteSettings(settings...)
	t.Cleanup(func() { a.Close(); s.Close(nil); <-done })
	return p, s
}

// rawServer is a raw peer of a client session, prefaces exchanged.
func rawServer(t testing.TB, cfg Config, settings ...http2.Setting) (*rawPeer, *Session) {
	t.Helper()
	a, b := simnet.Pair(simnet.Options{Buffer: 8 << 20})
	p := newRawPeer(t, a)
	preface := make([]byte, len(http2.ClientPreface))
	written := make(chan struct{})
	go func() {
		io.ReadFull(a, preface)
		p.fr.WriteSettings(settings...)
		close(written)
		p.read()
	}()
	s, err := NewClient(context.Background(), plainTransport{b}, cfg)
	check(t, err)
	<-written
	if string(preface) != http2.ClientPreface {
		t.Fatalf("preface %q", preface)
	}
	t.Cleanup(func() { a.Close(); s.Close(nil); <-s.life.transportClosed })
	return p, s
}

type opened struct {
	st   *Stream
	resp *Response
	err  error
}

// openAsync runs Open; the caller answers by hand.
func openAsync(s *Session, h Header) chan opened {
	ch := make(chan opened, 1)
	go func() {
		st, resp, err := s.Open(context.Background(), &Request{Authority: "app.default:80", Header: h})
		ch <- opened{st, resp, err}
	}()
	return ch
}

// openRaw opens a stream and answers 200.
func (p *rawPeer) openRaw(s *Session) (*Stream, uint32) {
	p.t.Helper()
	ch := openAsync(s, nil)
	f := p.next("HEADERS", func(f rawFrame) bool { return f.Type == http2.FrameHeaders })
	p.headers(f.StreamID, false, ":status", "200")
	o := <-ch
	check(p.t, o.err)
	return o.st, f.StreamID
}
