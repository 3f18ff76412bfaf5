//go:build linux

package capture

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// segment is a TCP segment of IPv4 with an MD5 option, which a socket without a key drops and does not answer.
func segment(from, to netip.AddrPort, flags byte, seq, ack uint32) []byte {
	b := make([]byte, 40)
	b[20], b[21], b[38], b[39] = 19, 18, 1, 1
	binary.BigEndian.PutUint16(b[0:], from.Port())
	binary.BigEndian.PutUint16(b[2:], to.Port())
	binary.BigEndian.PutUint32(b[4:], seq)
	binary.BigEndian.PutUint32(b[8:], ack)
	b[12], b[13] = 10<<4, flags
	binary.BigEndian.PutUint16(b[14:], 1000)
	sum := uint32(6 + 40)
	add := func(p []byte) {
		for i := 0; i < len(p); i += 2 {
			sum += uint32(p[i])<<8 | uint32(p[i+1])
		}
	}
	f, g := from.Addr().As4(), to.Addr().As4()
	add(f[:])
	add(g[:])
	add(b)
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(b[16:], ^uint16(sum))
	return b
}

// raw returns what sends segments from an address of a host.
func (p *pod) raw(t *testing.T, host string, source netip.Addr) (send func(from, to netip.AddrPort, flags byte, seq, ack uint32)) {
	ns, err := podns.Open(p.Path(host))
	must(t, err)
	defer ns.Close()
	fd := -1
	must(t, ns.Do(func() error {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
		return os.NewSyscallError("socket", err)
	}))
	t.Cleanup(func() { unix.Close(fd) })
	must(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: source.As4()}))
	return func(from, to netip.AddrPort, flags byte, seq, ack uint32) {
		must(t, unix.Sendto(fd, segment(from, to, flags, seq, ack), 0, &unix.SockaddrInet4{Addr: to.Addr().As4()}))
	}
}

// Who may send raw packets, as containers may unless they are told not to, has the kernel of the pod follow a connection that is
// not there: the SYN of one of the same ports is not led to the node proxy then, and must not come to the application.
func TestNobodyComesIntoThePodByAnotherFirstPacket(t *testing.T) {
	p := newPod(t)
	in := p.listen(t, "tcp", "[::]:15006")
	must(t, Set(p.ns, all()))
	app, err := p.Listen("pod", podAddress+":8080")
	must(t, err)
	defer app.Close()
	from, to := netip.MustParseAddrPort(otherAddress+":43210"), netip.MustParseAddrPort(podAddress+":8080")
	send := p.raw(t, "other", from.Addr())
	const ack = 16
	send(from, to, ack, 1, 1)
	time.Sleep(50 * time.Millisecond) // it is there
	other, err := podns.Open(p.Path("other"))
	must(t, err)
	defer other.Close()
	d := net.Dialer{Timeout: 2 * time.Second, LocalAddr: net.TCPAddrFromAddrPort(from), Control: func(n, a string, c syscall.RawConn) error { return other.Control(n, a, c) }}
	if c, err := d.Dial("tcp", to.String()); err == nil {
		c.Close()
	} else if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("connect after a packet that is no SYN: %v, want that it is refused", err)
	}
	app.(*net.TCPListener).SetDeadline(time.Now().Add(200 * time.Millisecond))
	if got, err := app.Accept(); err == nil {
		t.Errorf("a connection of %s has come to the application past the node proxy", got.RemoteAddr())
	}
	if _, err := p.from(t, to.String()); err != nil {
		t.Fatalf("connect from another port: %v", err)
	}
	if got, _ := originalOf(t, in); got != to.String() {
		t.Errorf("a connection to %s from another port was to go to %s", to, got)
	}
}

// follows has the kernel of the pod follow a connection from one of the other host's ports to one of the pod's that is not there.
func (p *pod) follows(t *testing.T, from, to netip.AddrPort) {
	t.Helper()
	fd := -1
	must(t, p.ns.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP) // has what comes in when it is followed
		return os.NewSyscallError("socket", err)
	}))
	defer unix.Close(fd)
	must(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5}))
	const ack = 16
	p.raw(t, "other", from.Addr())(from, to, ack, 1, 1)
	for b := make([]byte, 1500); ; {
		n, _, err := unix.Recvfrom(fd, b, 0)
		must(t, os.NewSyscallError("recvfrom", err))
		if n >= 24 && binary.BigEndian.Uint16(b[20:]) == from.Port() && binary.BigEndian.Uint16(b[22:]) == to.Port() {
			return
		}
	}
}

// The same the other way round: the kernel takes the SYN that the pod sends for an answer, and leads it nowhere.
func TestNothingLeavesThePodByAFirstPacketOfSomebodyElse(t *testing.T) {
	for what, rules := range map[string]Rules{"all": all(), "vips": mesh} {
		p := newPod(t)
		l := p.listen(t, "tcp4", "127.0.0.1:15001")
		_, rules = p.decide(t, rules, func(FirstPacket) Verdict { return Mesh })
		const service = "10.96.0.7" // of Addresses
		must(t, p.IP("other", "addr add "+service+"/32 dev eth0"))
		hosts := []string{service}
		if rules.Everything {
			hosts = append(hosts, otherAddress)
		}
		for i, host := range hosts {
			to := netip.AddrPortFrom(netip.MustParseAddr(host), 8080)
			leaked, err := p.Listen("other", to.String())
			must(t, err)
			defer leaked.Close()
			from := netip.AddrPortFrom(netip.MustParseAddr(podAddress), uint16(43210+i))
			dial := func(from netip.AddrPort) (net.Conn, error) {
				d := net.Dialer{Timeout: 2 * time.Second, LocalAddr: net.TCPAddrFromAddrPort(from), Control: p.ns.Control}
				return d.Dial("tcp", to.String())
			}
			p.follows(t, to, from)
			if c, err := dial(from); err == nil {
				t.Logf("%s: connected to %v", what, c.RemoteAddr())
				c.Close()
			} else if !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%s: connect to %s after a packet of its: %v, want that it is refused", what, to, err)
			}
			leaked.(*net.TCPListener).SetDeadline(time.Now().Add(200 * time.Millisecond))
			if got, err := leaked.Accept(); err == nil {
				t.Errorf("%s: a connection of %s has come to %s past the node proxy", what, got.RemoteAddr(), to)
			}
			c, err := dial(netip.AddrPortFrom(from.Addr(), 0))
			must(t, err)
			defer c.Close()
			if got, _ := originalOf(t, l); got != to.String() {
				t.Errorf("%s: a connection to %s from another port was to go to %s", what, to, got)
			}
			if c, err := p.dial("tcp", to.String(), Mark); err != nil {
				t.Errorf("%s: what the node proxy opens itself: %v", what, err)
			} else {
				c.Close()
			}
		}
	}
}
