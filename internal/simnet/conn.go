package simnet

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// Conn is one end of a connection. It behaves as a *net.TCPConn: Close sends a
// FIN, or a reset after SetLinger(0) or with bytes unread; writing to a closed
// end fails with EPIPE; a reset is read once, as ECONNRESET, and io.EOF after it.
type Conn struct {
	in, out       *pipe
	local, remote *net.TCPAddr
	linger        atomic.Bool // SetLinger(0) was called
	closed        atomic.Bool
}

var _ net.Conn = (*Conn)(nil)

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) { return c.in.read(p) }

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) { return c.out.write(p) }

// TryRead is read(2) on a socket that does not block: EAGAIN if nothing has
// arrived, 0 and no error at the end.
func (c *Conn) TryRead(p []byte) (int, error) {
	n, err := c.in.tryRead(p)
	if err == io.EOF {
		err = nil
	}
	return n, err
}

// Readable returns how many bytes TryRead would find, zero and no error at the end;
// EAGAIN if nothing has arrived.
func (c *Conn) Readable() (int, error) { return c.in.readable() }

// TryWrite is write(2) on a socket that does not block: EAGAIN if there is no
// room.
func (c *Conn) TryWrite(p []byte) (int, error) { return c.out.tryWrite(p) }

// StateClose reports whether the connection is in TCP's state CLOSE, as TCP_INFO does:
// because of a reset, or because the FINs of both ends have arrived, whether what came
// before has been read or not.
func (c *Conn) StateClose() bool {
	return c.in.wasReset() || c.in.finArrived() && c.out.finArrived()
}

// EndedFirst reports whether the peer's FIN has come before its reset, so that reads find
// an end.
func (c *Conn) EndedFirst() bool { return c.in.endedFirst() }

// SyscallConn returns a RawConn of which Read waits as a socket's does; its
// callbacks get no descriptor and use TryRead and TryWrite instead.
func (c *Conn) SyscallConn() (syscall.RawConn, error) { return rawConn{c}, nil }

type rawConn struct{ c *Conn }

func (r rawConn) Read(attempt func(uintptr) bool) error { return r.c.in.rawRead(attempt) }

// Write calls attempt once: nobody waits for room through a RawConn.
func (r rawConn) Write(attempt func(uintptr) bool) error {
	attempt(0)
	return nil
}

func (r rawConn) Control(func(uintptr)) error { return errors.ErrUnsupported }

// CloseWrite sends a FIN.
func (c *Conn) CloseWrite() error { return c.out.fin() }

// SetLinger with 0 makes Close send a reset.
func (c *Conn) SetLinger(sec int) error {
	c.linger.Store(sec == 0)
	return nil
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	if c.closed.Swap(true) {
		return net.ErrClosed
	}
	unread := c.in.abandon()
	if c.linger.Load() || unread {
		c.out.reset()
		return nil
	}
	return c.out.fin()
}

// Cut resets both ends at once, as a middlebox would.
func (c *Conn) Cut() {
	c.in.fail(syscall.ECONNRESET)
	c.out.fail(syscall.ECONNRESET)
}

// Finish ends both directions in order, behind what is under way: each end reads
// what the other one has sent and io.EOF, as if a process between them had ended.
func (c *Conn) Finish() {
	c.in.fin()
	c.out.fin()
}

// Stall holds everything back that this end sends from now on, until Resume.
func (c *Conn) Stall() { c.out.setStalled(true) }

// Resume ends Stall.
func (c *Conn) Resume() { c.out.setStalled(false) }

// StallIn holds everything back that is on its way to this end, until ResumeIn.
func (c *Conn) StallIn() { c.in.setStalled(true) }

// ResumeIn ends StallIn.
func (c *Conn) ResumeIn() { c.in.setStalled(false) }

// LocalAddr and RemoteAddr implement net.Conn.
func (c *Conn) LocalAddr() net.Addr  { return c.local }
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.in.setDeadline(&c.in.rdl, t)
	return nil
}

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.out.setDeadline(&c.out.wdl, t)
	return nil
}
