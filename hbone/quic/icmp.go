package quic

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// reportICMP has the kernel report, or no longer report, ICMP errors to pc, such as that no process
// has the port. QUIC ends with the socket then. It is for the handshake: later, whoever
// guesses the port could end the connection (RFC 9000 §14.2.1).
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
