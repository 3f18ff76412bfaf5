package h2conform

import (
	"slices"

	"golang.org/x/net/http2"
)

// Rows is the whole table, in the order of the sections.
var Rows = slices.Concat(connectionRows, frameRows, stateRows, settingsRows, flowRows, headerRows, connectRows)

const (
	protocol     = http2.ErrCodeProtocol
	flowControl  = http2.ErrCodeFlowControl
	streamClosed = http2.ErrCodeStreamClosed
	frameSize    = http2.ErrCodeFrameSize
	compression  = http2.ErrCodeCompression
	enhanceCalm  = http2.ErrCodeEnhanceYourCalm
)

const stricter = "§5.4.1 lets a stream error be treated as one of the connection: no peer of ours has reason to send this"

// §3.4, §4, §5.5: the preface, frames in general, header blocks.
var connectionRows = []Row{
	{Section: "§3.4", Name: "preface of HTTP/1", Side: Servers, State: Connected, Want: Ended,
		Because: "GOAWAY may be left out where the peer does not speak HTTP/2",
		Send:    func(x *Exchange) { x.conn.Write([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n")) }},
	{Section: "§3.4", Name: "first frame is PING", State: Prefaced, Want: Conn(protocol),
		Send: func(x *Exchange) { x.Raw(http2.FramePing, 0, 0, make([]byte, 8)...) }},
	{Section: "§3.4", Name: "first frame acknowledges SETTINGS", State: Prefaced, Want: Conn(protocol),
		Send: func(x *Exchange) { x.Raw(http2.FrameSettings, http2.FlagSettingsAck, 0) }},
	{Section: "§4.1", Name: "undefined flags", State: Quiet, Want: Nothing,
		Send: func(x *Exchange) { x.Raw(http2.FrameWindowUpdate, 0xff, x.ID, 0, 0, 0, 1) }},
	{Section: "§4.1", Name: "reserved bit of the stream identifier", State: Quiet, Want: Nothing,
		Send: func(x *Exchange) { x.Raw(http2.FrameWindowUpdate, 0, x.ID|1<<31, 0, 0, 0, 1) }},
	{Section: "§4.2", Name: "DATA larger than MAX_FRAME_SIZE", Want: Conn(frameSize),
		Because: "a stream error would do; " + stricter,
		Send: func(x *Exchange) {
			x.Raw(http2.FrameData, 0, x.ID, make([]byte, x.setting(http2.SettingMaxFrameSize)+1)...)
		}},
	{Section: "§4.2", Name: "unknown frame larger than MAX_FRAME_SIZE", State: Quiet, Want: Conn(frameSize),
		Send: func(x *Exchange) { x.Raw(0xee, 0, 0, make([]byte, x.setting(http2.SettingMaxFrameSize)+1)...) }},
	{Section: "§4.3", Name: "header block that cannot be decoded", State: Fresh, Want: Conn(compression),
		Send: func(x *Exchange) {
			x.Raw(http2.FrameHeaders, http2.FlagHeadersEndHeaders, x.ID, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)
		}},
	{Section: "§4.3", Name: "header block cut short", State: Fresh, Want: Conn(compression),
		Send: func(x *Exchange) { x.Raw(http2.FrameHeaders, http2.FlagHeadersEndHeaders, x.ID, 0x00, 0x05, 'a') }},
	{Section: "RFC 7541 §4.2", Name: "table larger than we allow", State: Fresh, Want: Conn(compression),
		Send: func(x *Exchange) { // size update to 1 MiB
			x.Raw(http2.FrameHeaders, http2.FlagHeadersEndHeaders, x.ID, 0x3f, 0xe1, 0xff, 0x3f)
		}},
	{Section: "RFC 7541 §2.3.3", Name: "index beyond the table", State: Fresh, Want: Conn(compression),
		Send: func(x *Exchange) { x.Raw(http2.FrameHeaders, http2.FlagHeadersEndHeaders, x.ID, 0xff, 0x20) }},
	{Section: "§5.5", Name: "unknown frame type", State: Quiet, Want: Nothing,
		Send: func(x *Exchange) { x.Raw(0xee, 0xff, x.ID, 1, 2, 3); x.Raw(0xee, 0, 0); x.Raw(0xee, 0, x.Idle()) }},
	{Section: "§5.5", Name: "unknown frame inside a header block", State: Fresh, Want: Conn(protocol),
		Send: func(x *Exchange) { x.unfinished(); x.Raw(0xee, 0, x.ID) }},
}

// unfinished sends HEADERS whose block goes on in CONTINUATION frames.
func (x *Exchange) unfinished() (rest []byte) {
	x.Write(func(fr *http2.Framer) {
		b := x.block(x.Head()...)
		fr.WriteHeaders(http2.HeadersFrameParam{StreamID: x.ID, BlockFragment: b[:3]})
		rest = b[3:]
	})
	return rest
}

// §6: rules of the frame types that do not depend on the state of a stream.
var frameRows = []Row{
	{Section: "§6.1", Name: "DATA on stream 0", State: Quiet, Want: Conn(protocol),
		Send: func(x *Exchange) { x.Raw(http2.FrameData, 0, 0, 'x') }},
	{Section: "§6.1", Name: "DATA with more padding than payload", Want: Conn(protocol),
		Send: func(x *Exchange) { x.Raw(http2.FrameData, http2.FlagDataPadded, x.ID, 3, 'a', 'b') }},
	{Section: "§6.1", Name: "DATA padded without a pad length", Want: Conn(frameSize),
		Send: func(x *Exchange) { x.Raw(http2.FrameData, http2.FlagDataPadded, x.ID) }},
	{Section: "§6.1", Name: "DATA of padding alone", State: Quiet, Want: Nothing,
		Send: func(x *Exchange) { x.Raw(http2.FrameData, http2.FlagDataPadded, x.ID, 2, 0, 0) }},
	{Section: "§6.2", Name: "HEADERS on stream 0", State: Quiet, Want: Conn(protocol),
		Send: func(x *Exchange) { x.Headers(0, false, x.Head()...) }},
	{Section: "§6.2", Name: "HEADERS with more padding than payload", State: Fresh, Want: Conn(protocol),
		Send: func(x *Exchange) {
			x.Raw(http2.FrameHeaders, http2.FlagHeadersPadded|http2.FlagHeadersEndHeaders, x.ID, 9, 0x88)
		}},
	{Section: "§6.2", Name: "HEADERS padded without a pad length", State: Fresh, Want: Conn(frameSize),
		Send: func(x *Exchange) {
			x.Raw(http2.FrameHeaders, http2.FlagHeadersPadded|http2.FlagHeadersEndHeaders, x.ID)
		}},
	{Section: "§6.2", Name: "HEADERS too short for their priority", State: Fresh, Want: Conn(frameSize),
		Send: func(x *Exchange) {
			x.Raw(http2.FrameHeaders, http2.FlagHeadersPriority|http2.FlagHeadersEndHeaders, x.ID, 0, 0, 0)
		}},
	{Section: "§6.2", Name: "DATA inside a header block", State: Fresh, Want: Conn(protocol),
		Send: func(x *Exchange) { x.unfinished(); x.Raw(http2.FrameData, 0, x.sibling.id, 'x') }},
	{Section: "§6.2", Name: "HEADERS inside a header block", State: Fresh, Want: Conn(protocol),
		Send: func(x *Exchange) { x.unfinished(); x.SendHead() }},
	{Section: "§6.3", Name: "PRIORITY on stream 0", State: Quiet, Want: Conn(protocol),
		Send: func(x *Exchange) { x.Raw(http2.FramePriority, 0, 0, 0, 0, 0, 3, 1) }},
	{Section: "§6.3", Name: "PRIORITY of four bytes", Want: Stream(frameSize),
		Send: func(x *Exchange) { x.Raw(http2.FramePriority, 0, x.ID, 0, 0, 0, 3) }},
	{Section: "§6.3", Name: "PRIORITY in any state", State: Quiet, Want: Nothing,
		Send: func(x *Exchange) {
			x.Raw(http2.FramePriority, 0, x.ID, 0, 0, 0, 3, 1)
			x.Raw(http2.FramePriority, 0, x.Idle(), 0, 0, 0, 3, 1)
			x.Raw(http2.FramePriority, 0, x.Idle(), 0, 0, 0, 3)
			x.Raw(http2.FramePriority, 0, 2, 0, 0, 0, 3, 1)
		}},
	{Section: "§5.3.1", Name: "stream that depends on itself", State: Quiet, Want: Nothing,
		Because: "RFC 9113 has deprecated priorities: what they say is not looked at",
		Send: func(x *Exchange) {
			b := []byte{byte(x.ID >> 24), byte(x.ID >> 16), byte(x.ID >> 8), byte(x.ID), 1}
			x.Raw(http2.FramePriority, 0, x.ID, b...)
		}},
	{Section: "§6.4", Name: "RST_STREAM on stream 0", State: Quiet, Want: Conn(protocol),
		Send: func(x *Exchange) { x.Raw(http2.FrameRSTStream, 0, 0, 0, 0, 0, 8) }},
	{Section: "§6.4", Name: "RST_STREAM of three bytes", Want: Conn(frameSize),
		Send: func(x *Exchange) { x.Raw(http2.FrameRSTStream, 0, x.ID, 0, 0, 8) }},
	{Section: "§7", Name: "RST_STREAM with an unknown code", Want: Nothing,
		Send: func(x *Exchange) { x.Raw(http2.FrameRSTStream, 0, x.ID, 0x77, 0, 0, 8) }},
	{Section: "§6.6", Name: "PUSH_PROMISE", State: Open, Want: Conn(protocol),
		Send: func(x *Exchange) {
			x.Write(func(fr *http2.Framer) {
				fr.WritePushPromise(http2.PushPromiseParam{StreamID: x.ID, PromiseID: 2, BlockFragment: x.block(":method", "GET"), EndHeaders: true})
			})
		}},
	{Section: "§6.7", Name: "PING on a stream", State: Quiet, Want: Conn(protocol),
		Send: func(x *Exchange) { x.Raw(http2.FramePing, 0, x.ID, make([]byte, 8)...) }},
	{Section: "§6.7", Name: "PING of seven bytes", State: Quiet, Want: Conn(frameSize),
		Send: func(x *Exchange) { x.Raw(http2.FramePing, 0, 0, make([]byte, 7)...) }},
	{Section: "§6.7", Name: "answer to no PING", State: Quiet, Want: Nothing,
		Send: func(x *Exchange) { x.Raw(http2.FramePing, http2.FlagPingAck, 0, make([]byte, 8)...) }},
	{Section: "§6.8", Name: "GOAWAY on a stream", State: Quiet, Want: Conn(protocol),
		Send: func(x *Exchange) { x.Raw(http2.FrameGoAway, 0, x.ID, make([]byte, 8)...) }},
	{Section: "§6.8", Name: "GOAWAY of seven bytes", State: Quiet, Want: Conn(frameSize),
		Send: func(x *Exchange) { x.Raw(http2.FrameGoAway, 0, 0, make([]byte, 7)...) }},
	{Section: "§6.8", Name: "GOAWAY from a client", Side: Servers, State: Quiet, Want: Nothing,
		Because: "it refuses streams that the server would open, of which there are none",
		Send:    func(x *Exchange) { x.Raw(http2.FrameGoAway, 0, 0, make([]byte, 8)...) }},
	{Section: "§6.10", Name: "CONTINUATION of nothing", Want: Conn(protocol),
		Send: func(x *Exchange) { x.Raw(http2.FrameContinuation, http2.FlagContinuationEndHeaders, x.ID, 0x88) }},
	{Section: "§6.10", Name: "CONTINUATION on stream 0", State: Quiet, Want: Conn(protocol),
		Send: func(x *Exchange) { x.Raw(http2.FrameContinuation, http2.FlagContinuationEndHeaders, 0, 0x88) }},
	{Section: "§6.10", Name: "CONTINUATION of another stream", State: Fresh, Want: Conn(protocol),
		Send: func(x *Exchange) {
			rest := x.unfinished()
			x.Raw(http2.FrameContinuation, http2.FlagContinuationEndHeaders, x.sibling.id, rest...)
		}},
	{Section: "§6.10", Name: "CONTINUATION behind END_HEADERS", State: Fresh, Want: Conn(protocol),
		Send: func(x *Exchange) {
			x.SendHead()
			x.Raw(http2.FrameContinuation, http2.FlagContinuationEndHeaders, x.ID, 0x88)
		}},
	{Section: "§6.10", Name: "header block in three frames", State: Fresh, Want: Nothing,
		Send: func(x *Exchange) {
			rest := x.unfinished()
			x.Raw(http2.FrameContinuation, 0, x.ID, rest[:1]...)
			x.Raw(http2.FrameContinuation, http2.FlagContinuationEndHeaders, x.ID, rest[1:]...)
		}},
	{Section: "§10.5.1", Name: "CONTINUATION without end", State: Fresh, Want: Conn(enhanceCalm),
		Send: func(x *Exchange) {
			x.unfinished()
			for range 1000 {
				x.Raw(http2.FrameContinuation, 0, x.ID)
			}
		}},
}
