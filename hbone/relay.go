package hbone

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"golang.org/x/net/http2"
)

// RelayResult is what a Relay moved and why it ended. Err is nil when both
// directions ended in order, and when the peer left in order.
type RelayResult struct {
	ToStream int64 // bytes
	ToConn   int64
	// ConnFirst: the connection sent its FIN before the peer of the stream had ended
	// its half. A process that is killed has the kernel do that too.
	ConnFirst bool
	Err       error
}

// What c may cost after the peer of its stream has left, which ends its half and
// reads no more (RST_STREAM behind END_STREAM; see also Config.CancelEnds).
// Closing a TCP socket with unread bytes resets it, and what the application has
// not yet read of its own input is lost: so c gets its FIN, and what it still
// says is read and thrown away.
const (
	// dropTime is how long c may go on after its FIN.
	dropTime = 3 * time.Second
	// dropMax is how many bytes it may send: what two kernels hold for one
	// connection by default (4 MiB to send, 6 MiB to receive), and then some.
	dropMax = 16 << 20
	// stallTime is how long c may take to accept one chunk of what was received
	// for it: until then that lies in the session's window.
	stallTime = 30 * time.Second
)

// Relay copies both ways between s and c until both directions have ended or ctx
// is done, and closes both. A half-close travels as a half-close: END_STREAM to
// FIN, FIN to END_STREAM. A reset travels as a reset: RST_STREAM to TCP RST
// (SetLinger(0) where c has it), ECONNRESET to RST_STREAM(CONNECT_ERROR), behind what
// was sent before it (see lastWordsWithin), all of it if END_STREAM or FIN came first. When
// ctx ends both sides are reset, with CONNECT_ERROR too. When the peer has left in order, c gets all that
// was received and a FIN, and is closed when it ends too or dropTime is over.
//
// With c a *net.TCPConn, *net.UnixConn or *Stream an idle relay holds the
// caller's goroutine and no buffer: that goroutine waits for c to be readable, and
// then reads no more than s can send, so that what cannot be sent holds c's sender back;
// the session's reader delivers what comes from the stream, by itself when that
// does not block, otherwise by a goroutine that lives until all is delivered.
func Relay(ctx context.Context, s *Stream, c net.Conn) RelayResult {
	return RelayWith(ctx, s, c, RelayOptions{})
}

// RelayOptions are what a relay may be told besides.
type RelayOptions struct {
	// OnSend is called with the bytes of the stream that are about to be written to c,
	// once for each, until it returns false. It runs where they are written, which may
	// be the session's reader: it must not block, and not keep p. Nil: nobody is told.
	OnSend func(p []byte) (more bool)
	// OnReply is called from the caller's goroutine with each piece that c has sent,
	// before it is sent on, and with nothing at c's FIN, until it returns false. It
	// must not keep p. Nil: nobody is told.
	OnReply func(p []byte) (more bool)
	// First goes to the stream before what c sends; it counts in ToStream.
	First []byte
	// HalfClosed is how long the direction to c may go on after c has sent FIN;
	// then both sides are reset with ErrHalfClosed. It is for relays of tunnels
	// that carry TLS, where nothing sensible can follow the server's FIN. Zero
	// means without bound.
	HalfClosed time.Duration
}

// ErrHalfClosed is the end of a relay whose stream went on for longer than
// RelayOptions.HalfClosed after the other side's FIN.
var ErrHalfClosed = errors.New("hbone: relay: the stream stayed open after the other side had closed")

// RelayWith is Relay with options.
func RelayWith(ctx context.Context, s *Stream, c net.Conn, o RelayOptions) RelayResult {
	setLinger(c, 0)
	k := newSink(s, c)
	k.onSend = o.OnSend
	cut := func() {
		s.abort(http2.ErrCodeConnect, context.Cause(ctx)) // CANCEL behind END_STREAM would be an end in order
		hardClose(c)
	}
	stop := context.AfterFunc(ctx, func() {
		if k.outlives(context.Cause(ctx)) { // a handler's context, ended by the stream itself
			k.cutWith(s.s.base, cut)
			return
		}
		cut()
	})
	defer k.leave()
	defer stop()
	k.attach()
	n, first, err := pumpToStream(s, k, newSource(k), o)
	if err == nil && o.HalfClosed > 0 {
		overdue := time.AfterFunc(o.HalfClosed, func() {
			s.abort(http2.ErrCodeConnect, ErrHalfClosed)
			hardClose(c)
		})
		defer overdue.Stop()
	}
	if err != nil && s.peerLeft(err) && !drop(c) {
		hardClose(c)
	}
	if err == nil {
		if err = k.awaitReset(); err != nil {
			hardClose(c)
		}
	}
	if err = s.relayError(err); err != nil && !k.hasLastWords() && !s.stoppedBehindEnd() {
		s.resetBehind(resetCode(err), err)
	}
	<-k.done
	k.stopLastTime()
	res := RelayResult{ToStream: n, ToConn: k.moved, ConnFirst: first, Err: err}
	if res.Err == nil || k.ownFault {
		res.Err = k.err
	}
	if ctx.Err() != nil && res.Err != nil {
		res.Err = context.Cause(ctx)
	}
	if res.Err != nil {
		k.awaitDelivery()
	}
	s.Close()
	if res.Err != nil {
		hardClose(c) // its own FIN, or END_STREAM, may be out already: a plain close would say no more
		return res
	}
	setLinger(c, -1)
	c.Close()
	return res
}

// setLinger with 0 has the kernel reset c if this process dies: it would say FIN
// otherwise, and what was cut short would look complete. What ends in order is told
// by CloseWrite, which this does not touch.
func setLinger(c net.Conn, sec int) {
	if l, ok := c.(interface{ SetLinger(int) error }); ok {
		l.SetLinger(sec)
	}
}

// pumpToStream moves o.First and then bytes from src, which is k's connection, to s
// until that ends; nil is a FIN, passed on, and first says that the peer had not ended
// its half by then.
func pumpToStream(s *Stream, k *sink, src source, o RelayOptions) (moved int64, first bool, err error) {
	if len(o.First) > 0 {
		n, err := s.Write(o.First)
		if moved += int64(n); err != nil {
			return moved, false, err
		}
	}
	onReply := o.OnReply
	for {
		f, n, err := src.next()
		if err == io.EOF {
			if onReply != nil {
				onReply(nil)
			}
			first = !s.peerEnded() // asked now: the peer may answer END_STREAM with its own
			return moved, first, s.CloseWrite()
		}
		if err != nil {
			return moved, false, err
		}
		if onReply != nil && !onReply(f.payload()[:n]) {
			onReply = nil
		}
		n, err = src.send(f, n)
		moved += int64(n)
		if err != nil {
			return moved, false, err
		}
	}
}

// drop reads c to its end, true, or until it has brought more than dropMax. The read
// deadline that the sink sets bounds the time.
func drop(c net.Conn) bool {
	buf := make([]byte, 4<<10)
	for n := 0; n <= dropMax; {
		k, err := c.Read(buf)
		if err != nil {
			return true
		}
		n += k
	}
	return false
}

// peerLeft reports that the peer has left in order, as err or the stream says: it reads
// nothing any more.
func (st *Stream) peerLeft(err error) bool {
	var d *orderlyReset
	if errors.As(err, &d) {
		return true
	}
	st.recv.mu.Lock()
	defer st.recv.mu.Unlock()
	return st.recv.peerLeft
}

// peerEnded reports that the peer has ended its half, as far as the reader knows.
func (st *Stream) peerEnded() bool {
	st.s.mu.Lock()
	ended := st.endReceived
	st.s.mu.Unlock()
	return ended || st.peerLeft(nil)
}

// relayError translates the end of the direction towards the stream: a peer that left
// in order is no error, and neither is what follows from a reset
// that has its own cause.
func (st *Stream) relayError(err error) error {
	if err == nil || st.peerLeft(err) {
		return nil
	}
	st.recv.mu.Lock()
	defer st.recv.mu.Unlock()
	if st.recv.broken != nil {
		return st.recv.broken
	}
	return err
}

// resetCode is what the stream's peer is told about err: the reset of another
// stream as it is, anything else as a failed TCP connection (RFC 9113 §8.5).
func resetCode(err error) http2.ErrCode {
	var reset *ResetError
	if errors.As(err, &reset) {
		return reset.Code
	}
	return http2.ErrCodeConnect
}

// hardClose closes c with a reset where c can do that, behind what was written to it:
// the kernel has sent that already, and a stream is to lose no more.
func hardClose(c net.Conn) {
	switch c := c.(type) {
	case *Stream:
		c.resetBehind(http2.ErrCodeConnect, &ResetError{Code: http2.ErrCodeConnect})
	case interface{ SetLinger(int) error }:
		c.SetLinger(0)
	}
	c.Close()
}
