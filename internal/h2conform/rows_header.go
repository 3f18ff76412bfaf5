package h2conform

import (
	"strings"

	"golang.org/x/net/http2"
)

// malformed is a header list with a field that must not be there.
func malformed(section, name, field, value string) Row {
	return Row{Section: section, Name: name, State: Fresh, Want: Stream(protocol), Send: func(x *Exchange) { x.SendHead(field, value) }}
}

// §8.1, §8.2, §10.5.1: header lists.
var headerRows = []Row{
	malformed("§8.2.1", "upper case in a name", "Baggage", "x"),
	malformed("§8.2.1", "space in a name", "a b", "x"),
	malformed("§8.2.1", "colon in a name", "a:b", "x"),
	malformed("§8.2.1", "control character in a name", "a\x01b", "x"),
	malformed("§8.2.1", "DEL in a name", "a\x7fb", "x"),
	malformed("§8.2.1", "byte above ASCII in a name", "a\xe4", "x"),
	malformed("§8.2.1", "empty name", "", "x"),
	malformed("§8.2.1", "NUL in a value", "x", "a\x00b"),
	malformed("§8.2.1", "line feed in a value", "x", "a\nb"),
	malformed("§8.2.1", "carriage return in a value", "x", "a\rb"),
	malformed("§8.2.1", "space before a value", "x", " a"),
	malformed("§8.2.1", "tab behind a value", "x", "a\t"),
	malformed("§8.2.2", "connection", "connection", "close"),
	malformed("§8.2.2", "proxy-connection", "proxy-connection", "close"),
	malformed("§8.2.2", "keep-alive", "keep-alive", "1"),
	malformed("§8.2.2", "transfer-encoding", "transfer-encoding", "chunked"),
	malformed("§8.2.2", "upgrade", "upgrade", "h2c"),
	malformed("§8.2.2", "te that is not trailers", "te", "gzip"),
	{Section: "§8.2.2", Name: "te: trailers", State: Fresh, Side: Servers, Want: Nothing, Send: func(x *Exchange) { x.SendHead("te", "trailers") }},
	{Section: "§8.2.1", Name: "empty value, inner spaces, bytes above ASCII", State: Fresh, Want: Nothing,
		Send: func(x *Exchange) { x.SendHead("x", "", "y", "a \t b", "z", "\xe4") }},
	{Section: "§8.1.1", Name: "content-length", State: Fresh, Want: Nothing,
		Because: "RFC 9110 §9.3.6: there is no content on a tunnel that a length could be of; a client must ignore it",
		Send:    func(x *Exchange) { x.SendHead("content-length", "5") }},
	malformed("§8.3", "unknown pseudo-header", ":bogus", "x"),
	{Section: "§8.3", Name: "pseudo-header behind a field", State: Fresh, Want: Stream(protocol),
		Send: func(x *Exchange) { x.Headers(x.ID, false, append([]string{"x", "y"}, x.Head()...)...) }},
	{Section: "§8.3", Name: "pseudo-header twice", State: Fresh, Want: Stream(protocol),
		Send: func(x *Exchange) { x.Headers(x.ID, false, append(x.Head(), x.Head()[:2]...)...) }},
	{Section: "§8.3", Name: ":status in a request", Side: Servers, State: Fresh, Want: Stream(protocol),
		Send: func(x *Exchange) { x.Headers(x.ID, false, append(x.Head(), ":status", "200")...) }},
	{Section: "§8.3", Name: ":method in an answer", Side: Clients, State: Fresh, Want: Stream(protocol),
		Send: func(x *Exchange) { x.Headers(x.ID, false, append(x.Head(), ":method", "GET")...) }},
	{Section: "§8.3.2", Name: "request instead of an answer", Side: Clients, State: Fresh, Want: Stream(protocol),
		Send: func(x *Exchange) { x.Headers(x.ID, false, ":method", "CONNECT", ":authority", "a:1") }},
	{Section: "§8.3.2", Name: "answer without :status", Side: Clients, State: Fresh, Want: Stream(protocol),
		Send: func(x *Exchange) { x.Headers(x.ID, false, "x", "y") }},
	{Section: "§8.3.2", Name: ":status that is no number", Side: Clients, State: Fresh, Want: Stream(protocol),
		Send: func(x *Exchange) { x.Headers(x.ID, false, ":status", "abc") }},
	{Section: "§8.3.2", Name: ":status of two digits", Side: Clients, State: Fresh, Want: Stream(protocol),
		Send: func(x *Exchange) { x.Headers(x.ID, false, ":status", "20") }},
	{Section: "§8.3.2", Name: ":status with a sign", Side: Clients, State: Fresh, Want: Stream(protocol),
		Send: func(x *Exchange) { x.Headers(x.ID, false, ":status", "+200") }},
	{Section: "§8.1", Name: "informational answers before the answer", Side: Clients, State: Fresh, Want: Nothing,
		Send: func(x *Exchange) {
			x.Headers(x.ID, false, ":status", "103")
			x.Headers(x.ID, false, ":status", "100", "x", "y")
			x.Headers(x.ID, false, ":status", "200")
		}},
	{Section: "§8.1", Name: "informational answer with END_STREAM", Side: Clients, State: Fresh, Want: Stream(protocol),
		Send: func(x *Exchange) { x.Headers(x.ID, true, ":status", "103") }},
	{Section: "§8.6", Name: "101", Side: Clients, State: Fresh, Want: Stream(protocol),
		Send: func(x *Exchange) { x.Headers(x.ID, false, ":status", "101") }},
	{Section: "§8.1", Name: "DATA before the answer", Side: Clients, State: Fresh, Want: Stream(protocol),
		Send: func(x *Exchange) { x.Raw(http2.FrameData, 0, x.ID, 'x') }},
	{Section: "§8.1", Name: "second HEADERS without END_STREAM", Want: Stream(protocol),
		Send: func(x *Exchange) { x.Headers(x.ID, false, "x", "y") }},
	{Section: "§8.1", Name: "trailers with a pseudo-header", Want: Stream(protocol),
		Send: func(x *Exchange) { x.Headers(x.ID, true, x.Head()...) }},
	{Section: "§8.1", Name: "trailers with upper case", Want: Stream(protocol),
		Send: func(x *Exchange) { x.Headers(x.ID, true, "X", "y") }},
	{Section: "§8.2.2", Name: "trailers with connection", Want: Stream(protocol),
		Send: func(x *Exchange) { x.Headers(x.ID, true, "connection", "close") }},
	{Section: "§10.5.1", Name: "header list larger than MAX_HEADER_LIST_SIZE", Side: Servers, State: Fresh, Want: Status("431"),
		Send: func(x *Exchange) { x.sendLarge() }},
	{Section: "§10.5.1", Name: "header list larger than MAX_HEADER_LIST_SIZE", Side: Clients, State: Fresh, Want: Stream(protocol),
		Send: func(x *Exchange) { x.sendLarge() }},
}

// sendLarge sends a header list that is a little larger than announced, in
// frames of 16 KiB.
func (x *Exchange) sendLarge() {
	kv := x.Head()
	for n := int(x.setting(http2.SettingMaxHeaderListSize)); n > 0; n -= 1000 {
		kv = append(kv, "x", strings.Repeat("y", 1000))
	}
	x.Write(func(fr *http2.Framer) {
		b := x.block(kv...)
		fr.WriteHeaders(http2.HeadersFrameParam{StreamID: x.ID, BlockFragment: b[:min(len(b), 16384)], EndHeaders: len(b) <= 16384})
		for b = b[min(len(b), 16384):]; len(b) > 0; b = b[min(len(b), 16384):] {
			fr.WriteContinuation(x.ID, len(b) <= 16384, b[:min(len(b), 16384)])
		}
	})
}

const answered = "§8.1.1 lets a server answer before it ends the stream: 400 is what stock peers send, and says more than a reset"

func request(section, name, because string, want Want, kv ...string) Row {
	return Row{Section: section, Name: name, Side: Servers, State: Fresh, Want: want, Because: because,
		Send: func(x *Exchange) { x.Headers(x.ID, false, kv...) }}
}

// §8.5 and RFC 8441: CONNECT.
var connectRows = []Row{
	request("§8.5", "CONNECT with :scheme and :path", answered, Status("400"), ":method", "CONNECT", ":authority", "a:1", ":scheme", "https", ":path", "/"),
	request("§8.5", "CONNECT with :path", answered, Status("400"), ":method", "CONNECT", ":authority", "a:1", ":path", "/"),
	request("§8.5", "CONNECT without :authority", answered, Status("400"), ":method", "CONNECT"),
	request("§8.5", "CONNECT with an empty :authority", answered, Status("400"), ":method", "CONNECT", ":authority", ""),
	request("RFC 9110 §9.3.6", "CONNECT without a port", "", Status("400"), ":method", "CONNECT", ":authority", "a"),
	request("RFC 9110 §9.3.6", "CONNECT to port 0", "", Status("400"), ":method", "CONNECT", ":authority", "a:0"),
	request("RFC 9110 §9.3.6", "CONNECT to port 65536", "", Status("400"), ":method", "CONNECT", ":authority", "a:65536"),
	request("RFC 9110 §7.2", "user information in :authority", "", Status("400"), ":method", "CONNECT", ":authority", "u@a:1"),
	request("§8.3.1", "request without :method", answered, Status("400"), ":authority", "a:1"),
	request("§8.3.1", "method in lower case", "methods are case-sensitive: this is another method, which we do not serve", Status("400"), ":method", "connect", ":authority", "a:1"),
	request("§8.3.1", "another method", "we serve nothing but CONNECT", Status("400"), ":method", "GET", ":scheme", "https", ":path", "/", ":authority", "a"),
	request("RFC 8441 §4", "extended CONNECT, which we do not offer", answered, Status("400"),
		":method", "CONNECT", ":protocol", "websocket", ":scheme", "https", ":path", "/", ":authority", "a:1"),
	{Section: "§8.5", Name: "trailers on a tunnel", Want: Nothing,
		Because: "frames other than DATA are to be a stream error; trailers with END_STREAM are taken as END_STREAM, as stock peers take them: nothing is lost by it",
		Send:    func(x *Exchange) { x.Headers(x.ID, true, "x", "y") }},
	{Section: "§8.5", Name: "END_STREAM with the header list", State: Fresh, Want: Nothing,
		Send: func(x *Exchange) { x.Headers(x.ID, true, x.Head()...) }},
}
