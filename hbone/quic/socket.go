package quic

import (
	"errors"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"syscall"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// socket is a client's UDP socket that receives ICMP errors (IP_RECVERR). One fails the dial. Later
// it is no proof, since an attacker that guesses the port can send it (RFC 9000 §14.2.1):
// refused is called for port unreachable, and other errors are ignored.
type socket struct {
	*net.UDPConn
	batch    *ipv4.PacketConn
	received atomic.Int64           // reads with packets
	refused  atomic.Pointer[func()] // nil during the handshake
}

func newSocket(c *net.UDPConn) (*socket, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	raw.Control(func(fd uintptr) { // a socket has one of both
		unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_RECVERR, 1)
		unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1)
	})
	return &socket{UDPConn: c, batch: ipv4.NewPacketConn(c)}, nil
}

// ReadBatch is what quic-go reads by.
func (s *socket) ReadBatch(ms []ipv4.Message, flags int) (int, error) {
	for {
		n, err := s.batch.ReadBatch(ms, flags)
		if err == nil {
			s.received.Add(1)
		}
		if !s.ignored(err) {
			return n, err
		}
	}
}

// WriteMsgUDP sends again after an error of an earlier packet.
func (s *socket) WriteMsgUDP(b, oob []byte, to *net.UDPAddr) (n, oobn int, err error) {
	n, oobn, err = s.UDPConn.WriteMsgUDP(b, oob, to)
	if s.ignored(err) {
		return s.UDPConn.WriteMsgUDP(b, oob, to)
	}
	return n, oobn, err
}

// ignored reports whether err is that of an ICMP message after the handshake.
func (s *socket) ignored(err error) bool {
	if err == nil {
		return false
	}
	refused := s.refused.Load()
	var errno syscall.Errno
	if refused == nil || !errors.As(err, &errno) || !slices.Contains(icmp, errno) {
		return false
	}
	raw, failed := s.SyscallConn()
	if failed != nil {
		return false
	}
	raw.Control(func(fd uintptr) { // the queue of errors takes room of the receive buffer
		for {
			if _, _, _, _, err := unix.Recvmsg(int(fd), nil, nil, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT); err != nil {
				return
			}
		}
	})
	if errno == syscall.ECONNREFUSED {
		(*refused)()
	}
	return true
}

// icmp has the errors of ICMP messages (icmp_err_convert and icmpv6_err_convert of Linux).
var icmp = []syscall.Errno{syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EMSGSIZE, syscall.EACCES,
	syscall.EPROTO, syscall.ENOPROTOOPT, syscall.EHOSTDOWN, syscall.ENONET, syscall.EOPNOTSUPP}

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
