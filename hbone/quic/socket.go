package quic

import (
	"errors"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	quicgo "github.com/quic-go/quic-go"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// socket is a UDP socket on which one lost packet is no failure. quic-go closes a connection for an error of a write, and all
// connections for an error of a read.
//
// That of a client receives ICMP errors (IP_RECVERR). One fails the dial, as does an error of this host. Later an ICMP error is no
// proof, since an attacker that guesses the port can send it (RFC 9000 §14.2.1): refused is called for port unreachable, and other
// errors are ignored.
type socket struct {
	udpConn
	batch    batchReader
	received atomic.Int64           // reads with packets
	refused  atomic.Pointer[func()] // nil during the handshake of a client
}

// udpConn is the part of a *net.UDPConn that is used.
type udpConn interface {
	quicgo.OOBCapablePacketConn
	net.Conn
	SetWriteBuffer(bytes int) error
}

type batchReader interface {
	ReadBatch(ms []ipv4.Message, flags int) (int, error)
}

func newSocket(c udpConn) *socket {
	disableWarning()
	return &socket{udpConn: c, batch: ipv4.NewPacketConn(c)}
}

// receiveICMP has reads and writes return ICMP errors.
func (s *socket) receiveICMP() error {
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) { // a socket has one of both
		unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_RECVERR, 1)
		unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1)
	})
}

// ignoreErrors ends the handshake of a client. refused may be called more than once.
func (s *socket) ignoreErrors(refused func()) { s.refused.Store(&refused) }

// ReadBatch is what quic-go reads by. The error of an ICMP message comes once. One of this host may last, and is waited for.
func (s *socket) ReadBatch(ms []ipv4.Message, flags int) (int, error) {
	for again := false; ; again = true {
		n, err := s.batch.ReadBatch(ms, flags)
		if err == nil {
			s.received.Add(1)
		}
		if !s.ignored(err) {
			return n, err
		}
		if again {
			time.Sleep(readPause)
		}
	}
}

// readPause is how long reading pauses at each error but the first.
const readPause = time.Millisecond

// WriteMsgUDP sends again after an error, which may be that of an earlier packet. A second one is a lost packet.
func (s *socket) WriteMsgUDP(b, oob []byte, to *net.UDPAddr) (n, oobn int, err error) {
	n, oobn, err = s.udpConn.WriteMsgUDP(b, oob, to)
	if s.ignored(err) {
		n, oobn, err = s.udpConn.WriteMsgUDP(b, oob, to)
	}
	if s.ignored(err) {
		sendErrors.Add(1)
		return len(b), len(oob), nil
	}
	return n, oobn, err
}

var sendErrors atomic.Uint64 // since the process started

// Register registers the metric of all connections of the process.
func Register(r prometheus.Registerer) {
	r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "isthmus_quic_send_errors_total",
		Help: "Writes of QUIC packets that failed on this host, as with a full queue or conntrack table, a firewall rule or no route. These packets are lost."},
		func() float64 { return float64(sendErrors.Load()) }))
}

// ignored reports whether err, after the handshake, is that of an ICMP message, or one of this host that may pass.
func (s *socket) ignored(err error) bool {
	if err == nil {
		return false
	}
	refused := s.refused.Load()
	var errno syscall.Errno
	if refused == nil || !errors.As(err, &errno) || !slices.Contains(passing, errno) {
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

// passing has the errors of ICMP messages (icmp_err_convert and icmpv6_err_convert of Linux). The others are of this host: a full queue,
// no memory, a firewall rule or a full conntrack table, an interface that is down.
var passing = []syscall.Errno{syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EMSGSIZE, syscall.EACCES,
	syscall.EPROTO, syscall.ENOPROTOOPT, syscall.EHOSTDOWN, syscall.ENONET, syscall.EOPNOTSUPP,
	syscall.ENOBUFS, syscall.ENOMEM, syscall.EPERM, syscall.ENETDOWN}

// quic-go asks for this much, in bytes, and writes to the standard logger if it gets less.
const wantedReceiveBuffer = 7 << 20

const noBufferWarning = "QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING"

// disableWarning disables that line, unless the operator has set the variable. quic-go has no other switch. See
// Listener.ReceiveBuffer.
func disableWarning() {
	if _, set := os.LookupEnv(noBufferWarning); !set {
		os.Setenv(noBufferWarning, "true")
	}
}

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
