//go:build linux

package capture

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// Ports are the local ports of a pod from which a node proxy connects to the
// pod's own application: the odd ones of the upper half of ip_local_port_range,
// without ip_local_reserved_ports. The rest of the range stays free for the pod.
// Safe for concurrent use. A nil Ports has no port.
//
// A socket that is bound to a given port, with SO_REUSEADDR, differs from a socket
// with a port that the kernel chooses in bind(2) or connect(2):
//
//   - connect(2) reuses a port in TIME_WAIT immediately, on every kernel, if TCP
//     timestamps are on (tcp_twsk_unique without a port to choose). The kernel's own
//     choice reuses none for 60 s, since tcp_tw_reuse 2 covers loopback addresses only.
//     So open connections need ports, and new ones at any rate do not need more.
//   - bind(2) and connect(2) look at one port each. The kernel's choice looks at
//     thousands when most are taken.
//   - The port is odd. A client that connects to the same port of the pod in plain
//     text has the same source address, and its kernel chooses even ports first. A
//     second socket with the same addresses and ports would break either connection.
//     For captured connections of a client see setZone.
type Ports struct {
	first, count uint32
	reserved     []portRange
	next         atomic.Uint32
}

type portRange struct{ low, high uint32 }

// PortsOf reads the port range of a namespace.
func PortsOf(ns *podns.Namespace) (*Ports, error) {
	var limits, reserved []byte
	err := ns.Do(func() (err error) {
		if limits, err = os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err != nil {
			return err
		}
		reserved, err = os.ReadFile("/proc/sys/net/ipv4/ip_local_reserved_ports")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the port range of the pod: %w", err)
	}
	return parsePorts(string(limits), string(reserved))
}

// parsePorts reads the two files as the kernel writes them: "32768	60999" and "8080,9000-9010".
func parsePorts(limits, reserved string) (*Ports, error) {
	f := strings.Fields(limits)
	if len(f) != 2 {
		return nil, fmt.Errorf("ip_local_port_range is %q, want two ports", limits)
	}
	all, err := parsePortRange(f[0], f[1])
	if err != nil {
		return nil, fmt.Errorf("ip_local_port_range: %w", err)
	}
	p := &Ports{first: (all.low + (all.high-all.low+1)/2) | 1}
	if p.first <= all.high {
		p.count = (all.high-p.first)/2 + 1
		p.next.Store(rand.Uint32N(p.count))
	}
	for part := range strings.SplitSeq(strings.TrimSpace(reserved), ",") {
		if part == "" {
			continue
		}
		low, high, isRange := strings.Cut(part, "-")
		if !isRange {
			high = low
		}
		r, err := parsePortRange(low, high)
		if err != nil {
			return nil, fmt.Errorf("ip_local_reserved_ports: %w", err)
		}
		p.reserved = append(p.reserved, r)
	}
	return p, nil
}

func parsePortRange(low, high string) (portRange, error) {
	l, err := strconv.ParseUint(low, 10, 16)
	if err != nil {
		return portRange{}, err
	}
	h, err := strconv.ParseUint(high, 10, 16)
	if err != nil {
		return portRange{}, err
	}
	if h < l {
		return portRange{}, fmt.Errorf("port %d is above port %d", l, h)
	}
	return portRange{uint32(l), uint32(h)}, nil
}

// take returns the port that was used least recently, except that of the
// application: a socket that connects to itself would be answered by itself.
func (p *Ports) take(application uint16) (port uint16, ok bool) {
	if p == nil {
		return 0, false
	}
	for range p.count {
		n := p.first + 2*(p.next.Add(1)%p.count)
		if n != uint32(application) && !p.isReserved(n) {
			return uint16(n), true
		}
	}
	return 0, false
}

func (p *Ports) isReserved(n uint32) bool {
	for _, r := range p.reserved {
		if r.low <= n && n <= r.high {
			return true
		}
	}
	return false
}

// bindTries bounds how many ports one bind tries. A listener of the pod, or a
// connection of its own, has a port that was tried in vain.
const bindTries = 16

// bind binds fd to an address and one of the ports.
func (p *Ports) bind(fd int, from netip.Addr, application uint16) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	err := unix.EADDRINUSE
	for range bindTries {
		port, ok := p.take(application)
		if !ok {
			break
		}
		if err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(from, port))); err != unix.EADDRINUSE {
			return os.NewSyscallError("bind", err)
		}
	}
	return os.NewSyscallError("bind", err)
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is6() {
		return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
	}
	return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
}

// Own binds a socket of the pod's namespace to the address that it connects to,
// which is one of the pod's, and one of the ports. It is the Control of a
// net.Dialer, which calls it again with the next port if connect(2) fails with
// EADDRNOTAVAIL, up to two times.
func Own(ports *Ports) func(network, address string, c syscall.RawConn) error {
	return func(_, address string, c syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return &net.AddrError{Err: "no address and port", Addr: address}
		}
		return control(c, func(fd int) error { return ports.bind(fd, to.Addr(), to.Port()) })
	}
}

// control calls f with the descriptor of a socket.
func control(c syscall.RawConn, f func(fd int) error) error {
	var err error
	if e := c.Control(func(fd uintptr) { err = f(int(fd)) }); e != nil {
		return e
	}
	return err
}
