//go:build linux

package capture

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
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

// setZone sets what gives our connections from clients' addresses their zone, unless it is there. A kernel without
// zones goes without.
func setZone(ns *podns.Namespace) error {
	return ns.FD(func(fd int) error {
		c, err := nftables.New(nftables.WithNetNSFd(fd))
		if err != nil {
			return explain(err)
		}
		chain := &nftables.Chain{Name: "output", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityRaw}
		if rules, err := c.GetRules(&nftables.Table{Name: zoneTable, Family: nftables.TableFamilyINet}, chain); err == nil && len(rules) > 0 {
			return nil
		}
		if _, err := replaced(c, zoneTable, chain); err != nil {
			return explain(err)
		}
		if err := c.Flush(); err != nil {
			return explain(err)
		}
		err = addZoneRule(fd, chain.Name)
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
			return nil
		}
		return explain(err)
	})
}

// addZoneRule adds the rule: the library leaves out the direction of a zone.
func addZoneRule(fd int, chain string) error {
	const (
		elem      = unix.NLA_F_NESTED | unix.NFTA_LIST_ELEM
		direction = 0 // IP_CT_DIR_ORIGINAL
		register  = unix.NFT_REG_1
	)
	list, err := expressions(append(append(overLoopback(), protocol(unix.IPPROTO_TCP)...),
		&expr.Meta{Key: expr.MetaKeyMARK, Register: register},
		&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: binaryutil.NativeEndian.PutUint32(sourceMark)},
		&expr.Immediate{Register: register, Data: binaryutil.NativeEndian.PutUint16(zone)}))
	if err != nil {
		return err
	}
	set, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_CT_KEY, Data: binaryutil.BigEndian.PutUint32(unix.NFT_CT_ZONE)},
		{Type: unix.NFTA_CT_DIRECTION, Data: []byte{direction}},
		{Type: unix.NFTA_CT_SREG, Data: binaryutil.BigEndian.PutUint32(register)},
	})
	if err != nil {
		return err
	}
	ct, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_EXPR_NAME, Data: []byte("ct\x00")},
		{Type: unix.NLA_F_NESTED | unix.NFTA_EXPR_DATA, Data: set},
	})
	if err != nil {
		return err
	}
	all, err := netlink.MarshalAttributes(append(list, netlink.Attribute{Type: elem, Data: ct}))
	if err != nil {
		return err
	}
	rule, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_RULE_TABLE, Data: []byte(zoneTable + "\x00")},
		{Type: unix.NFTA_RULE_CHAIN, Data: []byte(chain + "\x00")},
		{Type: unix.NLA_F_NESTED | unix.NFTA_RULE_EXPRESSIONS, Data: all},
	})
	if err != nil {
		return err
	}
	return addRule(fd, rule)
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

// addRule adds a rule of these attributes behind those that are there.
func addRule(fd int, attributes []byte) error {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: fd})
	if err != nil {
		return fmt.Errorf("open netfilter's netlink: %w", err)
	}
	defer c.Close()
	header := func(family byte, resource uint16) []byte {
		return []byte{family, unix.NFNETLINK_V0, byte(resource >> 8), byte(resource)}
	}
	_, err = c.SendMessages([]netlink.Message{
		{Header: netlink.Header{Type: unix.NFNL_MSG_BATCH_BEGIN, Flags: netlink.Request}, Data: header(unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)},
		{Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWRULE, Flags: netlink.Request | netlink.Acknowledge | netlink.Create | netlink.Append},
			Data: append(header(unix.NFPROTO_INET, 0), attributes...)},
		{Header: netlink.Header{Type: unix.NFNL_MSG_BATCH_END, Flags: netlink.Request}, Data: header(unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)},
	})
	if err == nil {
		_, err = c.Receive() // the acknowledgement, or what is wrong
	}
	return err
}
