package quic

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	quicgo "github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/quicvarint"
	"golang.org/x/net/http2"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/internal/memory"
)

const (
	// chunk is the largest payload of a DATA frame, in bytes.
	chunk = 32 << 10
	// Data before a reset is delivered within lastWordsWithin, and dropped when nothing moves
	// for stallCheck, as in package hbone.
	lastWordsWithin = 10 * time.Second
	stallCheck      = time.Second
)

// flushWithin bounds how long complete streams are sent after their session closed, as over TCP. Tests shorten it.
var flushWithin = hbone.DefaultConfig().FlushTimeout

// exchange joins the stream of a session to a QUIC stream. HTTP/2 has one reset for both
// halves. In QUIC each half has its own, and a reset is the end of both here too: frameReset behind
// the data (RESET_STREAM to other peers), and STOP_SENDING.
type exchange struct {
	c      *conn
	st     *hbone.Stream
	qs     *quicgo.Stream
	frames *frames
	head   []byte // HEADERS that out writes first; nil if they are written

	outDone, inDone chan struct{} // closed when a direction is complete or has failed
	outEnd, inEnd   bool          // in order; valid once closed
	torn            bool          // out has written part of a frame
	left            atomic.Bool   // out has reset the QUIC stream
	gone            time.Time     // when out has found that the session's stream was reset, or its session closed
	moved           atomic.Int64  // bytes from the peer to the session
	group           sync.WaitGroup
	unwatch         func() bool
	use             *memory.Use // of unread bytes
}

func newExchange(c *conn, st *hbone.Stream, qs *quicgo.Stream, f *frames) *exchange {
	x := &exchange{c: c, st: st, qs: qs, frames: f, outDone: make(chan struct{}), inDone: make(chan struct{})}
	x.use = c.memory.Budget.Open(c.memory.Owner, memory.Stream, x.forget)
	x.unwatch = context.AfterFunc(qs.Context(), x.stopped)
	return x
}

// close returns when both directions are complete.
func (x *exchange) close() {
	x.group.Wait()
	x.unwatch()
	x.use.Close()
}

// forget resets both streams for want of memory.
func (x *exchange) forget() bool {
	x.st.Reset(http2.ErrCodeEnhanceYourCalm)
	abort(x.qs, codeExcessiveLoad)
	return true
}

// stopped runs when the sending half of the QUIC stream is closed. On STOP_SENDING the peer has
// reset the stream, or left it after its FIN.
func (x *exchange) stopped() {
	code, ok := cancelled(context.Cause(x.qs.Context()))
	if !ok {
		return
	}
	if x.c.client || x.st.Responded() { // otherwise the client gives up
		if x.awaitIn(x.sendsOn(code)) {
			x.st.ResetBehind(toH2(code))
			return
		}
	}
	x.st.Reset(toH2(code))
	x.qs.CancelRead(code)
}

// sendsOn reports that STOP_SENDING with code comes from a server that only reads no more. Its response may
// come late (RFC 9114 §4.1).
func (x *exchange) sendsOn(code quicgo.StreamErrorCode) bool {
	return x.c.client && code == codeNoError
}

// awaitIn waits for the receiving direction. It returns false if that stalls, unless it may take any time.
func (x *exchange) awaitIn(anyTime bool) bool {
	tick := time.NewTicker(stallCheck)
	defer tick.Stop()
	began, moved := time.Now(), x.moved.Load()
	for {
		select {
		case <-x.inDone:
			return true
		case <-tick.C:
		}
		now := x.moved.Load()
		if !anyTime && (now == moved || time.Since(began) > lastWordsWithin) {
			return false
		}
		moved = now
	}
}

// out moves what the session sends, and returns when both directions may be forgotten.
func (x *exchange) out() {
	err := x.copyOut()
	code, stopped := cancelled(err)
	switch {
	case err == io.EOF:
		x.outEnd = true
		x.qs.Close()
	case stopped: // see x.stopped
		x.qs.CancelWrite(code)
	default:
		x.resetBehind(resetCode(err))
	}
	close(x.outDone)
	if !x.outEnd && !(stopped && x.sendsOn(code)) {
		return
	}
	if err := x.st.AwaitReset(); !errors.Is(err, net.ErrClosed) {
		x.qs.CancelRead(resetCode(err))
	}
}

// resetBehind resets both halves of the QUIC stream, behind the data if the peer understands that. The peer stops
// our half when it has read so far. If it does not read, RESET_STREAM overtakes the data.
func (x *exchange) resetBehind(code quicgo.StreamErrorCode) {
	x.left.Store(true)
	behind := !x.torn && x.c.isOurs() && x.write(appendFrame(nil, frameReset, quicvarint.Append(nil, uint64(code))...)) == nil
	x.qs.CancelRead(code)
	if !behind {
		x.qs.CancelWrite(code)
		return
	}
	overdue := time.AfterFunc(lastWordsWithin, func() { x.qs.CancelWrite(code) })
	context.AfterFunc(x.qs.Context(), func() {
		overdue.Stop()
		x.qs.CancelWrite(code) // quic-go forgets the stream then
	})
}

// abort resets both halves of qs.
func abort(qs *quicgo.Stream, code quicgo.StreamErrorCode) {
	qs.CancelWrite(code)
	qs.CancelRead(code)
}

func (x *exchange) copyOut() error {
	if err := x.write(x.head); err != nil {
		return err
	}
	for {
		if err := x.st.WaitReadable(); err != nil {
			return err
		}
		if err := x.outChunk(); err != nil {
			return err
		}
	}
}

var chunks = sync.Pool{New: func() any { return new([dataFront + chunk]byte) }}

func (x *exchange) outChunk() error {
	buf := chunks.Get().(*[dataFront + chunk]byte)
	defer chunks.Put(buf)
	n, err := x.st.Read(buf[dataFront:])
	if err != nil {
		return err
	}
	return x.write(layoutData(buf[:], n))
}

// write writes b. It gives up if the session's stream was reset and nothing moves, or if the session has
// closed and the peer does not read.
func (x *exchange) write(b []byte) error {
	for whole := len(b); ; {
		x.qs.SetWriteDeadline(time.Now().Add(stallCheck))
		n, err := x.qs.Write(b)
		b = b[n:]
		x.torn = 0 < len(b) && len(b) < whole
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		if broken := x.st.Broken(); broken != nil {
			if n == 0 || x.goneFor(lastWordsWithin) {
				return broken
			}
		} else if closed := x.st.Session().Err(); closed != nil && x.goneFor(flushWithin) {
			return closed
		}
	}
}

// goneFor reports whether the first call is longer ago than limit.
func (x *exchange) goneFor(limit time.Duration) bool {
	if x.gone.IsZero() {
		x.gone = time.Now()
	}
	return time.Since(x.gone) > limit
}

// into moves data of the peer, and closes the stream of the session after both directions.
func (x *exchange) into() {
	err := x.copyIn()
	var v *violation
	switch code, reset := cancelled(err); {
	case err == io.EOF:
		x.inEnd = true
		x.st.CloseWrite()
	case reset:
		x.st.ResetBehind(toH2(code))
		x.cancelOut(code)
		x.qs.CancelRead(code)
	case errors.As(err, &v):
		x.c.close(v.code, v.text)
	default: // reset by the session, or failed with it; or cancelled already, or with the connection
		x.qs.CancelRead(resetCode(err))
	}
	close(x.inDone)
	<-x.outDone
	switch {
	case x.inEnd && x.outEnd:
		x.st.Close()
		return
	case x.c.down(): // the session fails with the error of the connection, not this stream alone
		<-x.st.Session().Done()
	}
	code, stopped := cancelled(context.Cause(x.qs.Context()))
	if !stopped {
		code = codeInternal
	}
	x.st.ResetBehind(toH2(code)) // nothing, if it was reset before
}

// cancelOut resets the sending half, unless it is complete: its data is still delivered.
func (x *exchange) cancelOut(code quicgo.StreamErrorCode) {
	select {
	case <-x.outDone:
	default:
		x.qs.CancelWrite(code)
	}
}

func (x *exchange) copyIn() error {
	for {
		if err := x.frames.data(); err != nil {
			return err
		}
		if err := x.inChunk(); err != nil {
			return err
		}
	}
}

func (x *exchange) inChunk() error {
	buf := chunks.Get().(*[dataFront + chunk]byte)
	defer chunks.Put(buf)
	n, err := x.frames.read(buf[:])
	if err != nil {
		return err
	}
	taken, err := x.st.TryWrite(buf[:n])
	if err == nil && taken < n { // the session does not keep up: the peer fills the window of the stream
		held := x.held()
		if !x.use.Reserve(held) {
			x.forget()
		}
		var rest int
		rest, err = x.push(buf[taken:n])
		x.use.Release(held)
		taken += rest
	}
	x.moved.Add(int64(taken))
	return err
}

// push writes b to the session, and waits for that. It gives up if the peer has reset the stream.
func (x *exchange) push(b []byte) (total int, err error) {
	defer x.st.SetWriteDeadline(time.Time{})
	for {
		x.st.SetWriteDeadline(time.Now().Add(stallCheck))
		n, err := x.st.Write(b[total:])
		if total += n; !errors.Is(err, os.ErrDeadlineExceeded) {
			return total, err
		}
		x.qs.SetReadDeadline(time.Now())
		_, err = x.qs.Peek(make([]byte, 1))
		x.qs.SetReadDeadline(time.Time{})
		if _, reset := cancelled(err); reset {
			return total, err
		}
	}
}

// held returns how many bytes are held at most while the session does not read: a chunk, and the
// window of the stream. quic-go doubles that after half of it was read.
func (x *exchange) held() int {
	w := x.c.memory.windows()
	return chunk + int(min(w.stream, w.first+2*x.moved.Load()))
}
