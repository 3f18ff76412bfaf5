package hbone

import (
	"bytes"
	"errors"

	"github.com/isthmus-mesh/isthmus/hbone/wire"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// maxContinuations bounds the CONTINUATION frames of one header block.
const maxContinuations = 64

// frameReader cuts the byte stream of a session into frames. DATA is parsed by
// hand and handed on as it arrives; every other frame is collected whole (a
// header block with its CONTINUATIONs) and parsed by the http2 Framer. It
// belongs to the reading goroutine.
type frameReader struct {
	s       *Session
	preface []byte // what is still to come of the client's preface

	hdr  [wire.HeaderLen]byte
	have int // bytes in hdr
	cur  wire.Header
	left int // payload bytes still to come of cur
	mode frameMode

	gotSettings bool   // the first SETTINGS arrived
	acked       bool   // ours were acknowledged
	asm         []byte // control frame, or header block with its frame headers
	block       uint32 // stream whose header block is unfinished, 0 if none
	conts       int
	cost        int // bytes of CONTINUATION frames in asm, which the session is charged

	body dataBody

	framer *http2.Framer
	src    bytes.Reader
}

type frameMode uint8

const (
	modeCollect frameMode = iota
	modeData
	modeSkip
)

// dataBody is the state of a DATA frame whose payload is arriving.
type dataBody struct {
	st      *Stream // nil: thrown away
	padded  bool    // the pad length is still to come
	content int     // payload bytes before the padding
}

func newFrameReader(s *Session) *frameReader {
	r := &frameReader{s: s}
	if !s.client {
		r.preface = []byte(http2.ClientPreface)
	}
	r.framer = http2.NewFramer(nil, &r.src)
	r.framer.SetMaxReadFrameSize(uint32(s.cfg.MaxFrame))
	r.framer.ReadMetaHeaders = hpack.NewDecoder(wire.HeaderTable, nil)
	r.framer.MaxHeaderListSize = uint32(s.cfg.MaxHeaderList)
	return r
}

// parse takes in p. A *streamFault is dealt with inside; an error ends the
// session.
func (r *frameReader) parse(p []byte) error {
	if len(r.preface) > 0 {
		n := min(len(p), len(r.preface))
		if !bytes.Equal(p[:n], r.preface[:n]) {
			return wire.ConnError(http2.ErrCodeProtocol, "bad client preface")
		}
		r.preface, p = r.preface[n:], p[n:]
	}
	for len(p) > 0 {
		if r.have < wire.HeaderLen {
			n := copy(r.hdr[r.have:], p)
			r.have, p = r.have+n, p[n:]
			if r.have < wire.HeaderLen {
				return nil
			}
			if err := r.fault(r.startFrame()); err != nil {
				return err
			}
		} else {
			n := min(r.left, len(p))
			if err := r.take(p[:n]); err != nil {
				return err
			}
			r.left, p = r.left-n, p[n:]
		}
		if r.left == 0 {
			r.have = 0
			if err := r.fault(r.finish()); err != nil {
				return err
			}
		}
	}
	return nil
}

// fault resets the stream of a *streamFault and passes other errors on.
func (r *frameReader) fault(err error) error {
	if err == nil {
		return nil // without the allocation below
	}
	var sf *wire.StreamError
	if errors.As(err, &sf) {
		return r.s.resetStream(sf)
	}
	return err
}

// startFrame looks at the frame header and decides what to do with the payload.
func (r *frameReader) startFrame() error {
	h := wire.ParseHeader(r.hdr[:])
	r.cur, r.left, r.mode = h, h.Length, modeCollect
	if t := r.s.traced(); t != nil && (!wire.HasDetail(h) || h.Length > r.s.cfg.MaxFrame) {
		r.s.traceFrame(t, "<", h, "")
	}
	switch {
	case h.Length > r.s.cfg.MaxFrame:
		return wire.ConnError(http2.ErrCodeFrameSize, "frame of %d bytes, we accept %d", h.Length, r.s.cfg.MaxFrame)
	case !r.gotSettings && (h.Kind != wire.FrameSettings || h.Flags&wire.FlagAck != 0):
		return wire.ConnError(http2.ErrCodeProtocol, "first frame is %v, want SETTINGS", http2.FrameType(h.Kind))
	case r.block != 0 && (h.Kind != wire.FrameContinuation || h.ID != r.block):
		return wire.ConnError(http2.ErrCodeProtocol, "%v inside the header block of stream %d", http2.FrameType(h.Kind), r.block)
	case h.Kind == wire.FrameData:
		r.mode = modeSkip // unless beginData accepts it
		return r.startData(h)
	case h.Kind == wire.FramePriority:
		r.mode = modeSkip
		return r.s.onPriority(h)
	case h.Kind == wire.FrameWithdraw:
		r.mode = modeSkip
		return r.s.onWithdraw(h)
	case h.Kind > wire.FrameContinuation:
		r.mode = modeSkip
		return r.s.countIdleFrame("unknown frames", 1)
	}
	return r.collect(h)
}

func (r *frameReader) collect(h wire.Header) error {
	switch h.Kind {
	case wire.FrameHeaders:
		r.block, r.conts = h.ID, 0
	case wire.FrameContinuation:
		if r.block == 0 {
			return wire.ConnError(http2.ErrCodeProtocol, "CONTINUATION without HEADERS")
		}
		if r.conts++; r.conts > maxContinuations || len(r.asm)+h.Length > 2*r.s.cfg.MaxHeaderList+r.s.cfg.MaxFrame {
			return wire.ConnError(http2.ErrCodeEnhanceYourCalm, "header block of stream %d is too long", h.ID)
		}
	}
	r.asm = append(r.asm, r.hdr[:]...)
	if h.Kind == wire.FrameContinuation { // others are a frame at most
		r.cost += h.Length
		r.s.use.Add(h.Length)
	}
	return nil
}

// take consumes p, payload of the current frame.
func (r *frameReader) take(p []byte) error {
	switch r.mode {
	case modeCollect:
		r.asm = append(r.asm, p...)
	case modeData:
		return r.takeData(p)
	case modeSkip:
		if r.cur.Kind == wire.FrameData {
			r.s.release(len(p))
		}
	}
	return nil
}

func (r *frameReader) finish() error {
	switch r.mode {
	case modeData:
		st := r.body.st
		r.body = dataBody{}
		if r.cur.Flags&wire.FlagEndStream != 0 && st != nil {
			r.s.peerEnded(st)
		}
		return nil
	case modeSkip:
		return nil
	}
	if t := r.s.traced(); t != nil && wire.HasDetail(r.cur) {
		r.s.traceFrame(t, "<", r.cur, wire.Detail(r.cur, r.asm[wire.HeaderLen:]))
	}
	if r.cur.Kind == wire.FrameHeaders {
		if err := wire.CheckPadding(r.cur, r.asm[wire.HeaderLen:]); err != nil {
			return err
		}
	}
	if r.block != 0 {
		if r.cur.Flags&wire.FlagEndHeaders == 0 {
			return nil
		}
		r.block = 0
	}
	r.src.Reset(r.asm)
	f, err := r.framer.ReadFrame()
	r.asm = r.asm[:0]
	r.s.use.Release(r.cost)
	r.cost = 0
	if cap(r.asm) > 16<<10 {
		r.asm = nil
	}
	if err != nil {
		return r.framerError(err)
	}
	return r.s.onFrame(f)
}

// framerError translates what the Framer reports.
func (r *frameReader) framerError(err error) error {
	var ce http2.ConnectionError
	if errors.As(err, &ce) {
		return wire.ConnError(http2.ErrCode(ce), "bad %v frame on stream %d", http2.FrameType(r.cur.Kind), r.cur.ID)
	}
	var se http2.StreamError
	if errors.As(err, &se) {
		opens := r.cur.Kind == wire.FrameHeaders || r.cur.Kind == wire.FrameContinuation
		return &wire.StreamError{ID: se.StreamID, Code: se.Code, Reason: err.Error(), Opens: opens}
	}
	return wire.ConnError(http2.ErrCodeFrameSize, "bad %v frame: %v", http2.FrameType(r.cur.Kind), err)
}

// startData accounts the frame against both windows and finds its stream.
func (r *frameReader) startData(h wire.Header) error {
	if h.ID == 0 {
		return wire.ConnError(http2.ErrCodeProtocol, "DATA on stream 0")
	}
	padded := h.Flags&wire.FlagPadded != 0
	if padded && h.Length == 0 {
		return wire.ConnError(http2.ErrCodeFrameSize, "padded DATA without pad length")
	}
	if h.Length == 0 && h.Flags&wire.FlagEndStream == 0 {
		if err := r.s.countIdleFrame("empty DATA frames", 1); err != nil {
			return err
		}
	}
	st, err := r.s.receiveData(h)
	if err != nil || st == nil {
		return err
	}
	r.mode = modeData
	r.body = dataBody{st: st, padded: padded, content: h.Length}
	return nil
}

func (r *frameReader) takeData(p []byte) error {
	b := &r.body
	if b.padded {
		b.padded = false
		pad := int(p[0])
		p = p[1:]
		b.content -= 1 + pad
		if b.content < 0 {
			return wire.ConnError(http2.ErrCodeProtocol, "padding of %d bytes exceeds the frame", pad)
		}
		b.st.release(1, b.st.recv.padding(1))
	}
	n := min(b.content, len(p))
	b.content -= n
	if n > 0 {
		r.s.arrived(b.st, p[:n])
	}
	if pad := len(p) - n; pad > 0 {
		b.st.release(pad, b.st.recv.padding(pad))
	}
	return nil
}
