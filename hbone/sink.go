package hbone

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/flow"
	"golang.org/x/net/http2"
)

// sink delivers what a stream receives to a connection. It is driven by kick and
// owns no goroutine while there is nothing to deliver.
type sink struct {
	st   *Stream
	c    net.Conn
	sock socket
	// inline: c can be written without blocking, so that the reader may do it.
	inline bool
	// tellsAll: c leaves what was said before a reset to be read, see lastwords.go.
	tellsAll bool
	done     chan struct{} // closed when this direction has ended

	// Owned by whoever runs; final once done is closed.
	moved    int64
	err      error
	ownFault bool                     // err was not the consequence of our own reset
	partial  *chunk                   // partly written
	onSend   func([]byte) (more bool) // see RelayOptions; nil: none, or it wants no more
	shown    int64                    // bytes that onSend was called with
	peerLeft bool                     // the peer has left or is lost: it cannot be held back any more
	lastTime *time.Timer              // bounds what follows deaf; nil: none

	mu          sync.Mutex
	running     bool
	kickedAgain bool // kicked while running
	finished    bool
	onFinish    func()      // nil: none, or called
	over        bool        // the relay is over
	uncut       func() bool // see cutWith; nil: not called

	telling sync.Mutex // held while a write may be told of a reset of c: see endedFirst
	told    error      // what the kernel has told of it; nil: nothing

	ending atomic.Bool // c gets its FIN or a reset from here
	deaf   atomic.Bool // c was reset: it takes nothing more, and what it said before is still passed on

	try   func(fd uintptr) bool // attempt, with its argument and results
	tryP  []byte
	tryN  int
	tryEr error
}

func newSink(st *Stream, c net.Conn) *sink {
	k := &sink{st: st, c: c, done: make(chan struct{})}
	k.try = k.attempt
	k.sock, k.inline = socketOf(c)
	_, stream := c.(*Stream)
	k.tellsAll = k.inline || stream
	if k.inline && k.sock.mem == nil {
		k.sock.raw.Control(k.wasToldBefore)
	}
	return k
}

// attach makes the sink the consumer of its stream.
func (k *sink) attach() {
	k.st.recv.mu.Lock()
	k.st.recv.sink = k
	k.st.recv.mu.Unlock()
	k.kick()
}

// kick delivers what there is. The session's reader calls it after each batch:
// it does not block.
func (k *sink) kick() {
	gone, left := k.st.resetOrLeft()
	if gone && k.lastWords() {
		k.c.SetWriteDeadline(time.Now().Add(lastWordsWithin))
	} else if gone {
		hardClose(k.c) // frees a delivery that the application blocks
	}
	cut := !gone && k.st.brokenBehindEnd()
	if left || cut {
		k.c.SetWriteDeadline(time.Now().Add(stallTime))
	}
	k.mu.Lock()
	if k.finished {
		k.mu.Unlock()
		if left {
			k.c.SetReadDeadline(time.Now().Add(dropTime))
		}
		if cut {
			k.endSource()
		}
		return
	}
	if k.running {
		k.kickedAgain = true
		k.mu.Unlock()
		return
	}
	k.running = true
	k.mu.Unlock()
	if !k.inline || !k.run(false) {
		go k.run(true)
	}
}

// resetOrLeft reports that the stream was reset, or that its peer left in order.
func (st *Stream) resetOrLeft() (reset, left bool) {
	err, left := st.recv.state()
	return err != nil, left
}

// brokenBehindEnd reports that the stream was reset, or lost with its session, after
// its peer's END_STREAM and before our own: what was received is complete, what the
// application still says is not.
func (st *Stream) brokenBehindEnd() bool {
	st.recv.mu.Lock()
	behind := st.recv.broken != nil && st.recv.ended
	st.recv.mu.Unlock()
	if !behind {
		return false
	}
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	return !st.send.ended
}

// run delivers until nothing is left. Without block it stops, false, at
// anything that might take long. The caller has set running.
func (k *sink) run(block bool) bool {
	for {
		c, err := k.next(block)
		switch {
		case err == errBulk:
			return false
		case err != nil:
			k.finish(err)
			return true
		case c != nil:
			if ok := k.deliver(c, block); !ok {
				return false
			}
			continue
		}
		k.mu.Lock()
		if !k.kickedAgain {
			k.running = false
			k.mu.Unlock()
			return true
		}
		k.kickedAgain = false
		k.mu.Unlock()
	}
}

var errBulk = errors.New("more than is delivered inline")

// next returns the chunk to deliver, nil if there is none now, or how the
// receiving half has ended.
func (k *sink) next(block bool) (*chunk, error) {
	if c := k.partial; c != nil {
		k.partial = nil
		return c, nil
	}
	st := k.st
	st.recv.mu.Lock()
	defer st.recv.mu.Unlock()
	k.peerLeft = st.recv.peerLeft || st.recv.broken != nil && st.recv.err == nil
	switch {
	case st.recv.err != nil && !(k.tellsAll && st.recv.lastWordsLocked()):
		return nil, st.recv.err
	case st.recv.closed:
		return nil, net.ErrClosed
	case !block && st.recv.queue.n > flow.InlineMax && st.recv.queue.n > st.s.inlineMax():
		return nil, errBulk
	case st.recv.queue.n > 0:
		return st.recv.takeLocked(), nil
	case st.recv.ended:
		return nil, io.EOF
	}
	return nil, st.recv.err
}

func (s *Session) inlineMax() int {
	return flow.Inline(s.fewCPUs, s.fewCPUs && s.path.isInteractive(time.Now()))
}

// deliver writes c; false if it would block and must not.
func (k *sink) deliver(c *chunk, block bool) bool {
	if k.deaf.Load() { // the peer may be in the middle of a write: it is to hear us out
		k.st.release(k.st.recv.delivered(c.w - c.r))
		k.st.recv.queue.free(c)
		return true
	}
	var n int
	var err error
	k.show(c.b[c.r:c.w])
	if block {
		if k.peerLeft {
			k.c.SetWriteDeadline(time.Now().Add(stallTime))
		}
		n, err = k.write(c.b[c.r:c.w])
	} else {
		n, err = k.writeNow(c.b[c.r:c.w])
	}
	k.moved += int64(n)
	c.r += n
	k.st.release(k.st.recv.delivered(n))
	if err == nil && c.r < c.w {
		k.partial = c
		return false
	}
	k.st.recv.queue.free(c)
	if err != nil {
		k.writeFailed(err)
	}
	return true
}

// show calls onSend with p, which is written next, before c can reply to it.
func (k *sink) show(p []byte) {
	fresh := k.moved + int64(len(p)) - k.shown // less than all of p behind a partial write
	if k.onSend == nil || fresh <= 0 {
		return
	}
	k.shown += fresh
	if !k.onSend(p[int64(len(p))-fresh:]) {
		k.onSend = nil
	}
}

// writeNow writes what the socket takes at once.
func (k *sink) writeNow(p []byte) (int, error) {
	k.tryP, k.tryN, k.tryEr = p, 0, nil
	err := k.sock.raw.Write(k.try)
	k.tryP = nil
	if err == nil {
		err = k.tryEr
	}
	return k.tryN, err
}

func (k *sink) attempt(fd uintptr) bool {
	n, err := k.writeTo(fd, k.tryP)
	switch err {
	case syscall.EAGAIN:
	case nil:
		k.tryN = n
	default:
		k.tryEr = err
	}
	return true
}

// write writes all of p, and waits for that.
func (k *sink) write(p []byte) (n int, err error) {
	if !k.inline || k.sock.mem != nil {
		return k.c.Write(p)
	}
	rawErr := k.sock.raw.Write(func(fd uintptr) bool {
		for n < len(p) {
			var m int
			if m, err = k.writeTo(fd, p[n:]); err != nil {
				return err != syscall.EAGAIN
			}
			n += m
		}
		return true
	})
	if rawErr != nil {
		return n, rawErr
	}
	return n, err
}

// writeTo is write(2), which may be told that the connection was reset.
func (k *sink) writeTo(fd uintptr, p []byte) (int, error) {
	k.telling.Lock()
	defer k.telling.Unlock()
	n, err := k.sock.write(fd, p)
	if err != nil && err != syscall.EAGAIN && k.told == nil {
		k.told = err
	}
	return n, err
}

// writeFailed is a write that the application did not take: it is gone.
func (k *sink) writeFailed(err error) {
	if k.lastWords() { // too late for it: the peer's reset is what ended the stream
		hardClose(k.c)
		return
	}
	wasReset := k.wasTold(err)
	if !errors.Is(err, net.ErrClosed) {
		k.ownFault = true
		err = fmt.Errorf("hbone: relay: write to %v: %w", k.c.RemoteAddr(), err)
	}
	k.err = err
	if wasReset && k.hearOut(err) {
		return
	}
	k.st.resetBehind(http2.ErrCodeConnect, err) // no abort: the source may have just reset it so, and closed c
	hardClose(k.c)
}

// finish ends the direction: io.EOF as a half-close, anything else as a reset. A
// connection that was reset already takes no FIN; it must not pass for one that ended
// behind it, as its source may find nothing else: a reset is told once, and that may
// have been to who had the connection before the relay.
func (k *sink) finish(err error) {
	reset := err == io.EOF && k.wasResetNow()
	k.ending.Store(!reset)
	switch {
	case reset && k.err != nil: // a write was told
	case reset:
		k.err = fmt.Errorf("hbone: relay: %v was reset before its end: %w", k.c.RemoteAddr(), syscall.ECONNRESET)
	case err == io.EOF:
		halfClose(k.c)
	default:
		if k.err == nil {
			k.err = err
		}
		hardClose(k.c)
	}
	k.mu.Lock()
	k.finished = true
	k.mu.Unlock()
	if k.st.peerLeft(nil) { // asked after finished is set: kick asks before
		k.c.SetReadDeadline(time.Now().Add(dropTime))
	}
	if k.st.brokenBehindEnd() { // likewise
		k.endSource()
	}
	close(k.done)
	k.release()
}

// halfClose passes a FIN on; a connection that cannot do that is closed.
func halfClose(c net.Conn) {
	if cw, ok := c.(interface{ CloseWrite() error }); ok {
		cw.CloseWrite()
		return
	}
	c.Close()
}
