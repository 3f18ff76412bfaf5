package quic

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	quicgo "github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/quicvarint"
	"golang.org/x/net/http2"

	"github.com/isthmus-mesh/isthmus/hbone"
)

// Protocols returns the ALPN protocols for QUIC of an endpoint, given the ones for TCP: "h2"
// becomes "h3". Names of replicas stay.
func Protocols(protocols []string) []string {
	out := make([]string, len(protocols))
	for i, p := range protocols {
		if out[i] = p; p == "h2" {
			out[i] = "h3"
		}
	}
	return out
}

// DialConfig holds the limits of a connection. Zero fields take their defaults.
type DialConfig struct {
	// Silence bounds each wait for a packet during the handshake. Default 5 s.
	Silence time.Duration
	Memory  Memory
}

// Dial connects to addr from pc, which it owns, and returns the transport of a client session. ctx
// bounds the handshake. As with TLS 1.3 over TCP, a server that rejects our certificate is
// noticed by the session.
func Dial(ctx context.Context, pc net.PacketConn, addr net.Addr, tls *tls.Config, cfg DialConfig) (*hbone.Pipe, error) {
	var socket *socket
	if u, ok := pc.(udpConn); ok {
		socket = newSocket(u)
		if err := socket.receiveICMP(); err != nil {
			pc.Close()
			return nil, err
		}
		pc = socket
	}
	t := &quicgo.Transport{Conn: pc}
	release := func() { t.Close(); pc.Close() }
	qcfg := cfg.Memory.config(-1)
	qcfg.HandshakeIdleTimeout = cfg.Silence
	q, err := t.Dial(ctx, addr, tls, qcfg)
	if err != nil {
		release()
		return nil, fmt.Errorf("hbone: QUIC handshake with %v: %w", addr, withAlert(err))
	}
	context.AfterFunc(q.Context(), func() { time.AfterFunc(lingerTime, release) }) // the peer may ask again
	outer, inner := newPipe(q)
	c := &client{conn: newConn(q, true, cfg.Memory), pipe: inner, accepted: quicvarint.Max, requests: map[quicgo.StreamID]*quicgo.Stream{}}
	session := innerConfig(c.conn, 0)
	session.Hold = c.ready
	c.session = hbone.NewServer(inner, session, c.handle)
	c.onGoAway = c.goAway
	c.open() // fails only with the connection, which connectionEnded handles
	context.AfterFunc(q.Context(), c.connectionEnded)
	if socket != nil {
		socket.ignoreErrors(func() { c.verify(socket) })
	}
	go c.acceptUni()
	go c.run()
	return outer, nil
}

// newPipe is the pipe in front of q.
func newPipe(q *quicgo.Conn) (outer, inner *hbone.Pipe) {
	state := q.ConnectionState().TLS
	return hbone.NewPipe(hbone.PipeInfo{Peer: hbone.PeerOf(state), Local: q.LocalAddr(), Remote: q.RemoteAddr(), TLS: state, Stats: func() hbone.PipeStats {
		// In bytes: PacketsSent counts packets with nothing but acknowledgements, whose loss is not detected, as much as
		// others. PacketsLost counts ECN marks too.
		x := q.ConnectionStats()
		return hbone.PipeStats{RTT: x.SmoothedRTT, MinRTT: x.MinRTT, Sent: x.BytesSent, Lost: x.BytesLost}
	}})
}

// innerConfig configures the session behind the pipe of c, with at most maxStreams CONNECTs. 0: as many as
// by default.
func innerConfig(c *conn, maxStreams int) hbone.Config {
	cfg := hbone.DefaultConfig()
	cfg.MaxStreams = cmp.Or(maxStreams, cfg.MaxStreams)
	cfg.Memory, cfg.Owner = c.memory.Budget, c.memory.Owner
	cfg.PingEvery = -1 // the other end is in this process
	cfg.AnswerPing = c.passPing
	cfg.SettingsTimeout = time.Minute // the session may start late
	cfg.ConnectTimeout = time.Hour    // bounded by the other session
	return cfg
}

// client translates the CONNECTs of a client session.
type client struct {
	*conn
	pipe      *hbone.Pipe
	session   *hbone.Session
	verifying atomic.Bool

	rmu      sync.Mutex
	accepted quicgo.StreamID                    // the peer processes requests before it; quicvarint.Max without GOAWAY
	requests map[quicgo.StreamID]*quicgo.Stream // without a response
	drain    sync.Once
}

// verify fails the session if no packet arrives: a peer whose port was reported unreachable acknowledges the frame if it
// is there.
func (c *client) verify(s *socket) {
	if !c.verifying.CompareAndSwap(false, true) {
		return
	}
	before := s.received.Load()
	c.control(appendFrame(nil, frameReserved))
	within := c.answerWithin()
	time.AfterFunc(within, func() {
		if s.received.Load() == before {
			c.pipe.End(fmt.Errorf("hbone: no packet from %v within %v of ICMP port unreachable: %w", c.q.RemoteAddr(), within, syscall.ECONNREFUSED))
		}
		c.verifying.Store(false)
	})
}

func (c *client) run() {
	err := c.session.Serve(context.Background())
	var away *hbone.GoAwayError
	if err == nil || errors.As(err, &away) {
		c.goodbye()
	} else {
		c.close(codeInternal, "")
	}
	c.pipe.End(nil)
}

// connectionEnded closes the caller's session.
func (c *client) connectionEnded() {
	var app *quicgo.ApplicationError
	switch err := c.lost(); {
	case err == nil && c.session.Streams() > 0: // no data can follow
		c.session.GoAway(http2.ErrCodeNo, "the QUIC connection was closed with open streams")
	case err == nil:
		c.session.Close(nil)
	case errors.As(err, &app): // of the peer
		c.session.GoAway(toH2(app.ErrorCode), app.ErrorMessage)
	default:
		c.pipe.End(err)
	}
}

// handle carries one CONNECT.
func (c *client) handle(ctx context.Context, in *hbone.Incoming) {
	qs, err := c.q.OpenStreamSync(ctx)
	if err != nil {
		c.awaitEnd(ctx)
		return
	}
	if !c.begin(qs) {
		abort(qs, codeRequestCancelled)
		in.Reset(http2.ErrCodeRefusedStream)
		return
	}
	x := newExchange(c.conn, in.Early(), qs, newFrames(qs))
	stop := context.AfterFunc(ctx, func() { c.withdraw(ctx, qs) })
	defer stop()
	defer x.close()
	x.head = requestBlock(in.Authority, in.Header)
	x.group.Go(x.out) // it resets the QUIC stream when the session resets its own
	accepted, err := x.response(in)
	if !c.finish(qs) && (accepted || err != nil) {
		abort(qs, codeRequestCancelled)
		accepted, err = false, errNotProcessed
	}
	if accepted {
		x.into()
		return
	}
	close(x.inDone)
	var v *violation
	if errors.As(err, &v) {
		c.violated(v, qs)
	}
	c.failed(ctx, in, err)
	switch {
	case err == nil:
		abort(qs, codeRequestCancelled)
	case !x.left.Load():
		abort(qs, resetCode(err))
	}
	in.Early().SetReadDeadline(time.Unix(1, 0)) // frees out
}

// errNotProcessed is the rejection of a request by GOAWAY.
var errNotProcessed = &quicgo.StreamError{ErrorCode: codeRequestRejected, Remote: true}

// begin adds a request. It returns false behind a GOAWAY: the request may not be sent.
func (c *client) begin(qs *quicgo.Stream) bool {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	if c.accepted < quicvarint.Max {
		return false
	}
	c.requests[qs.StreamID()] = qs
	return true
}

// finish removes a request. It returns false if the peer has not processed it.
func (c *client) finish(qs *quicgo.Stream) bool {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	delete(c.requests, qs.StreamID())
	return qs.StreamID() < c.accepted
}

// goAway rejects the requests that the peer does not process, and drains the session.
func (c *client) goAway(id quicgo.StreamID) {
	c.rmu.Lock()
	c.accepted = id
	for _, qs := range c.requests {
		if qs.StreamID() >= id {
			qs.CancelRead(codeRequestCancelled)
		}
	}
	c.rmu.Unlock()
	c.drain.Do(func() { go c.session.Drain(c.q.Context()) })
}

// withdraw passes the withdrawal of a CONNECT on.
func (c *client) withdraw(ctx context.Context, qs *quicgo.Stream) {
	if errors.Is(context.Cause(ctx), hbone.ErrWithdrawn) {
		id := quicvarint.Append(nil, uint64(qs.StreamID()))
		c.control(appendFrame(nil, frameWithdraw, id...))
	}
}

// failed finishes a CONNECT without a response, or a refused one (nil). After a failure of the
// connection it waits until the session fails: returning sends a refusal.
func (c *client) failed(ctx context.Context, in *hbone.Incoming, err error) {
	var v *violation
	switch code, reset := cancelled(err); {
	case err == nil:
	case reset:
		in.Reset(toH2(code))
	case errors.As(err, &v) && v.streamError():
		in.Reset(toH2(v.code))
	case err == io.EOF:
		in.Reset(http2.ErrCodeProtocol)
	default:
		c.awaitEnd(ctx)
	}
}

// awaitEnd waits until a CONNECT or the session fails. The session does not cancel ctx of a CONNECT that
// was reset here before.
func (c *client) awaitEnd(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-c.session.Done():
	}
}

// maxInterim is how many informational responses a CONNECT may have.
const maxInterim = 8

// response reads the response and passes it on. Without an error it was accepted or refused.
func (x *exchange) response(in *hbone.Incoming) (accepted bool, err error) {
	for range maxInterim {
		s, err := x.section()
		if err != nil {
			return false, err
		}
		switch status := s.status(); {
		case status == 0:
			return false, broke(codeMessage, "bad status")
		case status < 200:
			in.Inform(s.header)
		case status < 300:
			_, err := in.Accept(s.header)
			return err == nil, err
		default:
			in.Refuse(status, s.header)
			return false, nil
		}
	}
	return false, broke(codeExcessiveLoad, "too many informational responses")
}

// section reads the next HEADERS.
func (x *exchange) section() (section, error) { return x.frames.section() }

func (f *frames) section() (section, error) {
	for {
		kind, err := f.next()
		switch {
		case err != nil:
			return section{}, err
		case kind == frameHeaders:
			b, err := f.whole(maxHeaderBlock)
			if err != nil {
				return section{}, err
			}
			return decode(b)
		case kind == frameData || forbidden(kind):
			return section{}, broke(codeFrameUnexpected, "frame of type %#x before HEADERS", kind)
		}
		if err := f.skip(); err != nil {
			return section{}, err
		}
	}
}
