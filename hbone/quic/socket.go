package quic

import (
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// reportICMP has the kernel report ICMP errors to pc, such as port unreachable, or stops that. An
// error fails the dial. It is off after the handshake: an attacker that guesses the port
// could close the connection otherwise (RFC 9000 §14.2.1).
func reportICMP(pc net.PacketConn, on bool) {
	c, ok := pc.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	v := 0
	if on {
		v = 1
	}
	raw.Control(func(fd uintptr) { // a socket has one of both
		unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_RECVERR, v)
		unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVERR, v)
	})
}

// quic-go asks for this much, in bytes, and writes to the standard logger if it gets less.
const wantedReceiveBuffer = 7 << 20

func init() { os.Setenv("QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING", "true") } // see Listener.ReceiveBuffer

// ReceiveBuffer returns the size of the socket's receive buffer in bytes. It is not enough if packets of
// a burst may be dropped. 0: unknown.
func (l *Listener) ReceiveBuffer() (size int, enough bool) {
	c, ok := l.pc.(syscall.Conn)
	if !ok {
		return 0, true
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, true
	}
	raw.Control(func(fd uintptr) { size, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF) })
	return size, err != nil || size >= wantedReceiveBuffer
}
