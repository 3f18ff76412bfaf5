package wire

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

// Frame types and flags of RFC 9113 §6, as bytes for headers written by hand.
const (
	FrameData         = byte(http2.FrameData)
	FrameHeaders      = byte(http2.FrameHeaders)
	FramePriority     = byte(http2.FramePriority)
	FrameRST          = byte(http2.FrameRSTStream)
	FrameSettings     = byte(http2.FrameSettings)
	FramePush         = byte(http2.FramePushPromise)
	FramePing         = byte(http2.FramePing)
	FrameGoAway       = byte(http2.FrameGoAway)
	FrameWindowUpdate = byte(http2.FrameWindowUpdate)
	FrameContinuation = byte(http2.FrameContinuation)

	// FrameWithdraw asks a server that has informed a stream to answer it without serving
	// it; it has no payload. The type is one of those for experiments (RFC 7540 §11.2), which
	// whoever does not know it ignores (RFC 9113 §5.5).
	FrameWithdraw = byte(0xf1)

	FlagEndStream  = byte(http2.FlagDataEndStream)
	FlagAck        = byte(http2.FlagSettingsAck)
	FlagEndHeaders = byte(http2.FlagHeadersEndHeaders)
	FlagPadded     = byte(http2.FlagDataPadded)
	FlagPriority   = byte(http2.FlagHeadersPriority)
)

// Header is a parsed frame header.
type Header struct {
	Length int // bytes of payload
	Kind   byte
	Flags  byte
	ID     uint32 // of the stream, 0: of the connection
}

func ParseHeader(b []byte) Header {
	_ = b[8]
	return Header{
		Length: int(b[0])<<16 | int(b[1])<<8 | int(b[2]),
		Kind:   b[3],
		Flags:  b[4],
		ID:     binary.BigEndian.Uint32(b[5:9]) & MaxStreamID,
	}
}

func PutHeader(b []byte, length int, kind, flags byte, id uint32) {
	_ = b[8]
	b[0], b[1], b[2] = byte(length>>16), byte(length>>8), byte(length)
	b[3], b[4] = kind, flags
	binary.BigEndian.PutUint32(b[5:9], id)
}

func AppendHeader(b []byte, length int, kind, flags byte, id uint32) []byte {
	var h [HeaderLen]byte
	PutHeader(h[:], length, kind, flags, id)
	return append(b, h[:]...)
}

func AppendRST(b []byte, id uint32, code http2.ErrCode) []byte {
	b = AppendHeader(b, 4, FrameRST, 0, id)
	return binary.BigEndian.AppendUint32(b, uint32(code))
}

func AppendWindowUpdate(b []byte, id uint32, n int) []byte {
	b = AppendHeader(b, 4, FrameWindowUpdate, 0, id)
	return binary.BigEndian.AppendUint32(b, uint32(n))
}

func AppendPing(b []byte, ack bool, data [8]byte) []byte {
	var flags byte
	if ack {
		flags = FlagAck
	}
	b = AppendHeader(b, 8, FramePing, flags, 0)
	return append(b, data[:]...)
}

func AppendGoAway(b []byte, last uint32, code http2.ErrCode, debug string) []byte {
	b = AppendHeader(b, 8+len(debug), FrameGoAway, 0, 0)
	b = binary.BigEndian.AppendUint32(b, last)
	b = binary.BigEndian.AppendUint32(b, uint32(code))
	return append(b, debug...)
}

func AppendSettings(b []byte, settings ...http2.Setting) []byte {
	b = AppendHeader(b, 6*len(settings), FrameSettings, 0, 0)
	for _, s := range settings {
		b = binary.BigEndian.AppendUint16(b, uint16(s.ID))
		b = binary.BigEndian.AppendUint32(b, s.Val)
	}
	return b
}

// AppendHeaderBlock appends block as HEADERS and, beyond max bytes,
// CONTINUATION frames.
func AppendHeaderBlock(b []byte, id uint32, block []byte, endStream bool, max int) []byte {
	kind, flags := FrameHeaders, byte(0)
	if endStream {
		flags = FlagEndStream
	}
	for {
		n := min(len(block), max)
		if n == len(block) {
			flags |= FlagEndHeaders
		}
		b = AppendHeader(b, n, kind, flags, id)
		b = append(b, block[:n]...)
		block = block[n:]
		if len(block) == 0 {
			return b
		}
		kind, flags = FrameContinuation, 0
	}
}

// CheckPadding looks at a whole HEADERS frame before its block is decoded: with
// padding that does not fit the block cannot be, and both tables would differ
// from then on (the Framer makes it a stream error).
func CheckPadding(h Header, payload []byte) error {
	if h.Flags&FlagPadded == 0 || len(payload) == 0 {
		return nil // without a pad length it is for the Framer
	}
	room := len(payload) - 1
	if h.Flags&FlagPriority != 0 {
		room -= 5
	}
	if pad := int(payload[0]); pad > room {
		return ConnError(http2.ErrCodeProtocol, "padding of %d bytes exceeds the frame", pad)
	}
	return nil
}
