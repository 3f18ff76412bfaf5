package h2conform

import "golang.org/x/net/http2"

const forgotten = "§5.1 allows a connection error on closed streams; the frame may have crossed our own reset or end, and closed streams are forgotten"

// §5.1: states and identifiers of streams.
var stateRows = []Row{
	{Section: "§5.1", Name: "DATA on an idle stream", State: Quiet, Want: Conn(protocol),
		Send: func(x *Exchange) { x.Raw(http2.FrameData, 0, x.Idle(), 'x') }},
	{Section: "§5.1", Name: "RST_STREAM on an idle stream", State: Quiet, Want: Conn(protocol),
		Send: func(x *Exchange) { x.Raw(http2.FrameRSTStream, 0, x.Idle(), 0, 0, 0, 8) }},
	{Section: "§5.1", Name: "WINDOW_UPDATE on an idle stream", State: Quiet, Want: Conn(protocol),
		Send: func(x *Exchange) { x.Raw(http2.FrameWindowUpdate, 0, x.Idle(), 0, 0, 0, 1) }},
	{Section: "§5.1", Name: "WINDOW_UPDATE of 0 on an idle stream", State: Quiet, Want: Conn(protocol),
		Send: func(x *Exchange) { x.Raw(http2.FrameWindowUpdate, 0, x.Idle(), 0, 0, 0, 0) }},
	{Section: "§5.1", Name: "DATA on a stream of the other side", State: Quiet, Want: Conn(protocol),
		Send: func(x *Exchange) { x.Raw(http2.FrameData, 0, 2, 'x') }},
	{Section: "§5.1", Name: "HEADERS on an idle stream", Side: Clients, State: Quiet, Want: Conn(protocol),
		Send: func(x *Exchange) { x.Headers(x.Idle(), false, x.Head()...) }},
	{Section: "§5.1", Name: "malformed HEADERS on an idle stream", Side: Clients, State: Quiet, Want: Conn(protocol),
		Send: func(x *Exchange) { x.Headers(x.Idle(), false, "Upper", "case") }},
	{Section: "§5.1", Name: "DATA behind END_STREAM", State: HalfClosed, Want: Stream(streamClosed),
		Send: func(x *Exchange) { x.Raw(http2.FrameData, 0, x.ID, 'x') }},
	{Section: "§5.1", Name: "empty DATA behind END_STREAM", State: HalfClosed, Want: Stream(streamClosed),
		Send: func(x *Exchange) { x.Raw(http2.FrameData, http2.FlagDataEndStream, x.ID) }},
	{Section: "§5.1", Name: "HEADERS behind END_STREAM", State: HalfClosed, Want: Stream(streamClosed),
		Send: func(x *Exchange) { x.Headers(x.ID, true, "x", "y") }},
	{Section: "§5.1", Name: "WINDOW_UPDATE, PRIORITY and RST_STREAM behind END_STREAM", State: HalfClosed, Want: Nothing,
		Send: func(x *Exchange) {
			x.Raw(http2.FrameWindowUpdate, 0, x.ID, 0, 0, 0, 1)
			x.Raw(http2.FramePriority, 0, x.ID, 0, 0, 0, 3, 1)
			x.Raw(http2.FrameRSTStream, 0, x.ID, 0, 0, 0, 8)
		}},
	{Section: "§5.1", Name: "DATA behind RST_STREAM", State: Reset, Want: Nothing, Because: forgotten,
		Send: func(x *Exchange) { x.Raw(http2.FrameData, 0, x.ID, 'x') }},
	{Section: "§5.1", Name: "trailers behind RST_STREAM", State: Reset, Want: Nothing, Because: forgotten,
		Send: func(x *Exchange) { x.Headers(x.ID, true, "x", "y") }},
	{Section: "§5.1", Name: "WINDOW_UPDATE and RST_STREAM behind RST_STREAM", State: Reset, Want: Nothing, Because: forgotten,
		Send: func(x *Exchange) {
			x.Raw(http2.FrameWindowUpdate, 0, x.ID, 0, 0, 0, 1)
			x.Raw(http2.FrameRSTStream, 0, x.ID, 0, 0, 0, 8)
		}},
	{Section: "§5.1", Name: "frames that cross our reset", Want: Stream(protocol),
		Send: func(x *Exchange) {
			x.Raw(http2.FrameWindowUpdate, 0, x.ID, 0, 0, 0, 0) // provokes it
			x.Raw(http2.FrameData, 0, x.ID, 'x')
			x.Raw(http2.FrameWindowUpdate, 0, x.ID, 0, 0, 0, 0)
			x.Headers(x.ID, true, "x", "y")
		}},
	{Section: "§5.1.1", Name: "request on an even stream", Side: Servers, State: Quiet, Want: Conn(protocol),
		Send: func(x *Exchange) { x.Headers(2, false, x.Head()...) }},
	{Section: "§5.1.1", Name: "malformed request on an even stream", Side: Servers, State: Quiet, Want: Conn(protocol),
		Send: func(x *Exchange) { x.Headers(2, false, append(x.Head(), "Upper", "case")...) }},
	{Section: "§5.1.1", Name: "request on a stream that was skipped", Side: Servers, State: Quiet, Want: Conn(protocol),
		Send: func(x *Exchange) {
			skipped := x.newID()
			x.stream()
			x.Headers(skipped, false, x.Head()...)
		}},
	{Section: "§5.1.1", Name: "request on a closed stream", Side: Servers, State: Reset, Want: Conn(protocol),
		Send: func(x *Exchange) { x.Headers(x.ID, false, x.Head()...) }},
	{Section: "§5.1.1", Name: "HEADERS on an even stream", Side: Clients, State: Quiet, Want: Conn(protocol),
		Send: func(x *Exchange) { x.Headers(2, false, x.Head()...) }},
	{Section: "§5.1.2", Name: "more streams than MAX_CONCURRENT_STREAMS", Side: Servers, State: Quiet, Want: Stream(http2.ErrCodeRefusedStream),
		Only: func(x *Exchange) bool { return x.setting(http2.SettingMaxConcurrentStreams) <= 200 },
		Send: func(x *Exchange) {
			var opened []stream
			for range x.setting(http2.SettingMaxConcurrentStreams) - 1 {
				opened = append(opened, x.stream())
			}
			x.ID = x.newID()
			x.SendHead()
			for _, s := range opened { // room for the new stream that is tried afterwards
				x.Raw(http2.FrameRSTStream, 0, s.id, 0, 0, 0, 8)
			}
			x.settle()
		}},
}

// §6.5: SETTINGS.
var settingsRows = []Row{
	{Section: "§6.5", Name: "SETTINGS on a stream", State: Quiet, Want: Conn(protocol),
		Send: func(x *Exchange) { x.Raw(http2.FrameSettings, 0, x.ID) }},
	{Section: "§6.5", Name: "SETTINGS of five bytes", State: Quiet, Want: Conn(frameSize),
		Send: func(x *Exchange) { x.Raw(http2.FrameSettings, 0, 0, make([]byte, 5)...) }},
	{Section: "§6.5", Name: "acknowledgement with a payload", State: Quiet, Want: Conn(frameSize),
		Send: func(x *Exchange) { x.Raw(http2.FrameSettings, http2.FlagSettingsAck, 0, make([]byte, 6)...) }},
	{Section: "§6.5.2", Name: "ENABLE_PUSH 2", State: Quiet, Want: Conn(protocol), Send: settings(http2.SettingEnablePush, 2)},
	{Section: "§6.5.2", Name: "ENABLE_PUSH 1 from a server", Side: Clients, State: Quiet, Want: Conn(protocol), Send: settings(http2.SettingEnablePush, 1)},
	{Section: "§6.5.2", Name: "ENABLE_PUSH 1 from a client", Side: Servers, State: Quiet, Want: Nothing, Send: settings(http2.SettingEnablePush, 1)},
	{Section: "§6.5.2", Name: "INITIAL_WINDOW_SIZE of 2^31", State: Quiet, Want: Conn(flowControl), Send: settings(http2.SettingInitialWindowSize, 1<<31)},
	{Section: "§6.5.2", Name: "MAX_FRAME_SIZE of 16383", State: Quiet, Want: Conn(protocol), Send: settings(http2.SettingMaxFrameSize, 16383)},
	{Section: "§6.5.2", Name: "MAX_FRAME_SIZE of 2^24", State: Quiet, Want: Conn(protocol), Send: settings(http2.SettingMaxFrameSize, 1<<24)},
	{Section: "§6.5.2", Name: "unknown setting", State: Quiet, Want: Nothing, Send: settings(0x99, 1)},
	{Section: "RFC 8441 §3", Name: "ENABLE_CONNECT_PROTOCOL 2", State: Quiet, Want: Conn(protocol), Send: settings(http2.SettingEnableConnectProtocol, 2)},
	{Section: "RFC 8441 §3", Name: "ENABLE_CONNECT_PROTOCOL 1, then 0", State: Quiet, Want: Nothing,
		Because: "the RFC names no error, and we never use extended CONNECT",
		Send: func(x *Exchange) {
			settings(http2.SettingEnableConnectProtocol, 1)(x)
			settings(http2.SettingEnableConnectProtocol, 0)(x)
		}},
	{Section: "§6.5.3", Name: "every SETTINGS is acknowledged", State: Quiet, Want: Nothing,
		Send: func(x *Exchange) {
			x.must(x.sync()) // the first one is behind us
			from := x.mark()
			for range 3 {
				settings(http2.SettingInitialWindowSize, 70_000)(x)
			}
			x.must(x.sync())
			n := 0
			x.await(from, func(f Frame) bool {
				if f.Type == http2.FrameSettings && f.Flags.Has(http2.FlagSettingsAck) {
					n++
				}
				return f.Type == http2.FramePing
			})
			if n != 3 {
				x.t.Errorf("%d acknowledgements of 3 SETTINGS", n)
			}
		}},
}

func settings(id http2.SettingID, v uint32) func(*Exchange) {
	return func(x *Exchange) {
		x.Write(func(fr *http2.Framer) { fr.WriteSettings(http2.Setting{ID: id, Val: v}) })
	}
}

// §6.9: flow control.
var flowRows = []Row{
	{Section: "§6.9", Name: "WINDOW_UPDATE of 0", Want: Stream(protocol),
		Send: func(x *Exchange) { x.Raw(http2.FrameWindowUpdate, 0, x.ID, 0, 0, 0, 0) }},
	{Section: "§6.9", Name: "WINDOW_UPDATE of 0 for the connection", State: Quiet, Want: Conn(protocol),
		Send: func(x *Exchange) { x.Raw(http2.FrameWindowUpdate, 0, 0, 0, 0, 0, 0) }},
	{Section: "§6.9", Name: "WINDOW_UPDATE of three bytes", Want: Conn(frameSize),
		Send: func(x *Exchange) { x.Raw(http2.FrameWindowUpdate, 0, x.ID, 0, 0, 1) }},
	{Section: "§6.9", Name: "reserved bit of the increment", State: Quiet, Want: Nothing,
		Send: func(x *Exchange) { x.Raw(http2.FrameWindowUpdate, 0, x.ID, 0x80, 0, 0, 1) }},
	{Section: "§6.9.1", Name: "window of a stream beyond 2^31-1", Want: Stream(flowControl),
		Send: func(x *Exchange) { x.Raw(http2.FrameWindowUpdate, 0, x.ID, 0x7f, 0xff, 0xff, 0xff) }},
	{Section: "§6.9.1", Name: "window of the connection beyond 2^31-1", State: Quiet, Want: Conn(flowControl),
		Send: func(x *Exchange) { x.Raw(http2.FrameWindowUpdate, 0, 0, 0x7f, 0xff, 0xff, 0xff) }},
	{Section: "§6.9.1", Name: "DATA beyond the window of the stream", Want: Stream(flowControl),
		Only: func(x *Exchange) bool { return x.client }, // where nobody reads at the other end
		Send: func(x *Exchange) { x.flood(x.ID) }},
	{Section: "§6.9.1", Name: "DATA beyond the window of the connection", Side: Servers, Want: Conn(flowControl),
		Only: func(x *Exchange) bool { return x.smallWindow() },
		Send: func(x *Exchange) {
			other := x.stream()
			x.must(other.echo(keepOpen))
			n := int(x.setting(http2.SettingInitialWindowSize))
			for _, id := range []uint32{x.ID, other.id} {
				for left := n - 2*len(keepOpen); left > 0; left -= 16384 {
					x.Raw(http2.FrameData, 0, id, make([]byte, min(left, 16384))...)
				}
			}
		}},
	{Section: "§6.9.2", Name: "SETTINGS move a window beyond 2^31-1", Want: Conn(flowControl),
		Send: func(x *Exchange) {
			x.Raw(http2.FrameWindowUpdate, 0, x.ID, 0x7f, 0xfe, 0xff, 0xff)
			settings(http2.SettingInitialWindowSize, 1<<20)(x)
		}},
	{Section: "§6.9.2", Name: "SETTINGS make windows negative and whole again", State: Quiet, Want: Nothing,
		Send: func(x *Exchange) {
			settings(http2.SettingInitialWindowSize, 0)(x)
			settings(http2.SettingInitialWindowSize, 65535)(x)
		}},
	{Section: "§6.9.1", Name: "empty DATA needs no window", State: Quiet, Want: Nothing,
		Send: func(x *Exchange) { x.Raw(http2.FrameData, 0, x.ID) }},
}

// smallWindow says that two streams that nobody reads can use up the window of
// the connection.
func (x *Exchange) smallWindow() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, f := range x.frames {
		if f.Type == http2.FrameWindowUpdate && f.StreamID == 0 {
			return f.N < x.settings[http2.SettingInitialWindowSize]
		}
	}
	return true
}

// flood sends DATA until the endpoint has had enough: more than fits into the
// window and what lies behind it.
func (x *Exchange) flood(id uint32) {
	from := x.mark()
	piece := make([]byte, 16384)
	for range 4096 { // 64 MiB
		x.Raw(http2.FrameData, 0, id, piece...)
		x.mu.Lock()
		over := x.err != nil
		for _, f := range x.frames[from:] {
			over = over || f.Type == http2.FrameRSTStream || f.Type == http2.FrameGoAway
		}
		x.mu.Unlock()
		if over {
			return
		}
	}
}

// settle waits until streams that were reset are gone: handlers end behind the
// answer to a PING.
func (x *Exchange) settle() {
	for range 100 {
		x.must(x.sync())
		from := x.mark()
		id := x.newID()
		x.Headers(id, false, x.Head()...)
		f, ok := x.await(from, func(f Frame) bool { return f.decides(id) })
		x.Raw(http2.FrameRSTStream, 0, id, 0, 0, 0, 8)
		if ok && f.Type == http2.FrameHeaders {
			return
		}
	}
}
