package quic

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	quicgo "github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/quicvarint"
	"golang.org/x/net/http2"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/internal/admission"
)

// ListenConfig holds the limits of a listener. Zero fields take their defaults.
type ListenConfig struct {
	// MaxStreams is how many CONNECTs one connection may have open. Default 200.
	MaxStreams int
	// MaxHandshakes is how many handshakes may be unfinished; more are refused. From an
	// eighth of it on, a client must first prove its address (Retry, RFC 9000 §8.1.2), and
	// one address may not have more than an eighth. Default 1024.
	MaxHandshakes int
	// Handshake bounds a handshake, and half of it each wait for a packet of it. Default 10 s.
	Handshake time.Duration
	// Refused is called for each handshake that fails or is refused. The error of one that
	// is refused because too many are unfinished is ErrHandshakes. It may be nil, and must not block.
	Refused func(from net.Addr, err error)
	Memory  Memory
}

// Listener accepts QUIC connections on a UDP socket.
type Listener struct {
	cfg ListenConfig
	pc  net.PacketConn
	t   *quicgo.Transport
	l   *quicgo.Listener

	mu         sync.Mutex
	unfinished int                  // handshakes
	by         map[netip.Prefix]int // unfinished handshakes of verified addresses, by admission.AddressKey
	open       int                  // connections, and one while the listener is open
}

// headersWithin bounds how long the HEADERS of a request take to arrive.
const headersWithin = 10 * time.Second

// Listen accepts connections on pc, which it owns, with tls. A client without a certificate is
// rejected, even if tls does not require one.
func Listen(pc net.PacketConn, tls *tls.Config, cfg ListenConfig) (*Listener, error) {
	if u, ok := pc.(udpConn); ok {
		socket := newSocket(u)
		socket.ignoreErrors(func() {}) // it receives no ICMP errors
		pc = socket
	}
	l := newListener(pc, cfg)
	l.t = &quicgo.Transport{Conn: pc, ConnContext: l.starts, VerifySourceAddress: func(net.Addr) bool { return l.crowded() }}
	var err error
	qcfg := l.cfg.Memory.config(int64(l.cfg.MaxStreams))
	qcfg.HandshakeIdleTimeout = l.cfg.Handshake / 2 // quic-go fails a handshake after twice that
	if l.l, err = l.t.Listen(tls, qcfg); err != nil {
		l.t.Close()
		pc.Close()
		return nil, fmt.Errorf("hbone: listen for QUIC on %v: %w", pc.LocalAddr(), err)
	}
	return l, nil
}

func newListener(pc net.PacketConn, cfg ListenConfig) *Listener {
	if cfg.MaxStreams == 0 {
		cfg.MaxStreams = 200
	}
	if cfg.MaxHandshakes == 0 {
		cfg.MaxHandshakes = 1024
	}
	return &Listener{cfg: cfg, pc: pc, open: 1, by: map[netip.Prefix]int{}}
}

// handshake is a started one.
type handshake struct {
	l        *Listener
	from     net.Addr
	verified bool // otherwise the address may be forged
	once     sync.Once
}

type handshakeKey struct{}

// ErrHandshakes is why a handshake was refused that would be one too many.
var ErrHandshakes = errors.New("hbone: too many unfinished handshakes")

// starts counts a handshake until it completes or fails.
func (l *Listener) starts(ctx context.Context, info *quicgo.ClientInfo) (context.Context, error) {
	h := &handshake{l: l, from: info.RemoteAddr, verified: info.AddrVerified}
	if !l.enter(h) {
		l.refused(h.from, ErrHandshakes)
		return nil, ErrHandshakes
	}
	context.AfterFunc(ctx, func() { h.finish(context.Cause(ctx)) })
	return context.WithValue(ctx, handshakeKey{}, h), nil
}

func (l *Listener) enter(h *handshake) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unfinished >= l.cfg.MaxHandshakes || h.verified && l.by[h.key()] >= l.share() {
		return false
	}
	l.unfinished++
	if h.verified {
		l.by[h.key()]++
	}
	return true
}

// share is how many handshakes may be unfinished before a client must prove its address, and how many
// one address may have then.
func (l *Listener) share() int { return max(1, l.cfg.MaxHandshakes/8) }

func (l *Listener) crowded() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unfinished >= l.share()
}

func (l *Listener) refused(from net.Addr, err error) {
	if l.cfg.Refused != nil {
		l.cfg.Refused(from, err)
	}
}

func (h *handshake) key() netip.Prefix {
	a, ok := h.from.(*net.UDPAddr)
	if !ok {
		return netip.Prefix{}
	}
	return admission.AddressKey(a.AddrPort().Addr())
}

// finish is called when the handshake has completed (nil) or failed. The first call counts.
func (h *handshake) finish(err error) {
	h.once.Do(func() {
		l, key := h.l, h.key()
		l.mu.Lock()
		l.unfinished--
		if h.verified {
			if l.by[key]--; l.by[key] == 0 {
				delete(l.by, key)
			}
		}
		l.mu.Unlock()
		if err != nil {
			l.refused(h.from, withAlert(err))
		}
	})
}

// Handshakes returns how many handshakes are unfinished.
func (l *Listener) Handshakes() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unfinished
}

// Addr is the address of the socket.
func (l *Listener) Addr() net.Addr { return l.pc.LocalAddr() }

// Accept returns what a server session runs on, for the next client that has authenticated.
func (l *Listener) Accept(ctx context.Context) (*hbone.Pipe, error) {
	for {
		q, err := l.l.Accept(ctx)
		if err != nil {
			return nil, err
		}
		if h, ok := q.Context().Value(handshakeKey{}).(*handshake); ok {
			h.finish(nil)
		}
		if outer, err := l.serve(q); err == nil {
			return outer, nil
		}
	}
}

var errNoCertificate = errors.New("hbone: client has shown no certificate")

func (l *Listener) serve(q *quicgo.Conn) (*hbone.Pipe, error) {
	if len(q.ConnectionState().TLS.PeerCertificates) == 0 {
		q.CloseWithError(codeGeneralProtocol, "a client certificate is required")
		l.refused(q.RemoteAddr(), errNoCertificate)
		return nil, errNoCertificate
	}
	outer, inner := newPipe(q)
	s := &server{conn: newConn(q, false, l.cfg.Memory), pipe: inner, changed: make(chan struct{}, 1), streams: map[quicgo.StreamID]*hbone.Stream{}}
	session, err := hbone.StartClient(inner, innerConfig(s.conn, l.cfg.MaxStreams))
	if err != nil {
		q.CloseWithError(codeInternal, "")
		return nil, err
	}
	s.session = session
	session.Observe(s.changed, nil)
	s.onWithdraw = s.withdraw
	s.onGoAway = func(quicgo.StreamID) { session.CloseWhenIdle() }
	l.mu.Lock()
	l.open++
	l.mu.Unlock()
	context.AfterFunc(q.Context(), func() {
		if err := s.lost(); err != nil {
			s.pipe.End(err)
		} else {
			session.Close(nil)
		}
		l.leave()
	})
	go s.acceptUni()
	go s.accept()
	go s.run()
	return outer, nil
}

// Close stops accepting connections. Open ones stay, and the socket closes with the last.
func (l *Listener) Close() error {
	err := l.l.Close()
	l.leave()
	return err
}

func (l *Listener) leave() {
	l.mu.Lock()
	l.open--
	last := l.open == 0
	l.mu.Unlock()
	if last {
		l.Shutdown()
	}
}

// Shutdown closes all connections and the socket.
func (l *Listener) Shutdown() {
	l.t.Close()
	l.pc.Close()
}

// server translates the requests of a QUIC connection to CONNECTs of a client session.
type server struct {
	*conn
	pipe    *hbone.Pipe
	session *hbone.Session
	changed chan struct{} // see hbone.Session.Observe

	smu      sync.Mutex
	next     quicgo.StreamID // the first that was not accepted
	closed   bool            // requests are rejected
	requests sync.WaitGroup
	streams  map[quicgo.StreamID]*hbone.Stream // without a response
}

// accept serves requests until the connection closes.
func (s *server) accept() {
	for {
		qs, err := s.q.AcceptStream(context.Background())
		if err != nil {
			return
		}
		s.smu.Lock()
		closed := s.closed
		if !closed {
			s.next = qs.StreamID() + 4
			s.requests.Add(1)
		}
		s.smu.Unlock()
		if closed {
			if _, failed := s.failed(); !failed { // otherwise the connection closes with the reason
				abort(qs, codeRequestRejected)
			}
			continue
		}
		go func() {
			defer s.requests.Done()
			s.request(qs)
		}()
	}
}

// run passes SETTINGS and GOAWAY of the session on, and closes the connection with it. A client
// without SETTINGS goes elsewhere.
func (s *server) run() {
	if s.session.AwaitSettings(context.Background()) == nil && s.open() != nil {
		s.close(codeStreamCreation, "no control stream is allowed") // nothing, if it is closed
	}
	for done := false; !done; {
		select {
		case <-s.changed:
			// Without streams the session closes at once. GOAWAY of HTTP/3 has no code, and would hide its reason.
			if !s.isClosed() && s.session.Availability(time.Now()).Retired && s.session.Streams() > 0 {
				s.goAway()
			}
		case <-s.session.Done():
			done = true
		}
	}
	away, failed := s.failed()
	if !failed {
		s.goAway()
	}
	<-s.session.Closed() // it has written everything
	switch {
	case !failed:
		s.requests.Wait()
		s.goodbye()
	case away != nil:
		s.close(toH3(away.Code), away.Debug)
	default:
		s.close(codeInternal, "")
	}
	s.requests.Wait()
	s.pipe.End(nil)
}

// failed reports that the session was not closed in order, and its GOAWAY, nil without one.
func (s *server) failed() (away *hbone.GoAwayError, failed bool) {
	err := s.session.Err()
	if errors.As(err, &away) {
		return away, away.Code != http2.ErrCodeNo
	}
	return nil, err != nil && !errors.Is(err, hbone.ErrSessionClosed)
}

func (s *server) isClosed() bool {
	s.smu.Lock()
	defer s.smu.Unlock()
	return s.closed
}

// goAway rejects later requests, and sends GOAWAY once.
func (s *server) goAway() {
	s.smu.Lock()
	told := s.closed
	s.closed = true
	next := s.next
	s.smu.Unlock()
	if !told {
		s.control(appendFrame(nil, frameGoAway, quicvarint.Append(nil, uint64(next))...))
	}
}

func (s *server) withdraw(id quicgo.StreamID) {
	s.smu.Lock()
	st := s.streams[id]
	s.smu.Unlock()
	if st != nil {
		st.Withdraw()
	}
}

var badRequest = hbone.Header{header.NameReason: string(header.ReasonBadRequest)}

// request serves one request.
func (s *server) request(qs *quicgo.Stream) {
	f := newFrames(qs)
	qs.SetReadDeadline(time.Now().Add(headersWithin))
	sec, err := f.section()
	qs.SetReadDeadline(time.Time{})
	if err == nil && sec.malformedConnect() {
		err = broke(codeMessage, "malformed CONNECT")
	}
	var v *violation
	switch {
	case errors.As(err, &v) && v.code == codeExcessiveLoad:
		refuse(qs, 431, badRequest)
		return
	case errors.As(err, &v):
		s.violated(v, qs)
		return
	case err == io.EOF:
		abort(qs, codeRequestIncomplete)
		return
	case err != nil:
		abort(qs, codeRequestCancelled)
		return
	case sec.pseudo[":method"] != "CONNECT":
		refuse(qs, 400, badRequest)
		return
	}
	st, err := s.session.Start(&hbone.Request{Authority: sec.pseudo[":authority"], Header: sec.header})
	if err == nil {
		s.exchange(st, qs, f)
		return
	}
	switch _, failed := s.failed(); {
	case failed: // the connection closes with the reason
	case errors.Is(err, hbone.ErrRetryable), errors.Is(err, hbone.ErrSessionFull):
		abort(qs, codeRequestRejected)
	default: // more fields than the session accepts
		refuse(qs, 431, badRequest)
	}
}

// refuse sends a response with status, and stops reading.
func refuse(qs *quicgo.Stream, status int, h hbone.Header) {
	qs.SetWriteDeadline(time.Now().Add(headersWithin))
	if _, err := qs.Write(responseBlock(status, h)); err != nil {
		qs.CancelWrite(codeInternal)
	} else {
		qs.Close()
	}
	qs.CancelRead(codeNoError)
}

func (s *server) exchange(st *hbone.Stream, qs *quicgo.Stream, f *frames) {
	x := newExchange(s.conn, st, qs, f)
	id := qs.StreamID()
	s.smu.Lock()
	s.streams[id] = st
	s.smu.Unlock()
	x.group.Go(x.into)
	defer x.close()
	if interim := st.AwaitInterim(context.Background()); interim != nil {
		x.write(responseBlock(interim.Status, interim.Header)) // an error comes again
	}
	resp, err := st.AwaitResponse(context.Background())
	s.smu.Lock()
	delete(s.streams, id)
	s.smu.Unlock()
	if err == nil {
		if err = x.write(responseBlock(resp.Status, resp.Header)); err == nil {
			x.out()
			return
		}
	}
	if resp != nil && resp.Status != 200 {
		refuse(qs, resp.Status, resp.Header)
	} else if _, failed := s.failed(); !failed {
		abort(qs, resetCode(err))
		st.Reset(toH2(resetCode(err)))
	}
	close(x.outDone)
}
