//go:build linux

package capture

import (
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// request is a message of nftables about what is of a family, for what package nftables has no words.
func request(family byte, kind uint16, flags netlink.HeaderFlags, attributes ...netlink.Attribute) (netlink.Message, error) {
	b, err := netlink.MarshalAttributes(attributes)
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: netlink.Request | netlink.Acknowledge | flags},
		Data:   append([]byte{family, unix.NFNETLINK_V0, 0, 0}, b...),
	}, err
}

// transact has the kernel do what messages say, all of it at once or nothing.
func transact(c *netlink.Conn, messages ...netlink.Message) error {
	edge := func(kind netlink.HeaderType) netlink.Message {
		return netlink.Message{Header: netlink.Header{Type: kind, Flags: netlink.Request},
			Data: []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, unix.NFNL_SUBSYS_NFTABLES >> 8, unix.NFNL_SUBSYS_NFTABLES}}
	}
	all := append([]netlink.Message{edge(unix.NFNL_MSG_BATCH_BEGIN)}, messages...)
	if _, err := c.SendMessages(append(all, edge(unix.NFNL_MSG_BATCH_END))); err != nil {
		return err
	}
	for range messages { // each is acknowledged, or has an error
		if _, err := c.Receive(); err != nil {
			return err
		}
	}
	return nil
}

// text is a string as the kernel reads it.
func text(kind uint16, s string) netlink.Attribute {
	return netlink.Attribute{Type: kind, Data: []byte(s + "\x00")}
}

// nested is an attribute that consists of others.
func nested(kind uint16, list ...netlink.Attribute) (netlink.Attribute, error) {
	b, err := netlink.MarshalAttributes(list)
	if err != nil {
		err = fmt.Errorf("attribute %d of netfilter: %w", kind, err)
	}
	return netlink.Attribute{Type: unix.NLA_F_NESTED | kind, Data: b}, err
}
