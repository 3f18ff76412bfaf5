package hbone

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// NewClient starts a client session on t, which it owns from now on, and waits
// for the peer's SETTINGS: at most SettingsTimeout, and as long as ctx allows.
// On error t is closed.
func NewClient(ctx context.Context, t Transport, cfg Config) (*Session, error) {
	if err := cfg.Validate(); err != nil {
		t.Close()
		return nil, err
	}
	s := newSession(t, cfg, true)
	s.mu.Lock()
	s.w.control.add(nil, s.ourPreface(), 0)
	s.kick()
	s.mu.Unlock()
	go s.read()
	timer := time.NewTimer(s.cfg.SettingsTimeout)
	defer timer.Stop()
	select {
	case <-s.settled:
		s.startPings()
		return s, nil
	case <-s.done:
	case <-ctx.Done():
		s.end(context.Cause(ctx), http2.ErrCodeNo, endAbrupt)
	case <-timer.C:
		s.end(ErrSettingsTimeout, http2.ErrCodeSettingsTimeout, endAbrupt)
	}
	<-s.torn
	return nil, fmt.Errorf("hbone: open session with %v: %w", t.RemoteAddr(), s.Err())
}

// Open sends a CONNECT and waits for the answer: at most ConnectTimeout, and as
// long as ctx allows. Any status but 200 is a *StatusError. An error that
// matches ErrRetryable says that the peer has not served the request.
func (s *Session) Open(ctx context.Context, req *Request) (*Stream, *Response, error) {
	st, err := s.request(req)
	if err != nil {
		return nil, nil, fmt.Errorf("hbone: CONNECT %s: %w", req.Authority, err)
	}
	if err := s.awaitAnswer(ctx, st); err != nil {
		st.abort(http2.ErrCodeCancel, err)
		return nil, nil, fmt.Errorf("hbone: CONNECT %s: %w", req.Authority, err)
	}
	s.mu.Lock()
	answer, err := st.answer, st.werr
	s.mu.Unlock()
	switch {
	case answer == nil:
		st.abort(http2.ErrCodeCancel, err)
		return nil, nil, fmt.Errorf("hbone: CONNECT %s: %w", req.Authority, s.unanswered(err))
	case answer.Status != 200:
		st.Reset(http2.ErrCodeCancel)
		return nil, answer, &StatusError{Status: answer.Status, Header: answer.Header}
	}
	return st, answer, nil
}

// awaitAnswer returns nil when there is an answer or the stream is dead.
func (s *Session) awaitAnswer(ctx context.Context, st *Stream) error {
	timer := time.NewTimer(s.cfg.ConnectTimeout)
	defer timer.Stop()
	select {
	case <-st.decided:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return fmt.Errorf("%w (%v)", ErrConnectTimeout, s.cfg.ConnectTimeout)
	}
}

// unanswered marks the end of a session, or of a stream refused, as retryable:
// not one byte of the application has been sent.
func (s *Session) unanswered(err error) error {
	var reset *ResetError
	if errors.Is(err, ErrRetryable) || errors.As(err, &reset) || errors.Is(err, ErrSessionClosed) {
		return err
	}
	return &retryable{err}
}

// request queues the HEADERS of a new stream.
func (s *Session) request(req *Request) (*Stream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.canOpen(); err != nil {
		return nil, err
	}
	fields := requestFields(req)
	if size := listSize(fields); size > s.peer.maxHeaders {
		return nil, fmt.Errorf("header list of %d bytes, the peer accepts %d", size, s.peer.maxHeaders)
	}
	st := s.newStream(s.nextID)
	s.nextID += 2
	st.answered = make(chan struct{})
	st.decided = st.answered
	s.w.headers(st, fields, false, s.peer.maxFrame, noteKeep)
	s.kick()
	return st, nil
}

// canOpen is called with mu held.
func (s *Session) canOpen() error {
	limit := uint32(s.cfg.MaxStreams)
	if limit == 0 || limit > s.peer.maxStreams {
		limit = s.peer.maxStreams
	}
	switch {
	case !s.client:
		return errors.New("a server session opens no streams")
	case s.err != nil:
		return &retryable{s.err}
	case s.goAway != nil:
		return &retryable{s.goAway}
	case s.draining:
		return &retryable{ErrSessionClosed}
	case s.nextID > maxStreamID:
		return &retryable{errors.New("stream identifiers are used up")}
	case len(s.streams) >= int(limit):
		return ErrSessionFull
	}
	return nil
}

// requestFields puts what differs from request to request (sensitive: kept out
// of the peer's table) behind what repeats.
func requestFields(req *Request) []hpack.HeaderField {
	fields := make([]hpack.HeaderField, 0, 2+len(req.Header))
	fields = append(fields,
		hpack.HeaderField{Name: ":method", Value: "CONNECT"},
		hpack.HeaderField{Name: ":authority", Value: req.Authority})
	return appendFields(fields, req.Header)
}

func appendFields(fields []hpack.HeaderField, h Header) []hpack.HeaderField {
	first := len(fields)
	for name, value := range h {
		repeats := name == HeaderBaggage || name == HeaderForwardedNetwork
		fields = append(fields, hpack.HeaderField{Name: name, Value: value, Sensitive: !repeats})
	}
	slices.SortFunc(fields[first:], func(a, b hpack.HeaderField) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return fields
}

func listSize(fields []hpack.HeaderField) (n uint32) {
	for _, f := range fields {
		n += f.Size()
	}
	return n
}

// headers queues a header block. Called with mu held.
func (w *writer) headers(st *Stream, fields []hpack.HeaderField, endStream bool, max int, n note) {
	w.hbuf.Reset()
	for _, f := range fields {
		w.henc.WriteField(f) // into memory, cannot fail
	}
	before := w.control.size()
	w.control.buf = appendHeaderBlock(w.control.buf, st.id, w.hbuf.Bytes(), endStream, max)
	w.control.mark(st, w.control.size()-before, n)
}

// onAnswer handles HEADERS from the server: the answer, an informational one
// before it, or trailers.
func (s *Session) onAnswer(f *http2.MetaHeadersFrame) error {
	s.mu.Lock()
	st := s.streams[f.StreamID]
	if st == nil {
		idle := s.isIdle(f.StreamID)
		s.mu.Unlock()
		if idle {
			return connFault(http2.ErrCodeProtocol, "HEADERS on idle stream %d", f.StreamID)
		}
		return nil
	}
	if st.answer != nil {
		s.mu.Unlock()
		return s.onTrailers(st, f)
	}
	status, err := strconv.Atoi(f.PseudoValue("status"))
	if err != nil || status < 100 || status > 999 || f.Truncated {
		s.mu.Unlock()
		return &streamFault{f.StreamID, http2.ErrCodeProtocol, "bad answer header"}
	}
	if status < 200 {
		s.mu.Unlock()
		return s.spend("informational answers")
	}
	st.answer = &Response{Status: status, Header: headerOf(f)}
	close(st.answered)
	st.answered = nil
	s.mu.Unlock()
	if f.StreamEnded() {
		s.peerEnded(st)
	}
	return nil
}

// onTrailers accepts a second header block only as the end of the stream.
func (s *Session) onTrailers(st *Stream, f *http2.MetaHeadersFrame) error {
	s.mu.Lock()
	ended := st.remoteEnd
	s.mu.Unlock()
	switch {
	case ended:
		return &streamFault{f.StreamID, http2.ErrCodeStreamClosed, "HEADERS after END_STREAM"}
	case !f.StreamEnded():
		return &streamFault{f.StreamID, http2.ErrCodeProtocol, "second HEADERS without END_STREAM"}
	}
	s.peerEnded(st)
	return nil
}

func headerOf(f *http2.MetaHeadersFrame) Header {
	fields := f.RegularFields()
	if len(fields) == 0 {
		return nil
	}
	h := make(Header, len(fields))
	for _, hf := range fields {
		if v, ok := h[hf.Name]; ok {
			h[hf.Name] = v + "," + hf.Value
		} else {
			h[hf.Name] = hf.Value
		}
	}
	return h
}
