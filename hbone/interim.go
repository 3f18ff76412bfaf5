package hbone

import (
	"context"
	"errors"
	"net/http"

	"golang.org/x/net/http2"

	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/hbone/wire"
)

// What happens between a CONNECT and its response, if both ends are ours: the server
// says that the response takes long (102), and the client may take the CONNECT back. The
// response is still the server's, and the only one there is: 200, if the connection was
// established before the server heard of it, or another status, which says as always
// that nothing of what was sent has reached anybody.
//
// A client asks for the one in its request, by a header that is the handler's to read, and
// sends the other, a frame of a type that RFC 9113 §5.5 leaves to extensions, on a
// stream that the server has informed alone. So a stock peer meets neither.

// ErrWithdrawn is the cause with which the context of a handler ends whose client has
// taken the CONNECT back; Accept returns it from then on.
var ErrWithdrawn = errors.New("the client has withdrawn its CONNECT")

// Inform sends an informational response (102) with h before the response: once, later
// calls do nothing. It is for clients that have asked for it. From here on the client may
// withdraw the CONNECT.
func (in *Incoming) Inform(h Header) {
	s, st := in.Session, in.st
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.connect.informed || st.connect.response != nil || st.send.err != nil {
		return
	}
	st.connect.informed = true
	s.send.headers(st, responseFields(http.StatusProcessing, h), false, s.peer.MaxFrame, 0)
	s.kickLocked()
}

// Interim is the first informational response (1xx) to the CONNECT; nil: there was none.
func (st *Stream) Interim() *Response {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	return st.connect.interim
}

// AwaitInterim waits for the first informational response and returns it; nil if the
// response is there, or the stream or ctx ended. The caller then calls AwaitResponse.
func (st *Stream) AwaitInterim(ctx context.Context) *Response {
	if st.Responded() {
		return nil
	}
	st.s.mu.Lock()
	if st.connect.interim == nil && st.connect.heard == nil {
		st.connect.heard = make(chan struct{})
	}
	interim, heard := st.connect.interim, st.connect.heard
	st.s.mu.Unlock()
	if interim == nil {
		select {
		case <-heard:
			interim = st.Interim()
		case <-st.connect.decided:
		case <-ctx.Done():
		}
	}
	if st.Responded() {
		return nil
	}
	return interim
}

// Withdraw asks a peer that has sent an informational response to answer without serving
// the CONNECT. What AwaitResponse then returns is what has become of it: a response of
// 200 was faster and the stream is open, any other one says that nobody has got what was
// written to the stream. Without an informational response, or behind the response, it does
// nothing.
func (st *Stream) Withdraw() {
	s := st.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.client || st.connect.interim == nil || st.connect.response != nil || st.connect.withdrawn || st.send.err != nil {
		return
	}
	st.connect.withdrawn = true
	s.send.control.add(st, wire.AppendHeader(nil, 0, wire.FrameWithdraw, 0, st.id), 0)
	s.kickLocked()
}

// onInterim takes in an informational response. More than one for a stream costs work
// and moves nothing.
func (s *Session) onInterim(st *Stream, f *http2.MetaHeadersFrame, status int) error {
	s.mu.Lock()
	first := st.connect.interim == nil
	if first {
		st.connect.interim = &Response{Status: status, Header: headerOf(f)}
		if st.connect.heard != nil {
			close(st.connect.heard)
		}
	}
	s.mu.Unlock()
	if !first {
		return s.countIdleFrame("informational responses", 1)
	}
	st.changed()
	return nil
}

// onWithdraw ends the handler of a CONNECT that was not answered. Anything else of that
// type is an unknown frame.
func (s *Session) onWithdraw(h wire.Header) error {
	s.mu.Lock()
	st := s.streams[h.ID]
	if s.client || st == nil || h.Length != 0 || !st.connect.informed || st.connect.withdrawn {
		s.mu.Unlock()
		return s.countIdleFrame("unknown frames", 1)
	}
	st.connect.withdrawn = true
	open := st.connect.response == nil && st.send.err == nil
	s.mu.Unlock()
	if open {
		st.connect.cancel(ErrWithdrawn)
	}
	return nil
}

// unserved is what a handler answers that neither accepts nor refuses.
func (st *Stream) unserved() Header {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	if !st.connect.withdrawn {
		return nil
	}
	return Header{header.NameReason: string(header.ReasonWithdrawn)}
}
