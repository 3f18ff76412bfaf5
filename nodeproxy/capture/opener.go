//go:build linux

package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables/binaryutil"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// Numbers of linux/netfilter/nfnetlink_conntrack.h and nf_conntrack_tcp.h.
const (
	messageGetTracked = 1 // IPCTNL_MSG_CT_GET

	ctaReply, ctaProtocolInfo         = 2, 4 // CTA_TUPLE_REPLY, CTA_PROTOINFO
	ctaAddresses, ctaPorts            = 1, 2 // of a tuple
	ctaSource4, ctaDestination4       = 1, 2
	ctaSource6, ctaDestination6       = 3, 4
	ctaProtocol                       = 1
	ctaSourcePort, ctaTargetPort      = 2, 3
	ctaTCP, ctaFlagsOfOpener          = 1, 4
	trackedLiberal               byte = 0x08 // IP_CT_TCP_FLAG_BE_LIBERAL
)

// trackedWithin bounds one answer, which takes the kernel microseconds.
const trackedWithin = time.Second

// tracked is what the kernel tracks (conntrack) in a network namespace.
type tracked struct{ c *netlink.Conn }

func openTracked(ns *podns.Namespace) (t tracked, err error) {
	err = ns.FD(func(fd int) error { t.c, err = dialNetlink(unix.NETLINK_NETFILTER, fd); return err })
	return t, err
}

// openedByRemote reports whether the remote end opened a connection. It returns false if that is not known: for a
// connection that the kernel does not track, or that was open before it tracked any, since it takes the sender of the
// first packet that it sees for the side that opened that.
func (t tracked) openedByRemote(local, remote netip.AddrPort) (bool, error) {
	b, err := tupleOfReplies(local, remote)
	if err != nil {
		return false, err
	}
	family := byte(unix.AF_INET)
	if local.Addr().Is6() {
		family = unix.AF_INET6
	}
	if err := t.c.SetReadDeadline(time.Now().Add(trackedWithin)); err != nil {
		return false, err
	}
	// The answer is marked as one of several parts, without an end. The acknowledgement is its end.
	list, err := t.c.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_CTNETLINK<<8 | messageGetTracked, Flags: netlink.Request | netlink.Acknowledge},
		Data:   append([]byte{family, unix.NFNETLINK_V0, 0, 0}, b...),
	})
	switch {
	case errors.Is(err, unix.ENOENT):
		return false, nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP): // a kernel without CONFIG_NF_CT_NETLINK
		return false, nil
	case err != nil:
		return false, err
	}
	for _, m := range list {
		if m.Header.Type>>8 != unix.NFNL_SUBSYS_CTNETLINK || len(m.Data) < 4 {
			continue
		}
		if from, liberal, err := decodeTracked(m.Data[4:]); err != nil || from == local && !liberal {
			return err == nil, err
		}
	}
	return false, nil
}

// tupleOfReplies is the tuple of what local sends to remote, as the reply direction of a connection.
func tupleOfReplies(local, remote netip.AddrPort) ([]byte, error) {
	source, destination := uint16(ctaSource4), uint16(ctaDestination4)
	if local.Addr().Is6() {
		source, destination = ctaSource6, ctaDestination6
	}
	addresses, errAddresses := nested(ctaAddresses,
		netlink.Attribute{Type: source, Data: local.Addr().AsSlice()},
		netlink.Attribute{Type: destination, Data: remote.Addr().AsSlice()})
	ports, errPorts := nested(ctaPorts,
		netlink.Attribute{Type: ctaProtocol, Data: []byte{unix.IPPROTO_TCP}},
		netlink.Attribute{Type: ctaSourcePort, Data: binaryutil.BigEndian.PutUint16(local.Port())},
		netlink.Attribute{Type: ctaTargetPort, Data: binaryutil.BigEndian.PutUint16(remote.Port())})
	tuple, err := nested(ctaReply, addresses, ports)
	if err := errors.Join(errAddresses, errPorts, err); err != nil {
		return nil, err
	}
	return netlink.MarshalAttributes([]netlink.Attribute{tuple})
}

// decodeTracked reads which end replies in a tracked connection. It is liberal if the kernel did not see it open.
func decodeTracked(b []byte) (replies netip.AddrPort, liberal bool, err error) {
	address, errAddress := inner(b, ctaReply, ctaAddresses, ctaSource4)
	if address == nil {
		address, errAddress = inner(b, ctaReply, ctaAddresses, ctaSource6)
	}
	port, errPort := inner(b, ctaReply, ctaPorts, ctaSourcePort)
	flags, errFlags := inner(b, ctaProtocolInfo, ctaTCP, ctaFlagsOfOpener)
	if err := errors.Join(errAddress, errPort, errFlags); err != nil {
		return replies, false, err
	}
	a, ok := netip.AddrFromSlice(address)
	if !ok || len(port) != 2 || len(flags) == 0 {
		return replies, true, nil
	}
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(port)), flags[0]&trackedLiberal != 0, nil
}

// inner is an attribute within others; nil if there is none.
func inner(b []byte, path ...uint16) ([]byte, error) {
	for _, kind := range path {
		list, err := netlink.UnmarshalAttributes(b)
		if err != nil {
			return nil, fmt.Errorf("answer of conntrack: %w", err)
		}
		i := slices.IndexFunc(list, func(a netlink.Attribute) bool { return a.Type&^unix.NLA_F_NESTED == kind })
		if i < 0 {
			return nil, nil
		}
		b = list[i].Data
	}
	return b, nil
}
