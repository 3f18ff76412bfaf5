package h2conform

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// patience bounds each wait for a frame; it is never reached when all is well.
const patience = 15 * time.Second

// Frame is a copy of a frame that the endpoint under test sent.
type Frame struct {
	http2.FrameHeader
	Fields []hpack.HeaderField
	Data   []byte // payload of DATA, GOAWAY and PING
	Code   http2.ErrCode
	N      uint32 // increment, or last stream
}

func (f Frame) String() string {
	s := fmt.Sprintf("%v on stream %d", f.Type, f.StreamID)
	switch f.Type {
	case http2.FrameRSTStream:
		s += fmt.Sprintf(" %v", f.Code)
	case http2.FrameGoAway:
		s += fmt.Sprintf(" %v %q", f.Code, f.Data)
	case http2.FrameHeaders:
		s += fmt.Sprintf(" %v", f.Fields)
	}
	return s
}

// decides reports whether f answers or refuses the CONNECT on a stream.
func (f Frame) decides(id uint32) bool {
	return f.StreamID == id && (f.Type == http2.FrameHeaders || f.Type == http2.FrameRSTStream)
}

func (f Frame) field(name string) string {
	for _, hf := range f.Fields {
		if hf.Name == name {
			return hf.Value
		}
	}
	return ""
}

// Peer speaks to the endpoint under test by frames: as a client if that is a
// server, as a server otherwise. It answers SETTINGS and PING; as a server also
// CONNECT, with 200 and an echo, unless it holds the stream back.
type Peer struct {
	t            testing.TB
	conn         net.Conn
	client       bool
	unresponsive bool // answers nothing

	wmu  sync.Mutex
	fr   *http2.Framer
	hbuf bytes.Buffer
	henc *hpack.Encoder

	mu       sync.Mutex
	cond     sync.Cond
	frames   []Frame
	data     map[uint32][]byte // DATA by stream
	settings map[http2.SettingID]uint32
	hold     bool // the next CONNECT is not answered
	held     map[uint32]bool
	err      error
	pings    byte
}

// newPeer does not read yet: what it answers must not come before its SETTINGS.
func newPeer(t testing.TB, conn net.Conn, client bool) *Peer {
	p := &Peer{t: t, conn: conn, client: client, fr: http2.NewFramer(conn, conn), data: map[uint32][]byte{},
		settings: map[http2.SettingID]uint32{http2.SettingInitialWindowSize: 65535, http2.SettingMaxFrameSize: 16384}, held: map[uint32]bool{}}
	p.cond.L = &p.mu
	p.fr.AllowIllegalWrites = true
	p.fr.SetMaxReadFrameSize(1 << 20)
	p.fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	p.henc = hpack.NewEncoder(&p.hbuf)
	return p
}

func (p *Peer) read() {
	if !p.client {
		preface := make([]byte, len(http2.ClientPreface))
		if _, err := io.ReadFull(p.conn, preface); err != nil || string(preface) != http2.ClientPreface {
			p.ended(fmt.Errorf("preface %q: %v", preface, err))
			return
		}
	}
	for {
		f, err := p.fr.ReadFrame()
		if err != nil {
			p.ended(err)
			return
		}
		p.note(f)
		p.react(f)
	}
}

func (p *Peer) ended(err error) {
	p.mu.Lock()
	p.err = err
	p.cond.Broadcast()
	p.mu.Unlock()
}

func (p *Peer) note(f http2.Frame) {
	r := Frame{FrameHeader: f.Header()}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch f := f.(type) {
	case *http2.MetaHeadersFrame:
		r.Fields = slices.Clone(f.Fields)
	case *http2.SettingsFrame:
		f.ForeachSetting(func(s http2.Setting) error { p.settings[s.ID] = s.Val; return nil })
	case *http2.DataFrame:
		p.data[f.StreamID] = append(p.data[f.StreamID], f.Data()...)
	case *http2.WindowUpdateFrame:
		r.N = f.Increment
	case *http2.RSTStreamFrame:
		r.Code = f.ErrCode
	case *http2.GoAwayFrame:
		r.N, r.Code, r.Data = f.LastStreamID, f.ErrCode, bytes.Clone(f.DebugData())
	case *http2.PingFrame:
		r.Data = bytes.Clone(f.Data[:])
	}
	p.frames = append(p.frames, r)
	p.cond.Broadcast()
}

// react is what a well-behaved peer does of its own accord.
func (p *Peer) react(f http2.Frame) {
	if p.unresponsive {
		return
	}
	switch f := f.(type) {
	case *http2.SettingsFrame:
		if !f.IsAck() {
			p.Write(func(fr *http2.Framer) { fr.WriteSettingsAck() })
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			p.Write(func(fr *http2.Framer) { fr.WritePing(true, f.Data) })
		}
	case *http2.MetaHeadersFrame:
		if p.client {
			return
		}
		p.mu.Lock()
		hold := p.hold
		p.hold = false
		if hold {
			p.held[f.StreamID] = true
		}
		p.mu.Unlock()
		if !hold {
			p.Headers(f.StreamID, false, ":status", "200")
		}
	case *http2.DataFrame:
		if p.client || len(f.Data()) == 0 {
			return
		}
		p.mu.Lock()
		held := p.held[f.StreamID]
		p.mu.Unlock()
		if !held {
			p.Write(func(fr *http2.Framer) { fr.WriteData(f.StreamID, false, f.Data()) })
		}
	}
}

// Write writes frames. What the endpoint under test no longer reads is no error.
func (p *Peer) Write(write func(*http2.Framer)) {
	p.wmu.Lock()
	defer p.wmu.Unlock()
	write(p.fr)
}

// Raw writes one frame from its parts.
func (p *Peer) Raw(kind http2.FrameType, flags http2.Flags, id uint32, payload ...byte) {
	p.Write(func(fr *http2.Framer) { fr.WriteRawFrame(kind, flags, id, payload) })
}

// block encodes name-value pairs as literals, which leave no trace in the
// endpoint's table. Called within Write.
func (p *Peer) block(kv ...string) []byte {
	p.hbuf.Reset()
	for i := 0; i < len(kv); i += 2 {
		p.henc.WriteField(hpack.HeaderField{Name: kv[i], Value: kv[i+1], Sensitive: true})
	}
	return bytes.Clone(p.hbuf.Bytes())
}

// Headers writes a HEADERS frame of name-value pairs.
func (p *Peer) Headers(id uint32, end bool, kv ...string) {
	p.Write(func(fr *http2.Framer) {
		fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.block(kv...), EndStream: end, EndHeaders: true})
	})
}

// setting is what the endpoint announced.
func (p *Peer) setting(id http2.SettingID) uint32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.settings[id]
}

// await returns the first frame, of those that came since from, that match
// accepts; ok is false when the connection ended before.
func (p *Peer) await(from int, match func(Frame) bool) (f Frame, ok bool) {
	return p.awaitFor(patience, from, match)
}

func (p *Peer) awaitFor(patience time.Duration, from int, match func(Frame) bool) (f Frame, ok bool) {
	late := false
	timer := time.AfterFunc(patience, func() {
		p.mu.Lock()
		late = true
		p.cond.Broadcast()
		p.mu.Unlock()
	})
	defer timer.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := from; ; {
		for ; i < len(p.frames); i++ {
			if match(p.frames[i]) {
				return p.frames[i], true
			}
		}
		if p.err != nil || late {
			return Frame{}, false
		}
		p.cond.Wait()
	}
}

// mark is a position for await: after all that has come so far.
func (p *Peer) mark() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.frames)
}

// since tells what came since from, for messages.
func (p *Peer) since(from int) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var s []string
	for _, f := range p.frames[from:] {
		s = append(s, f.String())
	}
	if p.err != nil {
		s = append(s, p.err.Error())
	}
	return strings.Join(s, "; ")
}

const syncTag = "conform"

// sync returns when the endpoint has taken in all that was sent, which it has
// when it answers a PING behind it.
func (p *Peer) sync() error {
	p.mu.Lock()
	p.pings++
	tag := [8]byte([]byte(syncTag + string(rune(p.pings&0x7f))))
	p.mu.Unlock()
	p.Write(func(fr *http2.Framer) { fr.WritePing(false, tag) })
	f, ok := p.await(0, func(f Frame) bool {
		return f.Type == http2.FramePing && f.Flags.Has(http2.FlagPingAck) && bytes.Equal(f.Data, tag[:]) ||
			f.Type == http2.FrameGoAway && f.Code != http2.ErrCodeNo
	})
	if !ok || f.Type == http2.FrameGoAway {
		return errors.New("PING was not answered")
	}
	return nil
}

// echo sends text on a stream of which the other end is an echo and waits for
// it to come back.
func (p *Peer) echo(id uint32, text string) error {
	p.mu.Lock()
	from := len(p.data[id])
	p.mu.Unlock()
	p.Write(func(fr *http2.Framer) { fr.WriteData(id, false, []byte(text)) })
	mark := p.mark()
	_, ok := p.await(max(0, mark-1), func(Frame) bool { // called with mu held
		return len(p.data[id]) >= from+len(text)
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	got := string(p.data[id][min(from, len(p.data[id])):])
	if !ok && got != text {
		return fmt.Errorf("echo on stream %d: %q, want %q", id, got, text)
	}
	return nil
}
