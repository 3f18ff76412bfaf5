//go:build linux

package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// routePriority and routeTable are next to those of istio-cni, 32764 and 100, and not the same: a pod that goes
// from one to the other may have both for a moment, and each takes away its own.
const (
	routePriority = 32763
	routeTable    = 1337
)

// loopback is the index of lo in every network namespace (LOOPBACK_IFINDEX).
const loopback = 1

// setRoute has packets with connMark delivered in the pod itself, whatever they are addressed to:
//
//	ip rule add fwmark 0x111/0xfff pref 32763 lookup 1337
//	ip route add local default dev lo table 1337
func setRoute(ns *podns.Namespace, six bool) error {
	const create = netlink.Create | netlink.Excl
	return changeRoute(ns, six, unix.EEXIST,
		netlink.Message{Header: netlink.Header{Type: unix.RTM_NEWROUTE, Flags: create}, Data: route(six)},
		netlink.Message{Header: netlink.Header{Type: unix.RTM_NEWRULE, Flags: create}, Data: rule(six)})
}

// removeRoute is the opposite of setRoute; that there is none is no error.
func removeRoute(ns *podns.Namespace, six bool) error {
	return changeRoute(ns, six, unix.ENOENT,
		netlink.Message{Header: netlink.Header{Type: unix.RTM_DELRULE}, Data: rule(six)},
		netlink.Message{Header: netlink.Header{Type: unix.RTM_DELROUTE}, Data: route(six)})
}

// changeRoute sends messages one after the other; done is what the kernel says where it has nothing
// to do.
func changeRoute(ns *podns.Namespace, six bool, done unix.Errno, messages ...netlink.Message) error {
	return ns.FD(func(fd int) error {
		c, err := dialNetlink(unix.NETLINK_ROUTE, fd)
		if err != nil {
			return fmt.Errorf("open rtnetlink: %w", err)
		}
		defer c.Close()
		for _, m := range messages {
			m.Header.Flags |= netlink.Request | netlink.Acknowledge
			_, err := c.Execute(m)
			removes := done == unix.ENOENT
			switch {
			case err == nil, errors.Is(err, done), removes && errors.Is(err, unix.ESRCH),
				removes && six && (errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP)): // no IPv6 at all
			default:
				return fmt.Errorf("change the routing of packets with mark %#x: %w", connMark, err)
			}
		}
		return nil
	})
}

func family(six bool) byte {
	if six {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// rule is a struct fib_rule_hdr and its attributes.
func rule(six bool) []byte {
	const toTable = 1 // FR_ACT_TO_TBL
	header := []byte{family(six), 0, 0, 0, unix.RT_TABLE_UNSPEC, 0, 0, toTable, 0, 0, 0, 0}
	return append(header, attributes(unix.FRA_PRIORITY, routePriority, unix.FRA_FWMARK, connMark, unix.FRA_FWMASK, markMask, unix.FRA_TABLE, routeTable)...)
}

// route is a struct rtmsg and its attributes.
func route(six bool) []byte {
	header := []byte{family(six), 0, 0, 0, unix.RT_TABLE_UNSPEC, unix.RTPROT_STATIC, unix.RT_SCOPE_HOST, unix.RTN_LOCAL, 0, 0, 0, 0}
	return append(header, attributes(unix.RTA_TABLE, routeTable, unix.RTA_OIF, loopback)...)
}

// attributes are numbers of 32 bits, each after its type.
func attributes(list ...uint32) (out []byte) {
	for a := range slices.Chunk(list, 2) {
		out = binary.NativeEndian.AppendUint16(out, 8)
		out = binary.NativeEndian.AppendUint16(out, uint16(a[0]))
		out = binary.NativeEndian.AppendUint32(out, a[1])
	}
	return out
}
