package quic

import (
	"bufio"
	"bytes"
	"fmt"
	"io"

	quicgo "github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/quicvarint"
)

// Types of streams and frames of RFC 9114 §6.2 and §7.2.
const (
	streamControl      = 0x0
	streamPush         = 0x1
	streamQPACKEncoder = 0x2
	streamQPACKDecoder = 0x3

	frameData        = 0x0
	frameHeaders     = 0x1
	frameCancelPush  = 0x3
	frameSettings    = 0x4
	framePushPromise = 0x5
	frameGoAway      = 0x7
	frameMaxPushID   = 0xd
	frameReserved    = 0x21 // ignored by each peer (RFC 9114 §7.2.8)

	settingMaxFieldSection = 0x6
)

// Ours, on control streams. A peer that has sent settingOurs understands the frames.
const (
	settingOurs = 0x69737468_6d7573 // "isthmus"

	framePing     = 0x69737468_00 // 8 bytes, to be sent back as PONG
	framePong     = 0x69737468_01
	frameWithdraw = 0x69737468_02 // the stream of a CONNECT that is not to be served; see hbone.Stream.Withdraw
	frameBye      = 0x69737468_03 // no CONNECT is open, and none will follow; all data was received
)

// frameReset is ours too. It is the last frame on a request stream that is reset behind its data,
// with the error code as its payload. RESET_STREAM may overtake data. RESET_STREAM_AT is not
// used: quic-go 0.65 marks bytes as reliable that the peer's window does not admit yet, and
// the peer closes the connection with FLOW_CONTROL_ERROR.
const frameReset = 0x69737468_04

// limits of what a peer may send in one piece.
const (
	maxHeaderBlock  = 64 << 10
	maxControlFrame = 4 << 10
)

// violation is a rule of HTTP/3 that a peer broke.
type violation struct {
	code uint64
	text string
}

func (v *violation) Error() string {
	return fmt.Sprintf("hbone: peer broke HTTP/3: %s (%#x)", v.text, v.code)
}

// streamError reports whether v is a stream error (RFC 9114 §8). Other violations are connection errors.
func (v *violation) streamError() bool { return v.code == codeMessage || v.code == codeExcessiveLoad }

func broke(code uint64, format string, args ...any) error {
	return &violation{code, fmt.Sprintf(format, args...)}
}

// frames reads the frames of one stream. It belongs to one goroutine.
type frames struct {
	r    *bufio.Reader
	left uint64 // payload bytes of the current frame that were not read yet
}

// newFrames reads ahead next to nothing: large payloads go past the buffer.
func newFrames(r io.Reader) *frames { return &frames{r: bufio.NewReaderSize(r, 512)} }

// next returns the type of the next frame; io.EOF at the end of the stream.
func (f *frames) next() (kind uint64, err error) {
	if _, err := f.r.Peek(1); err != nil {
		return 0, err
	}
	if kind, err = quicvarint.Read(f.r); err == nil {
		f.left, err = quicvarint.Read(f.r)
	}
	return kind, unexpectedEnd(err)
}

// whole returns the payload of the current frame, of at most max bytes. It holds what has arrived, not what the peer claims.
func (f *frames) whole(max int) ([]byte, error) {
	if f.left > uint64(max) {
		return nil, broke(codeExcessiveLoad, "frame of %d bytes, at most %d are accepted", f.left, max)
	}
	var b bytes.Buffer
	_, err := io.CopyN(&b, f.r, int64(f.left))
	f.left = 0
	return b.Bytes(), unexpectedEnd(err)
}

// skip drops the payload of the current frame.
func (f *frames) skip() error {
	for f.left > 0 {
		n, err := f.r.Discard(int(min(f.left, 1<<20)))
		f.left -= uint64(n)
		if err != nil {
			return unexpectedEnd(err)
		}
	}
	return nil
}

// data waits for payload of the next DATA frames and reports that there is some. It returns io.EOF
// at the end of the stream. Unknown frames are skipped. A CONNECT has no trailers (RFC 9114 §4.4).
func (f *frames) data() error {
	for f.left == 0 {
		kind, err := f.next()
		switch {
		case err != nil:
			return err
		case kind == frameData:
		case kind == frameReset:
			return f.reset()
		case kind == frameHeaders || forbidden(kind):
			return broke(codeFrameUnexpected, "frame of type %#x behind a CONNECT", kind)
		default:
			if err := f.skip(); err != nil {
				return err
			}
		}
	}
	return nil
}

// reset reads the payload of frameReset, and returns it as an error.
func (f *frames) reset() error {
	if f.left > 8 {
		return broke(codeFrame, "malformed reset")
	}
	b, err := f.whole(8)
	if err != nil {
		return err
	}
	code, _, err := quicvarint.Parse(b)
	if err != nil {
		return broke(codeFrame, "malformed reset")
	}
	return &quicgo.StreamError{ErrorCode: quicgo.StreamErrorCode(code), Remote: true}
}

// read is Read of payload, once data has returned nil.
func (f *frames) read(p []byte) (int, error) {
	n, err := f.r.Read(p[:min(uint64(len(p)), f.left)])
	f.left -= uint64(n)
	if n > 0 {
		return n, nil // an error comes again
	}
	return 0, unexpectedEnd(err)
}

// forbidden reports a frame that may not come on a request stream.
func forbidden(kind uint64) bool {
	switch kind {
	case frameCancelPush, frameSettings, framePushPromise, frameGoAway, frameMaxPushID, 0x2, 0x6, 0x8, 0x9:
		return true
	}
	return false
}

// unexpectedEnd is err inside a frame (RFC 9114 §7.1).
func unexpectedEnd(err error) error {
	if err == io.EOF {
		return broke(codeFrame, "truncated frame")
	}
	return err
}

// appendFrame appends a frame with its payload.
func appendFrame(b []byte, kind uint64, payload ...byte) []byte {
	b = quicvarint.Append(b, kind)
	b = quicvarint.Append(b, uint64(len(payload)))
	return append(b, payload...)
}

// dataFront is the room for the header of a DATA frame.
const dataFront = 1 + 4

// layoutData writes the header of a DATA frame in front of the n bytes at b[dataFront:] and
// returns the frame.
func layoutData(b []byte, n int) []byte {
	start := dataFront - 1 - quicvarint.Len(uint64(n))
	h := quicvarint.Append(b[start:start], frameData)
	quicvarint.Append(h, uint64(n))
	return b[start : dataFront+n]
}

var _ io.Reader = (*quicgo.Stream)(nil)
