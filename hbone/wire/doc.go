// Package wire is HTTP/2 as RFC 9113 writes it, as far as a session of CONNECT streams
// needs it: frames to be sent, headers of frames that were received, settings, and the
// rules that golang.org/x/net/http2's Framer does not check. It knows neither sessions
// nor streams, and decides about one frame at a time.
package wire
