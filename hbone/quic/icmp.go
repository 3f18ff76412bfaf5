package quic

import (
	"net"
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
