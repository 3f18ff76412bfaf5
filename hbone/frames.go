package hbone

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

// Frame types and flags of RFC 9113 §6, as bytes for headers written by hand.
const (
	frameData         = byte(http2.FrameData)
	frameHeaders      = byte(http2.FrameHeaders)
	framePriority     = byte(http2.FramePriority)
	frameRST          = byte(http2.FrameRSTStream)
	frameSettings     = byte(http2.FrameSettings)
	framePush         = byte(http2.FramePushPromise)
	framePing         = byte(http2.FramePing)
	frameGoAway       = byte(http2.FrameGoAway)
	frameWindowUpdate = byte(http2.FrameWindowUpdate)
	frameContinuation = byte(http2.FrameContinuation)

	flagEndStream  = byte(http2.FlagDataEndStream)
	flagAck        = byte(http2.FlagSettingsAck)
	flagEndHeaders = byte(http2.FlagHeadersEndHeaders)
	flagPadded     = byte(http2.FlagDataPadded)
	flagPriority   = byte(http2.FlagHeadersPriority)
)

// frameHeader is a parsed frame header.
type frameHeader struct {
	length int
	kind   byte
	flags  byte
	id     uint32
}

func parseHeader(b []byte) frameHeader {
	_ = b[8]
	return frameHeader{
		length: int(b[0])<<16 | int(b[1])<<8 | int(b[2]),
		kind:   b[3],
		flags:  b[4],
		id:     binary.BigEndian.Uint32(b[5:9]) & maxStreamID,
	}
}

func putHeader(b []byte, length int, kind, flags byte, id uint32) {
	_ = b[8]
	b[0], b[1], b[2] = byte(length>>16), byte(length>>8), byte(length)
	b[3], b[4] = kind, flags
	binary.BigEndian.PutUint32(b[5:9], id)
}

func appendHeader(b []byte, length int, kind, flags byte, id uint32) []byte {
	var h [frameHeaderLen]byte
	putHeader(h[:], length, kind, flags, id)
	return append(b, h[:]...)
}

func appendRST(b []byte, id uint32, code http2.ErrCode) []byte {
	b = appendHeader(b, 4, frameRST, 0, id)
	return binary.BigEndian.AppendUint32(b, uint32(code))
}

func appendWindowUpdate(b []byte, id uint32, n int) []byte {
	b = appendHeader(b, 4, frameWindowUpdate, 0, id)
	return binary.BigEndian.AppendUint32(b, uint32(n))
}

func appendPing(b []byte, ack bool, data [8]byte) []byte {
	var flags byte
	if ack {
		flags = flagAck
	}
	b = appendHeader(b, 8, framePing, flags, 0)
	return append(b, data[:]...)
}

func appendGoAway(b []byte, last uint32, code http2.ErrCode, debug string) []byte {
	b = appendHeader(b, 8+len(debug), frameGoAway, 0, 0)
	b = binary.BigEndian.AppendUint32(b, last)
	b = binary.BigEndian.AppendUint32(b, uint32(code))
	return append(b, debug...)
}

func appendSettings(b []byte, settings ...http2.Setting) []byte {
	b = appendHeader(b, 6*len(settings), frameSettings, 0, 0)
	for _, s := range settings {
		b = binary.BigEndian.AppendUint16(b, uint16(s.ID))
		b = binary.BigEndian.AppendUint32(b, s.Val)
	}
	return b
}

// appendHeaderBlock appends block as HEADERS and, beyond max bytes,
// CONTINUATION frames.
func appendHeaderBlock(b []byte, id uint32, block []byte, endStream bool, max int) []byte {
	kind, flags := frameHeaders, byte(0)
	if endStream {
		flags = flagEndStream
	}
	for {
		n := min(len(block), max)
		if n == len(block) {
			flags |= flagEndHeaders
		}
		b = appendHeader(b, n, kind, flags, id)
		b = append(b, block[:n]...)
		block = block[n:]
		if len(block) == 0 {
			return b
		}
		kind, flags = frameContinuation, 0
	}
}
