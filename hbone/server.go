package hbone

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/hbone/wire"
	"github.com/isthmus-mesh/isthmus/internal/stack"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Handler serves one CONNECT, in a goroutine of its own. ctx ends when the
// stream is reset, when the session ends, or when the handler returns; not on a
// normal end of the stream. A handler that neither accepts nor refuses answers
// 503.
type Handler func(ctx context.Context, in *Incoming)

// Incoming is a CONNECT that waits for a response. Accept or Refuse may be called
// once.
type Incoming struct {
	Authority string // host:port, not empty, otherwise as received
	Header    Header
	Session   *Session

	st   *Stream
	rest func(context.Context) // see Then
}

// NewServer prepares a server session on t, which it owns from now on. Nothing
// happens before Serve.
func NewServer(t Transport, cfg Config, h Handler) *Session {
	s := newSession(t, cfg, false)
	if s.cfg.MaxStreams == 0 {
		s.cfg.MaxStreams = 200
	}
	s.handler = h
	return s
}

// Serve runs the session until it ends and returns why: nil after an orderly
// end (Close(nil), Drain, or a peer that left without open streams). When ctx
// ends the session is closed with its cause, within CloseTimeout. It returns when the transport is
// closed and every handler has returned.
func (s *Session) Serve(ctx context.Context) error {
	if err := s.cfg.Validate(); err != nil {
		s.fail(err)
		<-s.life.transportClosed
		return err
	}
	s.base = ctx
	stop := context.AfterFunc(ctx, func() { s.hasten(context.Cause(ctx)) })
	defer stop()
	s.mu.Lock()
	s.life.settingsTimer = time.AfterFunc(s.cfg.SettingsTimeout, s.settingsOverdue)
	s.armExpiryLocked()
	if s.life.err == nil {
		s.greetLocked()
		s.holdLocked()
		s.kickLocked()
	}
	s.mu.Unlock()
	if s.declined != "" {
		s.fail(&ProtocolError{Code: http2.ErrCodeEnhanceYourCalm, Reason: s.declined})
	}
	s.startPings()
	s.read()
	<-s.life.transportClosed
	s.handlers.Wait()
	if err := s.Err(); !errors.Is(err, ErrSessionClosed) {
		return err
	}
	return nil
}

// holdLocked occupies the transport until Config.Hold is closed, or the session has ended.
func (s *Session) holdLocked() {
	if s.cfg.Hold == nil {
		return
	}
	s.send.busy = true
	go func() {
		select {
		case <-s.cfg.Hold:
		case <-s.life.done:
		}
		s.mu.Lock()
		s.idleLocked()
		s.kickLocked()
		s.mu.Unlock()
	}()
}

// Decline is Serve for a client that is not to be served: it gets GOAWAY with
// ENHANCE_YOUR_CALM and why behind our SETTINGS, so that it knows that nothing it has
// asked for was done, and the connection is closed.
func (s *Session) Decline(ctx context.Context, why string) {
	s.declined = why
	s.Serve(ctx)
}

// Early returns the stream before the CONNECT is answered, for a relay to another protocol:
// what the client sends ahead of the response may be read from it. It must not be written.
func (in *Incoming) Early() *Stream { return in.st }

// Unread is how many bytes of the stream were received and not read yet.
func (in *Incoming) Unread() int { return in.st.Buffered() }

// Reset ends the stream at once, answered or not.
func (in *Incoming) Reset(code http2.ErrCode) { in.st.Reset(code) }

// settingsOverdue ends a session whose peer has not sent its SETTINGS.
func (s *Session) settingsOverdue() {
	select {
	case <-s.life.settingsReceived:
	default:
		s.mu.Lock()
		s.send.broken = true
		s.mu.Unlock()
		s.fail(ErrSettingsTimeout)
	}
}

// onRequest handles HEADERS from the client: a new CONNECT, or trailers.
func (s *Session) onRequest(f *http2.MetaHeadersFrame) error {
	id := f.StreamID
	if id%2 == 0 {
		return wire.ConnError(http2.ErrCodeProtocol, "client opened even stream %d", id)
	}
	s.mu.Lock()
	if last := s.lastID; id <= last {
		st := s.streams[id]
		s.mu.Unlock()
		switch {
		case st == nil && len(f.PseudoFields()) > 0: // no trailers that crossed our reset
			return wire.ConnError(http2.ErrCodeProtocol, "request on stream %d behind stream %d", id, last)
		case st == nil:
			return s.countIdleFrame("HEADERS on closed streams", 1)
		}
		return s.onTrailers(st, f)
	}
	if s.life.err != nil {
		s.mu.Unlock()
		return nil
	}
	s.lastID = id // from here on its frames are those of a closed stream, not of an idle one
	n := s.recv.newStreams.Add(time.Now(), 1)
	if why := s.refusalLocked(id, n); why != "" {
		s.send.control.add(nil, wire.AppendRST(nil, id, http2.ErrCodeRefusedStream), 0)
		s.kickLocked()
		s.mu.Unlock()
		if s.cfg.Refused != nil {
			s.cfg.Refused(why)
		}
		if n > 2*maxNewStreams {
			return wire.ConnError(http2.ErrCodeEnhanceYourCalm, "more than %d CONNECTs within a second", 2*maxNewStreams)
		}
		return nil
	}
	st := s.newStreamLocked(id)
	if status, reason := validateRequest(f); status != 0 {
		s.refuseLocked(st, status, Header{header.NameReason: string(reason)})
		s.mu.Unlock()
		st.closeRead() // no handler does
		return nil
	}
	s.openWholeWindowLocked(st)
	in := &Incoming{Authority: f.PseudoValue("authority"), Header: headerOf(f), Session: s, st: st}
	ctx, cancel := context.WithCancelCause(s.base)
	st.connect.cancel = cancel
	s.running++
	s.handlers.Add(1)
	s.mu.Unlock()
	if f.StreamEnded() {
		s.peerEnded(st)
	}
	handler := s.handler
	if s.cfg.Screen != nil {
		handler = s.cfg.Screen(in)
	}
	if handler == nil {
		s.handled(in)
		return nil
	}
	go s.handle(ctx, in, handler)
	return nil
}

// Refusal is why a session refused a CONNECT with REFUSED_STREAM, before any
// handler saw it. The set is closed.
type Refusal string

const (
	RefusedDraining Refusal = "draining" // it came behind the final GOAWAY
	RefusedStreams  Refusal = "streams"  // Config.MaxStreams are open
	RefusedHandlers Refusal = "handlers" // twice as many handlers still run, most for streams that are gone
	RefusedRate     Refusal = "rate"     // too many within a second
)

// refusalLocked returns why stream id, the nth new one within this second, is not
// served, empty if it is.
func (s *Session) refusalLocked(id uint32, n int) Refusal {
	switch {
	case id > s.life.finalID:
		return RefusedDraining
	case len(s.streams) >= s.cfg.MaxStreams:
		return RefusedStreams
	case s.running >= 2*s.cfg.MaxStreams:
		return RefusedHandlers
	case n > maxNewStreams:
		return RefusedRate
	}
	return ""
}

func (s *Session) handle(ctx context.Context, in *Incoming, handler Handler) {
	stack.Grow()
	handler(ctx, in)
	rest := in.rest
	if rest == nil {
		s.handled(in)
		return
	}
	go func() {
		rest(ctx)
		s.handled(in)
	}()
}

// handled ends what handle began. A stream that was never accepted has nobody else
// who would end its receiving half.
func (s *Session) handled(in *Incoming) {
	st := in.st
	in.Refuse(503, st.unserved()) // does nothing if it was answered
	st.connect.cancel(nil)
	s.mu.Lock()
	s.running--
	accepted := st.connect.accepted
	s.mu.Unlock()
	if !accepted {
		st.closeRead()
	}
	s.handlers.Done()
}

// Then has rest run when the handler has returned, in a goroutine of its own: one
// that only waits then has a small stack, and holds nothing of how it was opened.
// The CONNECT is handled when rest returns.
func (in *Incoming) Then(rest func(ctx context.Context)) { in.rest = rest }

// validateRequest returns the status of a request that no handler needs to see, 0 for a
// proper CONNECT (RFC 9113 §8.5).
func validateRequest(f *http2.MetaHeadersFrame) (status int, reason header.Reason) {
	if f.Truncated {
		return 431, header.ReasonBadRequest
	}
	if f.PseudoValue("method") != "CONNECT" {
		return 400, header.ReasonBadRequest
	}
	for _, p := range f.PseudoFields() {
		if p.Name != ":method" && p.Name != ":authority" {
			return 400, header.ReasonBadRequest
		}
	}
	if _, _, err := SplitAuthority(f.PseudoValue("authority")); err != nil {
		return 400, header.ReasonBadAuthority
	}
	return 0, ""
}

// SplitAuthority splits host:port as a CONNECT carries it: an IPv4 or bracketed
// IPv6 address or a hostname, and a port from 1 to 65535.
func SplitAuthority(authority string) (host string, port uint16, err error) {
	if ap, err := netip.ParseAddrPort(authority); err == nil && ap.Port() != 0 {
		return ap.Addr().String(), ap.Port(), nil
	}
	host, p, err := net.SplitHostPort(authority)
	if err != nil {
		return "", 0, err
	}
	n, err := strconv.ParseUint(p, 10, 16)
	if err != nil || n == 0 {
		return "", 0, &net.AddrError{Err: "port must be 1 to 65535", Addr: authority}
	}
	if host == "" || strings.ContainsAny(host, ":/@[]% \t") || len(host) > 253 {
		return "", 0, &net.AddrError{Err: "bad host", Addr: authority}
	}
	return host, uint16(n), nil
}

// Accept answers 200 and returns the stream: from here on, and no sooner, what the client
// has sent may be read.
func (in *Incoming) Accept(h Header) (*Stream, error) {
	s, st := in.Session, in.st
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case st.send.err != nil:
		return nil, st.send.err
	case st.connect.response != nil:
		return nil, errors.New("hbone: CONNECT was answered already")
	case st.connect.withdrawn && !s.translates():
		return nil, ErrWithdrawn
	}
	st.connect.response = plainOK
	st.connect.accepted = true
	s.send.headers(st, responseFields(200, h), false, s.peer.MaxFrame, 0)
	s.kickLocked()
	return st, nil
}

// Refuse answers with status, which must not be 200, and END_STREAM.
func (in *Incoming) Refuse(status int, h Header) error {
	s, st := in.Session, in.st
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case st.connect.response != nil:
		return errors.New("hbone: CONNECT was answered already")
	case st.send.err != nil:
		return st.send.err
	}
	s.refuseLocked(st, status, h)
	return nil
}

// refuseLocked queues the response and forgets the stream: what the client still sends
// on it is thrown away.
func (s *Session) refuseLocked(st *Stream, status int, h Header) {
	st.connect.response = &Response{Status: status, Header: h}
	st.connect.refused, st.send.ended, st.endReceived = true, true, true
	st.send.err = net.ErrClosed
	s.send.headers(st, responseFields(status, h), true, s.peer.MaxFrame, noteEnd)
	s.kickLocked()
}

func responseFields(status int, h Header) []hpack.HeaderField {
	fields := make([]hpack.HeaderField, 0, 1+len(h))
	fields = append(fields, hpack.HeaderField{Name: ":status", Value: strconv.Itoa(status)})
	return appendFields(fields, h)
}
