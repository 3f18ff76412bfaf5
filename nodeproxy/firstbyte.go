package nodeproxy

import (
	"errors"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/hbone"
)

// longPast wakes whoever reads with a deadline.
var longPast = time.Unix(1, 0)

// firstByte waits until one side has spoken. While neither has, the far
// application has taken nothing of ours and ours has seen nothing of it, so a
// tunnel that breaks now may be replaced by another one: err is not nil and the
// application's connection is as it was. Otherwise early holds what the far
// side said first (often nothing), and from here on nothing may be repeated.
func firstByte(app *net.TCPConn, stream *hbone.Stream) (early []byte, err error) {
	if readable(app) {
		return nil, nil
	}
	spoke := make(chan struct{})
	go func() {
		defer close(spoke)
		awaitReadable(app)
		stream.SetReadDeadline(longPast)
	}()
	buf := make([]byte, 4<<10)
	n, err := stream.Read(buf)
	app.SetReadDeadline(longPast)
	<-spoke
	app.SetReadDeadline(time.Time{})
	stream.SetReadDeadline(time.Time{})
	switch {
	case n > 0:
		return buf[:n], nil
	case err == nil, errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, io.EOF):
		return nil, nil // our application spoke or left, or theirs ended in order
	}
	return nil, err // nothing of ours was sent: what it said meanwhile waits in the socket
}

// readable reports whether a read would return at once: bytes, FIN or RST.
func readable(c *net.TCPConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	ready := true
	raw.Control(func(fd uintptr) { ready = peek(fd) })
	return ready
}

// awaitReadable blocks until c is readable or its read deadline passes. It
// takes nothing from the socket and holds no buffer.
func awaitReadable(c *net.TCPConn) {
	if raw, err := c.SyscallConn(); err == nil {
		raw.Read(peek)
	}
}

func peek(fd uintptr) bool {
	var b [1]byte
	for {
		_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		if err == unix.EINTR {
			continue
		}
		return err != unix.EAGAIN
	}
}
