//go:build linux

package capture

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// sourceTable is of its own, so that a node proxy that knows or wants none of it leaves it to one that does.
const sourceTable = "isthmus-source"

// connMark is on connections from our sockets to the pod's own application, and, as the mark of a packet,
// on what that answers: of the bits of markMask. It is ztunnel's.
const connMark = 0x111

// SetSource returns the answers of an application to the socket of a node proxy that is bound by Source
// to an address outside of the pod, for one address family. Packets of such a socket mark their
// connection, and only answers of marked connections stay in the pod. A connection that existed before
// is never marked. Setting it again changes nothing.
func SetSource(ns *podns.Namespace, six bool) error {
	if err := errors.Join(setRoute(ns, six), setZone(ns)); err != nil {
		return err
	}
	return ns.FD(func(fd int) error {
		return explain(begun(func(begin beginning) error { return setSource(fd, begin) }))
	})
}

func setSource(fd int, begin beginning) error {
	c, err := nftables.New(nftables.WithNetNSFd(fd), nftables.WithSockOptions(hearKernel))
	if err != nil {
		return err
	}
	out := &nftables.Chain{Name: "output", Type: nftables.ChainTypeRoute, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityMangle}
	t, err := begin(c, sourceTable, nil, out)
	if err != nil {
		return err
	}
	b := &batch{c: c, table: t}
	b.rule(out, packetMark(mark, true), overLoopback(), newConnection(), markConnection())
	b.rule(out, answer(), packetMark(mark, false), connectionMark(), markPacket())
	return c.Flush()
}

// RemoveSource takes what SetSource has set out of a namespace, for both families. That there is
// none is no error.
func RemoveSource(ns *podns.Namespace) error {
	return errors.Join(removeTable(ns, sourceTable), removeTable(ns, zoneTable), removeRoute(ns, false), removeRoute(ns, true))
}

// overLoopback matches what goes to the pod itself.
func overLoopback() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: interfaceName("lo")},
	}
}

// interfaceName is a name as the kernel compares it.
func interfaceName(s string) []byte {
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, s)
	return name
}

// newConnection matches what no packet of the other side has been seen of.
func newConnection() []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitNEW), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}

// answer matches what goes to who opened the connection.
func answer() []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyDIRECTION, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{1}}, // IP_CT_DIR_REPLY
	}
}

// packetMark matches packets that have the mark m, or have not.
func packetMark(m uint32, has bool) []expr.Any {
	return append([]expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: 1}}, masked(m, has)...)
}

// connectionMark matches connections with connMark.
func connectionMark() []expr.Any {
	return append([]expr.Any{&expr.Ct{Key: expr.CtKeyMARK, Register: 1}}, masked(connMark, true)...)
}

// masked compares register 1 with m, within markMask.
func masked(m uint32, equal bool) []expr.Any {
	op := expr.CmpOpEq
	if !equal {
		op = expr.CmpOpNeq
	}
	return []expr.Any{
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(markMask), Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: 1, Data: binaryutil.NativeEndian.PutUint32(m)},
	}
}

// withConnMark puts connMark into the bits of markMask of register 1; others stay.
func withConnMark() expr.Any {
	return &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(^uint32(markMask)), Xor: binaryutil.NativeEndian.PutUint32(connMark)}
}

func markConnection() []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyMARK, Register: 1}, withConnMark(),
		&expr.Ct{Key: expr.CtKeyMARK, Register: 1, SourceRegister: true},
	}
}

func markPacket() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1}, withConnMark(),
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1, SourceRegister: true},
	}
}

// Source binds a socket of the pod's namespace to an address that is not the
// pod's, and one of the ports. It is a Control as Own, and comes after those of
// podns and Mark. The address must be of the family that is dialed.
func Source(from netip.Addr, ports *Ports) func(network, address string, c syscall.RawConn) error {
	return func(_, address string, c syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return &net.AddrError{Err: "no address and port", Addr: address}
		}
		err = control(c, func(fd int) error {
			if err := setTransparent(fd, from.Is6()); err != nil {
				return err
			}
			return ports.bind(fd, from, to.Port())
		})
		if err != nil {
			return fmt.Errorf("bind to the client's address %s: %w", from, err)
		}
		return nil
	}
}

// setTransparent lets a socket be bound to an address that is not the pod's.
func setTransparent(fd int, six bool) error {
	level, options := unix.SOL_IP, []int{unix.IP_FREEBIND, unix.IP_TRANSPARENT}
	if six {
		level, options = unix.SOL_IPV6, []int{unix.IPV6_FREEBIND, unix.IPV6_TRANSPARENT}
	}
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, level, o, 1); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, sourceMark))
}

// Documentation addresses (RFC 5737, RFC 3849), the source addresses of TrySource.
var (
	nobody4 = netip.MustParseAddr("192.0.2.1")
	nobody6 = netip.MustParseAddr("2001:db8::1")
)

// tryWithin is the timeout of TrySource, which takes less than a millisecond as no packet leaves the pod.
const tryWithin = time.Second

// Routed returns an error if the pod has no route to other addresses. Answers to clients' addresses need
// one before the rules of SetSource apply.
func Routed(ns *podns.Namespace, own netip.Addr) error {
	to, network := nobody4, "udp4"
	if own.Is6() {
		to, network = nobody6, "udp6"
	}
	there := net.Dialer{Control: ns.Control}
	u, err := there.Dial(network, netip.AddrPortFrom(to, 9).String()) // sends nothing
	if err != nil {
		return fmt.Errorf("the pod has no route to addresses in general: %w", err)
	}
	return u.Close()
}

// TrySource connects, within a namespace, from a documentation address to own, an address of the pod. It
// returns an error if an application is not reachable like this, or its answers are lost.
func TrySource(ns *podns.Namespace, own netip.Addr, ports *Ports) error {
	from := nobody4
	if own.Is6() {
		from = nobody6
	}
	lc := net.ListenConfig{KeepAlive: -1, Control: ns.Control}
	l, err := lc.Listen(context.Background(), "tcp", netip.AddrPortFrom(own, 0).String())
	if err != nil {
		return fmt.Errorf("listen in the pod: %w", err)
	}
	defer l.Close()
	d := net.Dialer{Timeout: tryWithin, KeepAlive: -1, Control: func(n, a string, c syscall.RawConn) error {
		for _, f := range []func(string, string, syscall.RawConn) error{ns.Control, Mark, Source(from, ports)} {
			if err := f(n, a, c); err != nil {
				return err
			}
		}
		return nil
	}}
	c, err := d.Dial("tcp", l.Addr().String())
	if err != nil {
		return fmt.Errorf("connect in the pod from an address that is not its own: %w", err)
	}
	c.(*net.TCPConn).SetLinger(0) // nothing stays in TIME_WAIT
	return c.Close()
}
