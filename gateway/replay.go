package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/internal/memory"
	"github.com/isthmus-mesh/isthmus/internal/retrybudget"
)

// helloMax bounds the TLS ClientHello that is held until a pod answers it: one
// with a post-quantum share has about 1.7 KiB.
const helloMax = 8 << 10

var helloBufs = sync.Pool{New: func() any { return new([helloMax]byte) }}

// replay is what the pod was sent before the relay started.
type replay struct {
	size     int64 // bytes
	complete bool  // it was one whole ClientHello, and the pod's kernel has taken it
	sent     time.Time
}

var (
	errNoHello = errors.New("the client sent no TLS hello in time")
	errHungUp  = errors.New("the pod closed the connection before the client had sent its TLS hello")
)

// replayHello passes the client's TLS hello to the pod and waits for the first
// byte of the answer. A client sends no more before that, and a pod that has not
// answered a hello has done nothing: so if it is silent, or gone, the hello is
// replayed to another pod, and the client, whose CONNECT was answered with 200
// long ago, loses time and no connection. Stock clients could not try again by
// themselves.
//
// It returns the connection to relay, also beside an error, which means that
// there is nothing to relay: the client was silent, or sent half a hello, which is
// nobody's fault but its own, or the pod has reset and there is no other. Bytes that are no hello are passed on as they are;
// a hello of a client that asked for this pod alone is not replayed.
func (g *Gateway) replayHello(ctx context.Context, f *forwarding, stream *hbone.Stream, conn *net.TCPConn) (*net.TCPConn, error) {
	buf := helloBufs.Get().(*[helloMax]byte)
	defer helloBufs.Put(buf)
	use := g.cfg.Memory.Open(f.client.Identity, memory.Other, nil)
	use.Add(helloMax)
	defer use.Close()
	h := &helloReader{stream: stream, conn: conn, dialed: f.dialed, deadline: time.Now().Add(g.cfg.Timeouts.Hello)}
	n, complete, err := h.read(ctx, buf[:])
	if err != nil {
		if errors.Is(err, errNoHello) || errors.Is(err, errHungUp) {
			f.result = resultNoHello
		}
		return conn, err
	}
	g.sendHello(f, conn, buf[:n], complete)
	for complete {
		err := g.awaitAnswer(ctx, f, conn)
		if err == nil || ctx.Err() != nil {
			break
		}
		next := g.move(ctx, f, conn, err)
		if next == nil && err != io.EOF && !isTimeout(err) {
			return conn, err // the socket has told of its reset, and would tell the relay of an end
		}
		if next == nil {
			break
		}
		conn = next
		g.sendHello(f, conn, buf[:n], complete)
	}
	return conn, nil
}

func (g *Gateway) sendHello(f *forwarding, conn *net.TCPConn, hello []byte, complete bool) {
	f.lease.inner.follow(conn, hello)
	_, err := conn.Write(hello) // a failure shows again when it is read from
	f.replayed = replay{size: int64(len(hello)), complete: complete && err == nil, sent: time.Now()}
}

// awaitAnswer returns nil when the pod has sent something, otherwise why it will
// hardly do so. Long before it is given up, others are kept away from it.
func (g *Gateway) awaitAnswer(ctx context.Context, f *forwarding, conn *net.TCPConn) error {
	limit := g.cfg.Timeouts.Answer
	err := awaitByte(ctx, conn, limit/5)
	if isTimeout(err) && ctx.Err() == nil {
		if !g.late(f.replayed.sent) {
			g.doubt(f)
		}
		err = awaitByte(ctx, conn, limit-limit/5)
	}
	if err == nil {
		f.answer(g)
	}
	return err
}

// doubt keeps others away from the pod of f, which is slow to answer its hello, until we
// have its answer. What makes it slow may be the hello, or what else the client does: who
// has done that too often only makes us ask.
func (g *Gateway) doubt(f *forwarding) {
	if g.doubts.Spend(f.client.Identity, retrybudget.AfterRefusal) {
		g.backends.doubt(f.lease.Pod)
		return
	}
	g.backends.verify(f.lease.Pod, time.Now())
}

// move opens a connection to another pod instead of conn, which has failed with
// cause; nil if there is none, or it may not. What made the pod fail may have been
// the client's hello, so the pod is not blamed for it: it is asked by ourselves,
// and no client can have that done, or use up repeats, as often as it likes.
func (g *Gateway) move(ctx context.Context, f *forwarding, conn *net.TCPConn, cause error) *net.TCPConn {
	reason := attemptReset
	if isTimeout(cause) {
		reason = attemptSilence
	}
	old, oldErr := f.lease, f.err
	if !g.moves.Spend(f.client.Identity, retrybudget.AfterRefusal) {
		g.backends.verify(old.Pod, time.Now())
		return nil
	}
	if reason == attemptReset && f.replayed.sent.Sub(f.dialed) <= promptHello { // later it may have waited for the hello for too long
		g.backends.doubt(old.Pod)
	}
	if f.pick.Pin != 0 {
		return nil
	}
	g.attemptFailed(f, old.Pod, reason, cause)
	f.pick.HealthyOnly = reason == attemptSilence // where all are slow, asking one more makes them slower
	next := g.dialPods(ctx, f)
	f.err = oldErr
	if next == nil {
		f.lease = old
		return nil
	}
	g.backends.release(old, health.Neutral, reason, time.Now())
	g.metrics.moved.WithLabelValues(reason).Inc()
	conn.SetLinger(0)
	conn.Close()
	return next
}

// moveShare is the part of a service's retry budget that one client may use up in
// repeatEvery, beside what the answers of pods to its hellos earn it.
const moveShare = 4

// share is how many connections of one client may be moved at once.
func (r Retry) share() int { return (r.BudgetBurst + moveShare - 1) / moveShare }

// promptHello is how soon after its connection to the pod was made a client's
// hello follows. A pod that ends a connection later than that, before it has the
// hello, has every right to (its own handshake timeout); earlier it is ill.
const promptHello = time.Second

// helloReader waits for the hello of one client, and meanwhile for the pod's end.
type helloReader struct {
	stream   *hbone.Stream
	conn     *net.TCPConn
	dialed   time.Time // when conn was made
	deadline time.Time // for the hello

	mu      sync.Mutex
	stopped bool
}

// read puts the client's TLS ClientHello into buf. complete is false for anything
// else: other bytes, more than a hello, one that does not fit, a pod that sends
// first. The error is errNoHello at the deadline, errHungUp when the pod ended the
// connection because it waited too long, otherwise the stream's.
func (h *helloReader) read(ctx context.Context, buf []byte) (n int, complete bool, err error) {
	defer h.stop()
	for {
		ready, err := h.stream.Ready()
		if !ready && err == nil {
			if err = h.wait(ctx); err == nil {
				if ready, err = h.stream.Ready(); !ready && err == nil {
					return n, false, nil // the pod has sent something first
				}
			}
		}
		if err != nil {
			return n, false, err
		}
		k, err := h.stream.Read(buf[n:])
		n += k
		if err == io.EOF {
			return n, false, nil
		}
		if err != nil {
			return n, false, err
		}
		if done, complete := helloState(buf[:n], len(buf)); done {
			return n, complete, nil
		}
	}
}

// wait returns nil when the stream or conn has something to read.
func (h *helloReader) wait(ctx context.Context) error {
	for {
		h.conn.SetReadDeadline(h.deadline)
		h.stream.Watch(h.interrupt)
		if ready, err := h.stream.Ready(); ready || err != nil { // before the watch began
			return err
		}
		err := peek(h.conn)
		ready, serr := h.stream.Ready()
		switch {
		case serr != nil:
			return serr
		case ready || err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !isTimeout(err):
			return h.waitWithoutPod(err)
		case !time.Now().Before(h.deadline):
			return errNoHello
		}
	}
}

// waitWithoutPod gives a client that is not late the time to send its hello, for
// another pod.
func (h *helloReader) waitWithoutPod(cause error) error {
	h.stream.SetReadDeadline(h.dialed.Add(promptHello))
	err := h.stream.WaitReadable()
	h.stream.SetReadDeadline(time.Time{})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w: %w", errHungUp, cause)
	}
	return err
}

// interrupt runs in the session's own goroutine.
func (h *helloReader) interrupt() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.stopped {
		h.conn.SetReadDeadline(time.Unix(1, 0))
	}
}

// stop ends the watch; conn has no deadline afterwards, also if an interrupt is
// still under way.
func (h *helloReader) stop() {
	h.stream.Watch(nil)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopped = true
	h.conn.SetReadDeadline(time.Time{})
}

// awaitByte waits until there is something to read on conn, and leaves it there.
func awaitByte(ctx context.Context, conn *net.TCPConn, limit time.Duration) error {
	conn.SetReadDeadline(time.Now().Add(limit))
	stop := context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })
	err := peek(conn)
	stop()
	conn.SetReadDeadline(time.Time{})
	return err
}

// peek waits until conn has a byte to read, io.EOF, an error, or its deadline.
func peek(conn *net.TCPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var n int
	var b [1]byte
	werr := raw.Read(func(fd uintptr) bool {
		for {
			n, _, err = syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK)
			if err != syscall.EINTR {
				return err != syscall.EAGAIN
			}
		}
	})
	switch {
	case werr != nil:
		return werr
	case err == nil && n == 0:
		return io.EOF
	}
	return err
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}
