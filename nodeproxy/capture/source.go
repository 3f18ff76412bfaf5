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

// SetSource has what an application answers to an address that is not the pod's own come back to the
// socket of a node proxy that is bound to it by Source, for pods whose address is of that family: what
// such a socket sends marks its connection, and answers of marked connections alone stay in the pod. A
// connection that was there before is never marked. Setting it again changes nothing.
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
	t, err := begin(c, sourceTable, out)
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

// Source has a socket of the pod's namespace connect from an address that is not the pod's own: the
// Control that it returns comes after podns's and Mark. The address must be of the family of
// the one that is dialled. Its error is one of this host.
//
// The kernel chooses the port as for every bind(2), odd ones first, where a connect(2) of the address's
// real owner chooses even ones first (Linux 4.2): a connection of that one to the same port of the pod, in plain
// text and not captured, meets none of ours. For one that is captured see setZone.
func Source(from netip.Addr) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) { err = bindTransparent(int(fd), netip.AddrPortFrom(from, 0)) }); e != nil {
			err = e
		}
		if err != nil {
			return fmt.Errorf("bind to the client's address %s: %w (%w)", from, err, syscall.EACCES) // a fault of this host, whatever it is
		}
		return nil
	}
}

func bindTransparent(fd int, from netip.AddrPort) error {
	level, options := unix.SOL_IP, []int{unix.IP_FREEBIND, unix.IP_TRANSPARENT}
	var sa unix.Sockaddr = &unix.SockaddrInet4{Port: int(from.Port()), Addr: [4]byte(from.Addr().AsSlice())}
	if from.Addr().Is6() {
		level, options = unix.SOL_IPV6, []int{unix.IPV6_FREEBIND, unix.IPV6_TRANSPARENT}
		sa = &unix.SockaddrInet6{Port: int(from.Port()), Addr: from.Addr().As16()}
	}
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, level, o, 1); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, sourceMark); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	return os.NewSyscallError("bind", unix.Bind(fd, sa))
}

// Addresses of nobody (RFC 5737, RFC 3849), which TrySource connects from.
var (
	nobody4 = netip.MustParseAddr("192.0.2.1")
	nobody6 = netip.MustParseAddr("2001:db8::1")
)

// tryWithin bounds what takes a fraction of a millisecond: not a packet leaves the pod.
const tryWithin = time.Second

// Routed has an error if the pod has no route to who is not there, which answers to clients' addresses need: what
// SetSource sets would do nothing.
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

// TrySource connects, within a namespace, to own, an address of the pod's, from one that is nobody's:
// it has an error if an application could not be reached so, or its answers would get lost.
func TrySource(ns *podns.Namespace, own netip.Addr) error {
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
		for _, f := range []func(string, string, syscall.RawConn) error{ns.Control, Mark, Source(from)} {
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
