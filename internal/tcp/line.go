package tcp

import (
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Line is how sockets of TCP connections between networks are set up. Each zero field leaves the kernel's own setting.
type Line struct {
	Congestion  string        // congestion control algorithm, such as bbr
	Unsent      int           // TCP_NOTSENT_LOWAT, in bytes
	UserTimeout time.Duration // TCP_USER_TIMEOUT
	MaxSegment  int           // TCP_MAXSEG, in bytes
}

// Control sets up a socket before it connects or listens. Connections that a listener accepts inherit all settings.
// A congestion control that the kernel rejects is left out: see [Offers].
func (l Line) Control(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		set := func(option, value int) {
			if value > 0 {
				failed = errors.Join(failed, os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, option, value)))
			}
		}
		if l.Congestion != "" {
			unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, l.Congestion)
		}
		set(unix.TCP_NOTSENT_LOWAT, l.Unsent)
		set(unix.TCP_USER_TIMEOUT, int(l.UserTimeout.Milliseconds()))
		set(unix.TCP_MAXSEG, l.MaxSegment)
	})
	return errors.Join(err, failed)
}

// Offers returns nil if this process may use a congestion control algorithm. ENOENT: the kernel has none of that name.
// EPERM: net.ipv4.tcp_allowed_congestion_control does not list it.
func Offers(congestion string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	return os.NewSyscallError("setsockopt", unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, congestion))
}

// Info is what the kernel measured on a TCP connection since it was opened.
type Info struct {
	Congestion    string        // algorithm in use
	RTT           time.Duration // smoothed. A peer that delays acknowledgements adds up to 40 ms
	MinRTT        time.Duration // least of the last minutes (net.ipv4.tcp_min_rtt_wlen)
	Segments      uint64        // with data, sent, retransmissions among them
	Retransmitted uint64        // of these
	Duplicates    uint64        // retransmissions of segments that the peer had received already, as it reported
	Unacked       uint32        // segments that the peer has not acknowledged
	BytesAcked    uint64        // payload that the peer has acknowledged
	DeliveryRate  uint64        // bytes per second that the peer has acknowledged lately; what the application sends bounds it
	SegmentSize   int           // largest payload of a segment to the peer, in bytes
	MaxSegment    int           // SegmentSize with the TCP options that each segment carries: what TCP_MAXSEG counts
}

// Lost is how many segments did not arrive: those that were retransmitted and that the peer had not received before.
func (i Info) Lost() uint64 { return i.Retransmitted - min(i.Duplicates, i.Retransmitted) }

const (
	optionTimestamps = 1  // TCPI_OPT_TIMESTAMPS
	timestampBytes   = 12 // of each segment, with padding (RFC 7323)
)

// InfoOf returns what the kernel knows of conn. ok is false if conn is no open TCP connection of the kernel.
func InfoOf(conn net.Conn) (i Info, ok bool) {
	c, tcp := conn.(*net.TCPConn)
	if !tcp {
		return i, false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return i, false
	}
	err = raw.Control(func(fd uintptr) {
		t, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return
		}
		ok = true
		i.Congestion, _ = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		i.RTT = time.Duration(t.Rtt) * time.Microsecond
		i.MinRTT = time.Duration(min(t.Min_rtt, t.Rtt)) * time.Microsecond // the former is the largest number until it is known
		i.Segments, i.Retransmitted = uint64(t.Data_segs_out), uint64(t.Total_retrans)
		i.Duplicates, i.Unacked, i.BytesAcked = uint64(t.Dsack_dups), t.Unacked, t.Bytes_acked
		i.DeliveryRate, i.SegmentSize, i.MaxSegment = t.Delivery_rate, int(t.Snd_mss), int(t.Snd_mss)
		if t.Options&optionTimestamps != 0 {
			i.MaxSegment += timestampBytes
		}
	})
	return i, ok && err == nil
}
