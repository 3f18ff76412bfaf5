package hbone

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/hbone/wire"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// StartClient starts a client session on t, which it owns from now on, and does
// not wait for the peer's SETTINGS: until they are in, streams live by the
// protocol's defaults. If they take longer than SettingsTimeout the session ends
// with ErrSettingsTimeout. On error t is closed.
func StartClient(t Transport, cfg Config) (*Session, error) {
	if err := cfg.Validate(); err != nil {
		t.Close()
		return nil, err
	}
	s := newSession(t, cfg, true)
	s.peer.MaxStreams = assumedStreams
	s.mu.Lock()
	s.greetLocked()
	s.life.settingsTimer = time.AfterFunc(s.cfg.SettingsTimeout, s.settingsOverdue)
	s.armExpiryLocked()
	s.kickLocked()
	s.mu.Unlock()
	s.joinParent()
	go s.read()
	return s, nil
}

// assumedStreams is how many streams a client opens before it has read what the
// peer allows; a stock client assumes the same (hbone-wire 1.3).
const assumedStreams = 100

// NewClient is StartClient that returns when the peer's SETTINGS are in, which
// shows that it serves. It waits at most SettingsTimeout, and as long as ctx
// allows. On error t is closed.
func NewClient(ctx context.Context, t Transport, cfg Config) (*Session, error) {
	s, err := StartClient(t, cfg)
	if err != nil {
		return nil, err
	}
	if err := s.AwaitSettings(ctx); err != nil {
		s.end(err, http2.ErrCodeNo, endAbrupt)
		<-s.life.transportClosed
		return nil, fmt.Errorf("hbone: open session with %v: %w", t.RemoteAddr(), err)
	}
	return s, nil
}

// AwaitSettings returns when the peer's SETTINGS are in, or why they will not be.
func (s *Session) AwaitSettings(ctx context.Context) error {
	select {
	case <-s.life.settingsReceived:
		return nil
	case <-s.life.done:
		return s.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Open is Start and Answer.
func (s *Session) Open(ctx context.Context, req *Request) (*Stream, *Response, error) {
	st, err := s.Start(req)
	if err != nil {
		return nil, nil, err
	}
	resp, err := st.AwaitResponse(ctx)
	if err != nil {
		return nil, resp, err
	}
	return st, resp, nil
}

// Start sends a CONNECT. What is written to the stream before the response is sent
// right behind it, as far as the windows allow; a peer that refuses throws it
// away. The caller asks for the Answer.
func (s *Session) Start(req *Request) (*Stream, error) {
	st, err := s.request(req)
	if err != nil {
		return nil, fmt.Errorf("hbone: CONNECT %s: %w", req.Authority, err)
	}
	s.noteRequest(st.connect.sentAt)
	return st, nil
}

// AwaitResponse waits for the peer's response: at most ConnectTimeout, and as long as ctx
// allows. Any status but 200 is a *StatusError, with the response beside it. After
// an error the stream is over. An error that matches ErrRetryable says that the
// peer has not served the request.
func (st *Stream) AwaitResponse(ctx context.Context) (*Response, error) {
	resp, err := st.awaitResponse(ctx)
	if err != nil {
		return resp, fmt.Errorf("hbone: CONNECT %s: %w", st.connect.authority, err)
	}
	return resp, nil
}

func (st *Stream) awaitResponse(ctx context.Context) (*Response, error) {
	timer := time.NewTimer(st.s.cfg.ConnectTimeout)
	defer timer.Stop()
	var err error
	select {
	case <-st.connect.decided:
		return st.outcome()
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-timer.C:
		err = fmt.Errorf("%w (%v)", ErrConnectTimeout, st.s.cfg.ConnectTimeout)
	}
	st.abort(http2.ErrCodeCancel, err)
	return nil, err
}

// Responded reports whether Answer would return at once.
func (st *Stream) Responded() bool {
	select {
	case <-st.connect.decided:
		return true
	default:
		return false
	}
}

// outcome reads the response of a stream that has one or is dead.
func (st *Stream) outcome() (*Response, error) {
	st.s.mu.Lock()
	if st.connect.response == nil {
		st.s.awaitWriteLocked(st)
	}
	resp, err, sent := st.connect.response, st.send.err, st.connect.dataSent && !st.connect.replayable
	if resp != nil && resp.Status == plainOK.Status {
		st.connect.response = plainOK // the headers are the caller's now
	}
	st.s.mu.Unlock()
	switch {
	case resp == nil:
		st.abort(http2.ErrCodeCancel, err)
		return nil, noResponse(err, sent)
	case resp.Status != 200:
		st.Reset(http2.ErrCodeCancel)
		return resp, &StatusError{Status: resp.Status, Header: resp.Header}
	}
	return resp, nil
}

// noResponse marks the end of a session as retryable if not one byte of the
// application has been sent on the stream. Otherwise the peer may have passed
// it on before it went.
func noResponse(err error, sent bool) error {
	var reset *ResetError
	if sent || errors.Is(err, ErrRetryable) || errors.As(err, &reset) || errors.Is(err, ErrSessionClosed) {
		return err
	}
	return &retryable{err}
}

// request queues the HEADERS of a new stream.
func (s *Session) request(req *Request) (*Stream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.canOpenLocked(); err != nil {
		return nil, err
	}
	fields := requestFields(req)
	if size := listSize(fields); size > s.peer.MaxHeaders {
		return nil, fmt.Errorf("header list of %d bytes, the peer accepts %d", size, s.peer.MaxHeaders)
	}
	st := s.newStreamLocked(s.nextID)
	st.connect.authority, st.connect.replayable, st.connect.sentAt = req.Authority, req.Replayable, time.Now()
	s.nextID += 2
	s.wakePingsLocked(st.connect.sentAt)
	s.alive.Requested(st.connect.sentAt)
	s.alive.LastRequest = st.connect.sentAt
	st.connect.pending = make(chan struct{})
	st.connect.decided = st.connect.pending
	s.send.headers(st, fields, false, s.peer.MaxFrame, noteKeep)
	s.openWholeWindowLocked(st)
	s.kickLocked()
	return st, nil
}

// canOpenLocked is called with mu held.
func (s *Session) canOpenLocked() error {
	switch {
	case !s.client:
		return errors.New("a server session opens no streams")
	case s.life.err != nil:
		return &retryable{s.life.err}
	case s.life.goAway != nil:
		return &retryable{s.life.goAway}
	case s.life.draining:
		return &retryable{ErrSessionClosed}
	case s.nextID > wire.MaxStreamID:
		return &retryable{errors.New("stream identifiers are used up")}
	case len(s.streams) >= s.streamLimit():
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
		repeats := name == header.NameBaggage || name == header.NameForwardedNetwork || name == header.NameSlow
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
func (w *sender) headers(st *Stream, fields []hpack.HeaderField, endStream bool, max int, n note) {
	if t := st.s.traced(); t != nil {
		st.s.traceFields(t, "+", st.id, fields)
	}
	w.hbuf.Reset()
	for _, f := range fields {
		w.henc.WriteField(f) // into memory, cannot fail
	}
	before := w.control.size()
	w.control.buf = wire.AppendHeaderBlock(w.control.buf, st.id, w.hbuf.Bytes(), endStream, max)
	w.control.mark(st, w.control.size()-before, n)
}

// onResponse handles HEADERS from the server: the response, an informational one
// before it, or trailers.
func (s *Session) onResponse(f *http2.MetaHeadersFrame) error {
	s.mu.Lock()
	st := s.streams[f.StreamID]
	if st == nil {
		idle := s.isIdleLocked(f.StreamID)
		s.mu.Unlock()
		if idle {
			return wire.ConnError(http2.ErrCodeProtocol, "HEADERS on idle stream %d", f.StreamID)
		}
		return nil
	}
	if st.connect.response != nil {
		s.mu.Unlock()
		return s.onTrailers(st, f)
	}
	status := parseStatus(f.PseudoValue("status"))
	interim := status < 200 // RFC 9113 §8.6: there is no 101
	if status == 0 || status == 101 || interim && f.StreamEnded() || f.Truncated {
		s.mu.Unlock()
		return protocolFault(f.StreamID, "bad response header")
	}
	if interim {
		s.mu.Unlock()
		return s.onInterim(st, f, status)
	}
	st.connect.response = &Response{Status: status, Header: headerOf(f)}
	now := time.Now()
	if st.connect.pending != nil { // not closed meanwhile
		close(st.connect.pending)
		st.connect.pending = nil
		s.alive.Responded(now)
		s.alive.Observe(now.Sub(st.connect.sentAt))
	}
	s.mu.Unlock()
	s.noteResponse(now)
	st.changed()
	if f.StreamEnded() {
		s.peerEnded(st)
	}
	return nil
}

// parseStatus returns the status that v is, three digits, or 0.
func parseStatus(v string) int {
	n, err := strconv.ParseUint(v, 10, 16)
	if err != nil || len(v) != 3 || n < 100 {
		return 0
	}
	return int(n)
}

// onTrailers accepts a second header block only as the end of the stream.
func (s *Session) onTrailers(st *Stream, f *http2.MetaHeadersFrame) error {
	s.mu.Lock()
	ended := st.endReceived
	s.mu.Unlock()
	switch {
	case ended:
		return &wire.StreamError{ID: f.StreamID, Code: http2.ErrCodeStreamClosed, Reason: "HEADERS after END_STREAM"}
	case !f.StreamEnded():
		return protocolFault(f.StreamID, "second HEADERS without END_STREAM")
	case len(f.PseudoFields()) > 0:
		return protocolFault(f.StreamID, "pseudo-header in trailers")
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
