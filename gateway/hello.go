package gateway

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/health"
)

// helloMax bounds the TLS hello of a client that is held until a pod answers it:
// one with a post-quantum share has about 1.7 KiB.
const helloMax = 8 << 10

var helloBufs = sync.Pool{New: func() any { return new([helloMax]byte) }}

// introduce passes the client's TLS hello to the pod and waits for the first byte
// of the answer. A client says no more before that, and a pod that has not
// answered a hello has done nothing: so if it is silent, or gone, another pod gets
// the same hello, and the client, whose CONNECT was answered with 200 long ago,
// loses time and no connection. Stock clients could not try again by themselves.
//
// It returns the connection to relay. What is no complete hello was passed on
// as it is; so was the hello of a client that asked for this pod alone.
func (g *Gateway) introduce(ctx context.Context, v *visit, stream *hbone.Stream, conn *net.TCPConn) *net.TCPConn {
	if stream.WaitReadable() != nil {
		return conn
	}
	buf := helloBufs.Get().(*[helloMax]byte)
	defer helloBufs.Put(buf)
	n, whole := readHello(stream, buf[:])
	v.hello = int64(n)
	conn.Write(buf[:n]) // a failure shows again when it is read from
	for whole && v.wish.pin == 0 {
		err := g.awaitAnswer(ctx, v, conn)
		if err == nil || ctx.Err() != nil {
			break
		}
		next := g.move(ctx, v, conn, err)
		if next == nil {
			break
		}
		conn = next
		conn.Write(buf[:n])
	}
	return conn
}

// awaitAnswer returns nil when the pod has sent something, otherwise why it will
// hardly do so. Long before it is given up, others are kept away from it.
func (g *Gateway) awaitAnswer(ctx context.Context, v *visit, conn *net.TCPConn) error {
	limit := g.cfg.Timeouts.Answer
	err := awaitByte(ctx, conn, limit/5)
	if isTimeout(err) && ctx.Err() == nil {
		g.backends.doubt(v.lease.workload)
		err = awaitByte(ctx, conn, limit-limit/5)
	}
	if err == nil {
		v.answer(g)
	}
	return err
}

// move opens a connection to another pod instead of conn, which has failed with
// cause; nil if there is none.
func (g *Gateway) move(ctx context.Context, v *visit, conn *net.TCPConn, cause error) *net.TCPConn {
	old, why := v.lease, v.err
	v.wish.tried = append(v.wish.tried, old.workload.Endpoint)
	v.wish.sound = isTimeout(cause) // where all are slow, asking one more makes them slower
	next := g.reach(ctx, v)
	if next == nil {
		v.lease, v.err = old, why
		return nil
	}
	v.err = why
	outcome, reason := health.Failure, "reset"
	if isTimeout(cause) {
		outcome, reason = health.Neutral, "silence" // the question that doubt has put decides
	}
	g.backends.release(old, outcome, reason, time.Now())
	g.metrics.moved.WithLabelValues(reason).Inc()
	conn.SetLinger(0)
	conn.Close()
	return next
}

// readHello reads a TLS ClientHello into buf. whole is false for anything else:
// other bytes, more than a hello, one that does not fit, or an end.
func readHello(r io.Reader, buf []byte) (n int, whole bool) {
	for {
		k, err := r.Read(buf[n:])
		n += k
		size, ok := helloSize(buf[:n])
		switch {
		case !ok || n > size || err != nil:
			return n, false
		case n == size:
			return n, true
		case size > len(buf):
			return n, false
		}
	}
}

// helloSize returns how long the TLS records of the ClientHello that b begins
// with are, as far as b tells: more than len(b) if it is not all there. ok is
// false if b is something else (RFC 8446 §4 and §5.1).
func helloSize(b []byte) (size int, ok bool) {
	const header, handshake, clientHello = 5, 22, 1
	left := -1 // bytes of the hello in records to come; unknown before its length is
	for {
		if len(b) > 0 && b[0] != handshake {
			return 0, false
		}
		if len(b) < header {
			return size + header, true
		}
		record := int(b[3])<<8 | int(b[4])
		size += header + record
		b = b[header:]
		if left < 0 {
			if record < 4 || len(b) > 0 && b[0] != clientHello {
				return 0, false
			}
			if len(b) < 4 {
				return size, true
			}
			left = 4 + (int(b[1])<<16 | int(b[2])<<8 | int(b[3]))
		}
		if left -= record; left < 0 || record == 0 {
			return 0, false // something else is in the same record
		}
		if left == 0 || len(b) < record {
			return size, true
		}
		b = b[record:]
	}
}

// awaitByte waits until there is something to read on conn, and leaves it there.
func awaitByte(ctx context.Context, conn *net.TCPConn, limit time.Duration) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	conn.SetReadDeadline(time.Now().Add(limit))
	stop := context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })
	var n int
	var peek [1]byte
	werr := raw.Read(func(fd uintptr) bool {
		for {
			n, _, err = syscall.Recvfrom(int(fd), peek[:], syscall.MSG_PEEK)
			if err != syscall.EINTR {
				return err != syscall.EAGAIN
			}
		}
	})
	stop()
	conn.SetReadDeadline(time.Time{})
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
