package hbone

import (
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/flow"
	"github.com/isthmus-mesh/isthmus/internal/memory"
)

// recvHalf is the receiving half of a stream: what has arrived and was not read,
// the window that bounds it, and its end. Each byte enters by push and leaves by
// read, delivered or close, which say how many the session is to release; nothing
// else takes bytes in or out.
//
// It has a lock of its own, which is not held while the session's is taken.
type recvHalf struct {
	path  *path // of the session
	first int   // bytes of window that the stream always has
	most  int   // bytes of window that the stream may have

	mu       sync.Mutex
	cond     sync.Cond // bytes, the end, a deadline
	queue    recvQueue
	taken    int // bytes that the sink has taken from queue and not delivered
	window   flow.Window
	ended    bool  // io.EOF after queue
	peerLeft bool  // RST_STREAM(CANCEL or NO_ERROR) came behind END_STREAM or stands for it
	err      error // after queue
	broken   error // like err, behind an end too
	closed   bool  // nobody will read
	deadline deadline
	sink     *sink
	watch    func() // see Stream.Watch
}

func (h *recvHalf) init(p *path, first, most int, use *memory.Use) {
	h.path, h.first, h.most = p, first, most
	h.queue.use = use
	h.cond.L = &h.mu
	h.window.Init(first)
}

// push queues received bytes, at most as many as the largest chunk holds. It returns
// false if no reader will take them. A half without memory is such a one: the budget
// has reset its stream, or noMemory is to do so. The session's reader alone calls it.
func (h *recvHalf) push(p []byte) (ok, noMemory bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	class, reserved := 0, 0
	if h.queue.room() < len(p) {
		class = h.queue.class(len(p))
		reserved = chunkSizes[class]
		h.mu.Unlock() // a reset of another stream, or of this one, takes its lock
		ok := h.queue.use.Reserve(reserved)
		h.mu.Lock()
		if !ok {
			return false, !h.closed
		}
	}
	if h.closed || h.err != nil {
		h.queue.use.Release(reserved)
		return false, false
	}
	if grown := h.queue.push(p, class); !grown {
		h.queue.use.Release(reserved)
	}
	return true, false
}

// charge takes n bytes that the peer has sent from the window; false if it has
// sent more than it may.
func (h *recvHalf) charge(n int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.window.Avail -= n
	return h.window.Avail >= 0
}

// read waits for bytes, or for whatever ends the half, and moves them to p. The
// caller releases n bytes and tells the peer of due bytes of window.
func (h *recvHalf) read(p []byte) (n, due int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.waitLocked(min(len(p), 1)); err != nil {
		return 0, 0, err
	}
	n = h.queue.read(p)
	return n, h.consumedLocked(n), nil
}

// wait returns when n bytes are queued.
func (h *recvHalf) wait(n int) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.waitLocked(n)
}

func (h *recvHalf) waitLocked(n int) error {
	for {
		switch {
		case h.closed:
			return net.ErrClosed
		case h.deadline.expired:
			return os.ErrDeadlineExceeded
		case h.queue.n >= n:
			return nil
		case h.ended:
			return io.EOF
		case h.err != nil:
			return h.err
		}
		h.cond.Wait()
	}
}

// ready reports, without waiting, whether read would return.
func (h *recvHalf) ready() (bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.queue.n > 0 || h.ended:
		return true, nil
	case h.closed:
		return false, net.ErrClosed
	}
	return false, h.err
}

// hasEnded reports that the peer's end has come, before whatever broke the half.
func (h *recvHalf) hasEnded() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ended
}

func (h *recvHalf) buffered() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.queue.n
}

// consumedLocked counts n bytes as taken in and returns how much window the peer
// is to be told of.
func (h *recvHalf) consumedLocked(n int) (due int) {
	// A stream that is read up to the end holds nothing. Its window does not count against those of others then, or
	// idle streams would keep all of them small. If it is read no more, what fills the window counts as used.
	held := h.queue.n+h.taken > 0
	if !held {
		h.queue.use.SetWindow(h.first, h.first)
	}
	if h.ended || !h.window.Consumed(n) {
		return 0
	}
	now := time.Now()
	due = h.window.Credit(now, h.path.at(now), h.queue.use.Window(h.first, h.most))
	if held {
		h.queue.use.SetWindow(h.first, h.window.Size)
	}
	return due
}

// padding counts n bytes that carry nothing.
func (h *recvHalf) padding(n int) (due int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.consumedLocked(n)
}

// takeLocked hands the first chunk of the queue to the sink. Its bytes stay with
// the half until they are delivered, or until nobody will read.
func (h *recvHalf) takeLocked() *chunk {
	c := h.queue.takeHead()
	if c != nil {
		h.taken += c.w - c.r
	}
	return c
}

// delivered counts n bytes that the sink had taken. The caller releases what it
// returns.
func (h *recvHalf) delivered(n int) (release, due int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n = min(n, h.taken) // close has given all of them back
	h.taken -= n
	return n, h.consumedLocked(n)
}

// close ends the half: nobody will read. The caller releases what it still held,
// queued or in the hands of the sink.
func (h *recvHalf) close() (release int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	release = h.queue.drop() + h.taken
	h.taken = 0
	h.deadline.stop()
	h.queue.use.Close()
	return release
}

// end makes the peer's END_STREAM visible behind what is queued.
func (h *recvHalf) end() {
	h.mu.Lock()
	if h.err == nil {
		h.ended = true
	}
	h.mu.Unlock()
	h.notify()
}

// leave is end for a peer that has left in order: nothing can follow, whatever was
// received. A half that has failed stays failed: that peer was reset before it left.
func (h *recvHalf) leave() {
	h.mu.Lock()
	if h.err == nil {
		h.peerLeft, h.ended = true, true
	}
	h.mu.Unlock()
	h.notify()
}

// fail ends the half with err behind what is queued. To readers an end that came
// before stays one, and ended says that one has.
func (h *recvHalf) fail(err error, ended bool) {
	h.mu.Lock()
	h.ended = h.ended || ended && h.err == nil
	if h.broken == nil {
		h.broken = err
	}
	if !h.ended && h.err == nil {
		h.err = err
	}
	h.mu.Unlock()
}

// state is what the sink and the relay ask for.
func (h *recvHalf) state() (err error, peerLeft bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err, h.peerLeft
}

// notify tells whoever consumes the half that something has changed.
func (h *recvHalf) notify() {
	h.mu.Lock()
	sink, watch := h.sink, h.watch
	h.cond.Broadcast()
	h.mu.Unlock()
	if watch != nil {
		watch()
	}
	if sink != nil {
		sink.kick()
	}
}
