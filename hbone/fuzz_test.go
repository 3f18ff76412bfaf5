package hbone

import (
	"bytes"
	"context"
	"net"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/hbone/wire"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// scriptTransport plays bytes to a session and forgets what it writes.
type scriptTransport struct {
	in     *bytes.Reader
	closed chan struct{}
}

func newScript(b []byte) *scriptTransport {
	return &scriptTransport{in: bytes.NewReader(b), closed: make(chan struct{})}
}

// Read hands out odd pieces, so that frames are cut everywhere.
func (t *scriptTransport) Read(p []byte) (int, error) {
	return t.in.Read(p[:min(len(p), 1+t.in.Len()/3)])
}
func (t *scriptTransport) WriteBurst(p []byte) error        { return nil }
func (t *scriptTransport) Peer() Peer                       { return Peer{} }
func (t *scriptTransport) SetReadDeadline(time.Time) error  { return nil }
func (t *scriptTransport) SetWriteDeadline(time.Time) error { return nil }
func (t *scriptTransport) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (t *scriptTransport) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (t *scriptTransport) Close() error                     { return nil }

// script builds seeds.
func script(preface bool, write func(fr *http2.Framer, block func(kv ...string) []byte)) []byte {
	var b bytes.Buffer
	if preface {
		b.WriteString(http2.ClientPreface)
	}
	fr := http2.NewFramer(&b, nil)
	fr.AllowIllegalWrites = true
	var hb bytes.Buffer
	enc := hpack.NewEncoder(&hb)
	write(fr, func(kv ...string) []byte {
		hb.Reset()
		for i := 0; i < len(kv); i += 2 {
			enc.WriteField(hpack.HeaderField{Name: kv[i], Value: kv[i+1]})
		}
		return bytes.Clone(hb.Bytes())
	})
	return b.Bytes()
}

func someFrames(fr *http2.Framer, first []byte) {
	fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1000})
	fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: first[:1]})
	fr.WriteContinuation(1, true, first[1:])
	fr.WriteDataPadded(1, false, []byte("hello"), make([]byte, 3))
	fr.WriteWindowUpdate(1, 10)
	fr.WritePing(false, [8]byte{1})
	fr.WriteData(1, true, []byte("end"))
	fr.WriteRSTStream(1, http2.ErrCodeCancel)
	fr.WriteGoAway(1, http2.ErrCodeNo, []byte("bye"))
}

func FuzzServer(f *testing.F) {
	f.Add(script(true, func(fr *http2.Framer, block func(...string) []byte) {
		someFrames(fr, block(":method", "CONNECT", ":authority", "a:1", "baggage", "x=y"))
	}))
	f.Add(script(true, func(fr *http2.Framer, block func(...string) []byte) {
		fr.WriteSettings()
		fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: block(":method", "GET", ":path", "/"), EndHeaders: true, EndStream: true})
		fr.WriteData(9, false, nil)
	}))
	f.Add(script(true, func(fr *http2.Framer, block func(...string) []byte) { // what only rules that the Framer does not know refuse
		fr.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize}, http2.Setting{ID: http2.SettingHeaderTableSize, Val: 4096},
			http2.Setting{ID: http2.SettingInitialWindowSize}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
		fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(":method", "CONNECT", ":authority", "a:1"), EndHeaders: true, PadLength: 9})
		fr.WriteRawFrame(http2.FramePriority, 0, 1, []byte{0, 0, 0})
		fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: block(":method", "CONNECT", ":authority", "a:1", "te", "x", "y", " "), EndHeaders: true})
		fr.WritePing(true, drainPing)
		fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block("x", "y"), EndHeaders: true, EndStream: true})
		fr.WriteRawFrame(http2.FrameHeaders, http2.FlagHeadersPadded|http2.FlagHeadersPriority|http2.FlagHeadersEndHeaders, 5, []byte{9, 0, 0, 0, 0, 1, 0x88})
	}))
	f.Add(script(true, func(fr *http2.Framer, block func(...string) []byte) {
		fr.WriteSettings()
		fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(":method", "CONNECT", ":authority", "a:1", header.NameSlow, "tell"), EndHeaders: true})
		fr.WriteRawFrame(http2.FrameType(wire.FrameWithdraw), 0, 1, nil)
		fr.WriteRawFrame(http2.FrameType(wire.FrameWithdraw), 1, 1, []byte("x"))
		fr.WriteRawFrame(http2.FrameType(wire.FrameWithdraw), 0, 0, nil)
		fr.WriteData(1, true, []byte("end"))
	}))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := NewServer(newScript(b), DefaultConfig(), func(ctx context.Context, in *Incoming) {
			in.Inform(slow)
			echoHandler(ctx, in)
		})
		s.Serve(context.Background())
		if n := s.Streams(); n != 0 {
			t.Errorf("%d streams outlived their session", n)
		}
	})
}

func FuzzClient(f *testing.F) {
	f.Add(script(false, func(fr *http2.Framer, block func(...string) []byte) {
		someFrames(fr, block(":status", "200", "baggage", "x=y"))
	}))
	f.Add(script(false, func(fr *http2.Framer, block func(...string) []byte) {
		fr.WriteSettings()
		fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(":status", "503", header.NameReason, "refused"), EndHeaders: true, EndStream: true})
		fr.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, EndHeaders: true})
	}))
	f.Add(script(false, func(fr *http2.Framer, block func(...string) []byte) {
		fr.WriteSettings()
		fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(":status", "102", header.NameSlow, "connect"), EndHeaders: true})
		fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(":status", "102"), EndHeaders: true})
		fr.WriteRawFrame(http2.FrameType(wire.FrameWithdraw), 0, 1, nil)
		fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(":status", "503", header.NameReason, "withdrawn"), EndHeaders: true, EndStream: true})
	}))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := newSession(newScript(b), DefaultConfig(), true)
		st, err := s.request(&Request{Authority: "a:1"})
		if err != nil {
			t.Fatal(err)
		}
		st.Watch(st.Withdraw)
		s.read()
		<-s.life.transportClosed
		st.Write([]byte("x"))
		st.Close()
		if n := s.Streams(); n != 0 {
			t.Errorf("%d streams outlived their session", n)
		}
	})
}

func FuzzConnectHeader(f *testing.F) {
	enc := func(kv ...string) []byte {
		var b bytes.Buffer
		e := hpack.NewEncoder(&b)
		for i := 0; i < len(kv); i += 2 {
			e.WriteField(hpack.HeaderField{Name: kv[i], Value: kv[i+1]})
		}
		return b.Bytes()
	}
	f.Add(enc(":method", "CONNECT", ":authority", "a:1", "isthmus-avoid", "00000000000000ff"))
	f.Add(enc(":method", "CONNECT", ":authority", "[::1]:1", "forwarded", `for="1.2.3.4:5";host=x`))
	f.Add(enc(":method", "GET", ":path", "/", ":scheme", "https"))
	f.Fuzz(func(t *testing.T, block []byte) {
		var b bytes.Buffer
		b.WriteString(http2.ClientPreface)
		fr := http2.NewFramer(&b, nil)
		fr.WriteSettings()
		b.Write(wire.AppendHeaderBlock(nil, 1, block, false, wire.MinMaxFrame))
		served := make(chan string, 1)
		s := NewServer(newScript(b.Bytes()), DefaultConfig(), func(ctx context.Context, in *Incoming) { served <- in.Authority })
		s.Serve(context.Background())
		select {
		case a := <-served:
			if _, port, err := SplitAuthority(a); err != nil || port == 0 {
				t.Errorf("handler was called with authority %q: %v", a, err)
			}
		default:
		}
	})
}
