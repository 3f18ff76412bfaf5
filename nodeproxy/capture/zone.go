//go:build linux

package capture

import (
	"errors"
	"fmt"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// Connections of Source have a client's address and a port that the kernel draws: the client may have the same one at
// the same time, for a connection to the same port of the pod. One of the two would be taken for the other, and hang.
// So the kernel follows ours in a zone of conntrack of their own, by what their sockets send (ct original zone); answers
// differ anyway, by the port that the other is led to.
const (
	zoneTable = "isthmus-source-zone" // of its own: connections that are open need it in every moment
	zone      = mark
	// sourceMark is mark, and a bit that no mask of ours has: what a node proxy of an older version has opened from a
	// client's address is followed in no zone.
	sourceMark = mark | 0x1000
)

// setZone sets what gives our connections from clients' addresses their zone, unless it is there, in one transaction: a
// packet of such a connection that met no rule would begin another one, and end it. A kernel without zones goes without.
func setZone(ns *podns.Namespace) error {
	return ns.FD(func(fd int) error {
		c, err := dialNetlink(unix.NETLINK_NETFILTER, fd)
		if err != nil {
			return fmt.Errorf("open netfilter's netlink: %w", err)
		}
		defer c.Close()
		if there, err := zoned(newLooking(c)); there || err != nil {
			return explain(err)
		}
		messages, err := zoneMessages()
		if err != nil {
			return err
		}
		err = transact(c, messages...)
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
			return nil
		}
		return explain(err)
	})
}

// zoneChain is the chain of zoneTable.
const zoneChain = "output"

// zoned reports whether the rule is there, of which it is enough to see one. Package nftables cannot read one that has the
// direction of a zone.
func zoned(l looking) (bool, error) {
	rules, err := l.rules(zoneTable, zoneChain, 1)
	return len(rules) > 0, err
}

// zoneMessages make the table, if it is not there, and the rule the only one of its chain.
func zoneMessages() (all []netlink.Message, err error) {
	add := func(kind uint16, flags netlink.HeaderFlags, attributes ...netlink.Attribute) {
		m, e := request(unix.NFPROTO_INET, kind, flags, attributes...)
		all, err = append(all, m), errors.Join(err, e)
	}
	hook, e := nested(unix.NFTA_CHAIN_HOOK,
		netlink.Attribute{Type: unix.NFTA_HOOK_HOOKNUM, Data: binaryutil.BigEndian.PutUint32(unix.NF_INET_LOCAL_OUT)},
		netlink.Attribute{Type: unix.NFTA_HOOK_PRIORITY, Data: binaryutil.BigEndian.PutUint32(rawPriority)})
	rule, e2 := zoneRule()
	add(unix.NFT_MSG_NEWTABLE, netlink.Create, text(unix.NFTA_TABLE_NAME, zoneTable))
	add(unix.NFT_MSG_NEWCHAIN, netlink.Create, text(unix.NFTA_CHAIN_TABLE, zoneTable), text(unix.NFTA_CHAIN_NAME, zoneChain), hook, text(unix.NFTA_CHAIN_TYPE, "filter"))
	add(unix.NFT_MSG_DELRULE, 0, text(unix.NFTA_RULE_TABLE, zoneTable), text(unix.NFTA_RULE_CHAIN, zoneChain))
	add(unix.NFT_MSG_NEWRULE, netlink.Create|netlink.Append, text(unix.NFTA_RULE_TABLE, zoneTable), text(unix.NFTA_RULE_CHAIN, zoneChain), rule)
	return all, errors.Join(err, e, e2)
}

// rawPriority is NF_IP_PRI_RAW, -300: before the kernel looks for a connection.
const rawPriority = 1<<32 - 300

// zoneRule are the expressions of the rule: package nftables leaves out the direction of a zone.
func zoneRule() (netlink.Attribute, error) {
	const (
		elem      = unix.NFTA_LIST_ELEM
		direction = 0 // IP_CT_DIR_ORIGINAL
		register  = unix.NFT_REG_1
	)
	list, err := expressions(append(append(overLoopback(), protocol(unix.IPPROTO_TCP)...),
		&expr.Meta{Key: expr.MetaKeyMARK, Register: register},
		&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: binaryutil.NativeEndian.PutUint32(sourceMark)},
		&expr.Immediate{Register: register, Data: binaryutil.NativeEndian.PutUint16(zone)}))
	if err != nil {
		return netlink.Attribute{}, err
	}
	set, err := nested(unix.NFTA_EXPR_DATA,
		netlink.Attribute{Type: unix.NFTA_CT_KEY, Data: binaryutil.BigEndian.PutUint32(unix.NFT_CT_ZONE)},
		netlink.Attribute{Type: unix.NFTA_CT_DIRECTION, Data: []byte{direction}},
		netlink.Attribute{Type: unix.NFTA_CT_SREG, Data: binaryutil.BigEndian.PutUint32(register)})
	if err != nil {
		return netlink.Attribute{}, err
	}
	ct, err := nested(elem, text(unix.NFTA_EXPR_NAME, "ct"), set)
	if err != nil {
		return netlink.Attribute{}, err
	}
	return nested(unix.NFTA_RULE_EXPRESSIONS, append(list, ct)...)
}

// expressions are those of a rule, each an element of a list.
func expressions(list []expr.Any) (out []netlink.Attribute, err error) {
	for _, e := range list {
		b, err := expr.Marshal(unix.NFPROTO_INET, e)
		if err != nil {
			return nil, err
		}
		out = append(out, netlink.Attribute{Type: unix.NLA_F_NESTED | unix.NFTA_LIST_ELEM, Data: b})
	}
	return out, nil
}
