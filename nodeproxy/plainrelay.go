package nodeproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/internal/memory"
)

// plainRelay carries one connection in plain text: near was accepted, far was dialed. An idle one holds two goroutines
// and no buffer.
//
// The two ends see what they would see on two TCP connections that are joined by a pipe:
//   - Each reads a prefix of what the other sent, and an end only if the other sent one behind all its bytes.
//   - What one end sent, and its kernel had acknowledged, before it sent a reset is delivered to the other end before the
//     reset is. An end that does not read it within lastWordsWithin loses the rest.
//   - Urgent data (MSG_OOB) is urgent data at the other end, at the same place between the other bytes. Of urgent bytes
//     that follow each other before they are read the last one is urgent, as on one TCP connection.
type plainRelay struct {
	p         *Proxy
	near, far *net.TCPConn
	access    access
	permit    *permit     // of one to a pod of this node, unless nobody may forbid it
	use       *memory.Use // what was read and not written yet

	mu    sync.Mutex
	by    *net.TCPConn // the connection that failed first; nil if none did
	what  error
	until time.Time // what was sent before that failure is delivered until then; zero if by is nil
}

// run moves bytes both ways until both directions have ended or ctx is done. A half-close travels as a half-close,
// a reset as a reset; when ctx ends both sides are reset.
func (r *plainRelay) run(ctx context.Context) {
	setLingers(r.near, r.far, 0) // if this process dies: a FIN would be an end that neither side sent
	urgentInline(r.near)
	urgentInline(r.far)
	stop := context.AfterFunc(ctx, r.cut)
	up, down := &plainHalf{r: r, from: r.near, to: r.far}, &plainHalf{r: r, from: r.far, to: r.near}
	up.other, down.other = down, up
	r.use = r.p.cfg.Memory.Open(r.owner(), memory.Relay, r.shed)
	defer r.use.Close()
	r.p.boundMemory(r.near, true)
	r.p.boundMemory(r.far, r.permit != nil)
	var wg sync.WaitGroup
	wg.Go(down.pump)
	up.pump()
	wg.Wait()
	stop()
	a := &r.access
	a.sent, a.received, a.opened = up.moved, down.moved, true
	if a.direction == "inbound" { // sent is towards the peer
		a.sent, a.received = down.moved, up.moved
	}
	a.result, a.err = r.ending(ctx), r.what
	if a.result == resultOK {
		setLingers(r.near, r.far, -1)
		r.near.Close()
		r.far.Close()
	}
	if r.permit != nil {
		if revoked := r.permit.end(); revoked != nil {
			a.denied(*revoked)
		}
	}
	r.p.finish(a)
}

func setLingers(a, b *net.TCPConn, seconds int) {
	a.SetLinger(seconds)
	b.SetLinger(seconds)
}

// cut resets both sides. It may be called while r is relayed, and after.
func (r *plainRelay) cut() {
	reset(r.near)
	reset(r.far)
}

// owner is the ownerOf the pod of this node whose connection it is.
func (r *plainRelay) owner() string {
	uid := r.access.source
	if r.access.direction == "inbound" {
		uid = r.access.workload
	}
	return r.p.ownerOf(uid)
}

// ownerOf is the identity of the workload uid, or uid if discovery no longer lists it.
func (p *Proxy) ownerOf(uid string) string {
	if w := p.store.Current().Workload(uid); w != nil {
		return w.Identity.String()
	}
	return uid
}

// shed resets both sides for want of memory.
func (r *plainRelay) shed() bool {
	r.fail(nil, hbone.ErrMemory)
	return true
}

// ending is the result, when both directions have ended.
func (r *plainRelay) ending(ctx context.Context) string {
	switch {
	case errors.Is(r.what, hbone.ErrMemory):
		return resultShed
	case r.by == nil:
		return resultOK
	case ctx.Err() != nil:
		r.what = context.Cause(ctx)
		return resultStopped
	case r.by == r.near:
		return resultClientReset
	}
	return resultServerReset
}

// lastWordsWithin limits how long what a side sent before its reset may take to reach the other side.
const lastWordsWithin = 10 * time.Second

// leave reports whether the other direction ends the connection, when h.to does not take any more because it was
// reset: who answers and closes before it has read everything has its answer read, as without us.
func (h *plainHalf) leave(err error) bool {
	if !appClosed(h.to) {
		return false
	}
	h.r.mu.Lock()
	failed, ended := h.r.by != nil && h.r.by != h.to, h.other.ended.Load() // by h.to: see lost
	if h.r.by == nil && h.r.what == nil && !ended {
		h.r.failedLocked(h.to, err)
		h.from.SetWriteDeadline(h.r.until)
	}
	h.r.mu.Unlock()
	if ended {
		h.other.delivered()
	}
	return !failed && !ended
}

// delivered waits until the peer of h.to has acknowledged all that went there, and its end, for lastWordsWithin at most: a
// reset takes the rest away.
func (h *plainHalf) delivered() {
	raw, err := h.to.SyscallConn()
	if err != nil {
		return
	}
	h.to.SetWriteDeadline(time.Now().Add(lastWordsWithin))
	raw.Write(func(fd uintptr) bool {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO)
		return err != nil || !slices.Contains(unacknowledged, info.State)
	})
}

// unacknowledged are the states of a socket whose end is not acknowledged, or, in the first two, about to be sent.
var unacknowledged = []uint8{unix.BPF_TCP_ESTABLISHED, unix.BPF_TCP_CLOSE_WAIT, unix.BPF_TCP_FIN_WAIT1, unix.BPF_TCP_CLOSING, unix.BPF_TCP_LAST_ACK}

// flushed waits until the peer of h.to has acknowledged all that went there, at most until r.until. It polls: the
// kernel reports room in the send buffer, and not that it is empty.
func (h *plainHalf) flushed() {
	raw, err := h.to.SyscallConn()
	if err != nil {
		return
	}
	h.r.mu.Lock()
	until := h.r.until
	h.r.mu.Unlock()
	for pause := time.Millisecond; time.Now().Before(until); pause = min(2*pause, 50*time.Millisecond) {
		over := false
		err := raw.Control(func(fd uintptr) {
			unsent, err := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
			info, e := unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO)
			over = unsent == 0 || err != nil || e != nil || info.State == unix.BPF_TCP_CLOSE
		})
		if err != nil || over {
			return
		}
		time.Sleep(pause)
	}
}

// failedLocked records the first failure. The caller holds mu.
func (r *plainRelay) failedLocked(by *net.TCPConn, err error) {
	if r.by == nil && r.what == nil {
		r.by, r.what, r.until = by, err, time.Now().Add(lastWordsWithin)
	}
}

// fail resets both sides; by failed, unless another failure was recorded before.
func (r *plainRelay) fail(by *net.TCPConn, err error) {
	r.mu.Lock()
	r.failedLocked(by, err)
	r.mu.Unlock()
	r.cut()
}

// plainHalf is one direction.
type plainHalf struct {
	r        *plainRelay
	from, to *net.TCPConn
	other    *plainHalf
	moved    int64
	ended    atomic.Bool // in order

	telling sync.Mutex // held while the kernel may tell of a reset of to: who finds that it has done so finds here what
	told    error      // what it told, nil if it has not
}

// pump moves bytes until from has ended, and passes that on.
func (h *plainHalf) pump() {
	by, err := h.move()
	if err != io.EOF {
		if by == h.from {
			h.r.mu.Lock()
			h.r.failedLocked(by, err)
			h.r.mu.Unlock()
			h.flushed() // what came before the reset, first
		}
		if by == h.from || !h.leave(err) {
			h.r.fail(by, err)
		}
		return
	}
	h.r.mu.Lock() // one of the two is the second
	h.ended.Store(true)
	second, left := h.other.ended.Load(), h.r.by != nil
	h.r.mu.Unlock()
	if err := h.to.CloseWrite(); err != nil {
		if !h.leave(err) {
			h.r.fail(h.to, err)
		}
		return
	}
	if left { // by the other direction, to this one
		h.delivered()
		h.r.cut()
		return
	}
	if second {
		h.to.SetReadDeadline(time.Unix(1, 0)) // ends the other's wait
		return
	}
	if h.wasReset() {
		h.delivered()
		h.r.fail(h.from, fmt.Errorf("reset after its FIN: %w", syscall.ECONNRESET))
	}
}

// plainSizes are the sizes of buffers for bytes that were read and not written yet. With
// little memory left a relay moves smaller pieces.
var plainSizes = [...]int{4 << 10, 32 << 10}

var plainBuffers [len(plainSizes)]sync.Pool

// buffer takes a buffer from the pool, which free gives back.
func (r *plainRelay) buffer() *[]byte {
	class := len(plainSizes) - 1
	if !r.use.TryReserve(plainSizes[class]) {
		class = 0
		r.use.Add(plainSizes[class])
	}
	if b, ok := plainBuffers[class].Get().(*[]byte); ok {
		return b
	}
	b := make([]byte, plainSizes[class])
	return &b
}

func (r *plainRelay) free(b *[]byte) {
	r.use.Release(len(*b))
	plainBuffers[slices.Index(plainSizes[:], len(*b))].Put(b)
}

// move copies until from ends, io.EOF, or one of the two fails.
func (h *plainHalf) move() (by *net.TCPConn, err error) {
	raw, err := h.from.SyscallConn()
	if err != nil {
		return h.from, err
	}
	var buf *[]byte // none while there is nothing to be read
	var n, flags int
	var errno error
	read := func(fd uintptr) bool {
		buf = h.r.buffer()
		n, flags, errno = readPlain(int(fd), *buf)
		if errno == nil && n > 0 {
			return true
		}
		h.r.free(buf)
		return errno != syscall.EAGAIN
	}
	for {
		switch err := raw.Read(read); {
		case err != nil:
			return h.from, err
		case errno != nil:
			return h.from, fmt.Errorf("read from %v: %w", h.from.RemoteAddr(), errno)
		case n == 0 && appClosed(h.from) && !h.other.ended.Load() && !h.endedFirst(): // a write of the other direction has taken the error
			return h.from, fmt.Errorf("read from %v: %w", h.from.RemoteAddr(), syscall.ECONNRESET)
		case n == 0:
			return nil, io.EOF
		}
		n, err := h.write((*buf)[:n], flags)
		h.r.free(buf)
		if h.moved += int64(n); err != nil {
			return h.to, err
		}
	}
}

// urgentInline leaves urgent bytes of c in their place among the others, where readPlain finds them.
func urgentInline(c *net.TCPConn) {
	if raw, err := c.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_OOBINLINE, 1) })
	}
}

// readPlain reads from a socket without waiting. Flags is MSG_OOB if what it returns is one urgent byte, else 0. The kernel
// ends each read before an urgent byte, but not behind it. So whether the next byte is urgent is asked when it is there.
func readPlain(fd int, p []byte) (n, flags int, err error) {
	n, err = receive(fd, p[:1], unix.MSG_PEEK)
	if n <= 0 || err != nil {
		return n, 0, err
	}
	if mark, err := unix.IoctlGetInt(fd, unix.SIOCATMARK); err == nil && mark != 0 {
		p, flags = p[:1], unix.MSG_OOB
	}
	n, err = receive(fd, p, 0)
	return n, flags, err
}

// receive is recv(2), repeated while a signal interrupts it.
func receive(fd int, p []byte, flags int) (n int, err error) {
	for {
		if flags == 0 {
			n, err = syscall.Read(fd, p)
		} else {
			n, _, err = unix.Recvfrom(fd, p, flags)
		}
		if err != syscall.EINTR {
			return n, err
		}
	}
}

// send is send(2).
func send(fd int, p []byte, flags int) (n int, err error) {
	if flags == 0 {
		return syscall.Write(fd, p)
	}
	return unix.SendmsgN(fd, p, nil, nil, flags)
}

// write writes p to h.to with those flags of send(2). While h.to has no room the connection h.from is watched: nothing reads
// it meanwhile that would notice its reset.
func (h *plainHalf) write(p []byte, flags int) (n int, err error) {
	raw, err := h.to.SyscallConn()
	if err != nil {
		return 0, err
	}
	var errno error
	if err := raw.Write(func(fd uintptr) bool { n, errno = h.writeNow(fd, p, flags); return true }); err != nil {
		return 0, err
	}
	if errno == syscall.EAGAIN {
		ended := onClose(h.from, h.lost)
		err = raw.Write(func(fd uintptr) bool {
			k := 0
			k, errno = h.writeNow(fd, p[n:], flags)
			n += k
			return errno != syscall.EAGAIN
		})
		ended()
	}
	switch {
	case err != nil:
		return n, err
	case errno != nil:
		return n, fmt.Errorf("write to %v: %w", h.to.RemoteAddr(), errno)
	}
	return n, nil
}

// writeNow writes what there is room for, and returns EAGAIN if that is not all. It leaves the error of a reset in told, for the
// other direction.
func (h *plainHalf) writeNow(fd uintptr, p []byte, flags int) (n int, err error) {
	h.telling.Lock()
	defer h.telling.Unlock()
	for n < len(p) {
		k, err := send(int(fd), p[n:], flags)
		switch err {
		case nil:
			n += k
		case syscall.EINTR:
		case syscall.EAGAIN:
			return n, err
		default:
			h.told = err
			return n, err
		}
	}
	return n, nil
}

// lost is called when from was found closed. Unless both sides had ended before, it was reset, and the time for what it sent
// before that begins.
func (h *plainHalf) lost() {
	h.r.mu.Lock()
	defer h.r.mu.Unlock()
	if h.r.by == nil && h.r.what == nil && !h.other.ended.Load() {
		h.r.failedLocked(h.from, fmt.Errorf("reset while %v did not read: %w", h.to.RemoteAddr(), syscall.ECONNRESET))
		h.to.SetWriteDeadline(h.r.until)
	}
}

// endedFirst reports whether from, which was reset, had sent its end before. That is EPIPE then, and ECONNRESET without an end,
// for whoever is told first, as the kernel tells of a reset once: that may have been a write of the other direction. Each
// write after that has EPIPE, whatever it was.
func (h *plainHalf) endedFirst() bool {
	raw, err := h.from.SyscallConn()
	if err != nil {
		return false
	}
	h.other.telling.Lock()
	defer h.other.telling.Unlock()
	raw.Control(func(fd uintptr) {
		code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && code != 0 {
			h.other.told = syscall.Errno(code)
		}
	})
	return h.other.told == syscall.EPIPE
}

// wasReset waits for the end of the other direction, and reports whether from was reset before.
func (h *plainHalf) wasReset() bool {
	raw, err := h.from.SyscallConn()
	if err != nil {
		return true
	}
	closed := false
	raw.Read(func(fd uintptr) bool {
		if h.other.ended.Load() {
			return true
		}
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO)
		closed = err != nil || info.State == unix.BPF_TCP_CLOSE
		return closed
	})
	return closed && !h.other.ended.Load() // else it may be closed since, by both ends
}
