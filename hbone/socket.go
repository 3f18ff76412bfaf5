package hbone

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// socket is a connection that can be read and written without waiting: one of the
// kernel, or in tests one of internal/simnet. The zero value is none.
type socket struct {
	raw syscall.RawConn
	mem memoryConn // nil for one of the kernel
}

// memoryConn is a connection without a descriptor: TryRead and TryWrite are read(2)
// and write(2) on a socket that does not block.
type memoryConn interface {
	syscall.Conn
	TryRead(p []byte) (int, error)
	TryWrite(p []byte) (int, error)
	Readable() (int, error) // see socket.readable
	StateClose() bool       // it is in TCP's state CLOSE
	EndedFirst() bool       // likewise, by a reset that came behind its peer's FIN
}

// socketOf returns c as a socket; ok is false if it is none.
func socketOf(c net.Conn) (s socket, ok bool) {
	var err error
	switch c := c.(type) {
	case *net.TCPConn:
		s.raw, err = c.SyscallConn()
	case *net.UnixConn:
		s.raw, err = c.SyscallConn()
	case memoryConn:
		s.mem = c
		s.raw, err = c.SyscallConn()
	default:
		return s, false
	}
	return s, err == nil
}

// read is read(2), fd what the RawConn has given.
func (s socket) read(fd uintptr, p []byte) (int, error) {
	if s.mem != nil {
		return s.mem.TryRead(p)
	}
	for {
		n, err := syscall.Read(int(fd), p)
		if err != syscall.EINTR {
			return n, err
		}
	}
}

// readable returns how many bytes read would return at most, zero at the end, or its
// error, which is taken off the socket.
func (s socket) readable(fd uintptr) (int, error) {
	if s.mem != nil {
		return s.mem.Readable()
	}
	if n, err := unix.IoctlGetInt(int(fd), unix.SIOCINQ); n > 0 && err == nil {
		return n, nil
	}
	for {
		n, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK)
		if err != unix.EINTR {
			return n, err
		}
	}
}

// empty reports whether read would return EAGAIN. It is cheaper than to try.
func (s socket) empty(fd uintptr) bool {
	if s.mem != nil {
		return false
	}
	fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLRDHUP}}
	n, err := unix.Poll(fds[:], 0)
	return n == 0 && err == nil
}

// write is write(2).
func (s socket) write(fd uintptr, p []byte) (int, error) {
	if s.mem != nil {
		return s.mem.TryWrite(p)
	}
	for {
		n, err := syscall.Write(int(fd), p)
		if err != syscall.EINTR {
			return n, err
		}
	}
}
