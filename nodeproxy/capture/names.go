//go:build linux

package capture

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// Names leads a pod's queries to its node proxy for as long as that lives: the table belongs to a
// socket of this process, and the kernel removes it with that. Two processes that overlap have one each.
type Names struct {
	conn  *nftables.Conn
	table *nftables.Table
}

// tableOwner is NFT_TABLE_F_OWNER: the table goes with the socket that made it (Linux 5.12).
const tableOwner = 0x2

// CaptureNames leads queries of a pod to resolvers, port 53 of UDP and TCP, to NamesPort.
// Resolvers on a loopback address are left alone: those are in the pod itself. Close ends it.
func CaptureNames(ns *podns.Namespace, resolvers []netip.Addr) (*Names, error) {
	resolvers = slices.DeleteFunc(slices.Clone(resolvers), func(a netip.Addr) bool { return a.IsLoopback() || !a.IsValid() })
	n := &Names{table: &nftables.Table{Name: namesTable + "-" + rand.Text()[:8], Family: nftables.TableFamilyINet}}
	err := ns.FD(func(fd int) (err error) {
		var socket *netlink.Conn
		n.conn, err = nftables.New(nftables.WithNetNSFd(fd), nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
			socket = c
			return nil
		}))
		if err != nil {
			return err
		}
		return own(socket, n.table)
	})
	if err == nil {
		err = n.set(resolvers)
	}
	if err != nil {
		n.Close()
		return nil, explain(err)
	}
	return n, nil
}

// own makes the table t, which goes with the socket.
func own(socket *netlink.Conn, t *nftables.Table) error {
	attrs, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_TABLE_NAME, Data: []byte(t.Name + "\x00")},
		{Type: unix.NFTA_TABLE_FLAGS, Data: []byte{0, 0, 0, tableOwner}},
	})
	if err != nil {
		return err
	}
	header := func(family byte, resource uint16) []byte {
		return []byte{family, unix.NFNETLINK_V0, byte(resource >> 8), byte(resource)}
	}
	_, err = socket.SendMessages([]netlink.Message{
		{Header: netlink.Header{Type: unix.NFNL_MSG_BATCH_BEGIN, Flags: netlink.Request}, Data: header(unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)},
		{Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWTABLE, Flags: netlink.Request | netlink.Acknowledge | netlink.Create | netlink.Excl},
			Data: append(header(unix.NFPROTO_INET, 0), attrs...)},
		{Header: netlink.Header{Type: unix.NFNL_MSG_BATCH_END, Flags: netlink.Request}, Data: header(unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)},
	})
	if err == nil {
		_, err = socket.Receive() // the acknowledgement, or what is wrong
	}
	return err
}

func (n *Names) set(resolvers []netip.Addr) error {
	b := &batch{c: n.conn, table: n.table}
	b.addresses("resolvers", resolvers)
	out := n.conn.AddChain(&nftables.Chain{Name: "output", Table: n.table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookOutput, Priority: before(before(nftables.ChainPriorityNATDest))}) // and before Set's, which may lead all TCP elsewhere
	for _, p := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		for _, version := range []byte{4, 6} {
			b.rule(out, notOurs(), protocol(p), toPort(53), to(version, "resolvers"), redirect(NamesPort))
		}
	}
	// What the node proxy asks itself is not followed, nor are its answers: a query of the pod from the same
	// port, within half a minute, would be taken for one more of that and go to the resolver.
	raw := func(name string, hook *nftables.ChainHook) *nftables.Chain {
		return n.conn.AddChain(&nftables.Chain{Name: name, Table: n.table, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: nftables.ChainPriorityRaw})
	}
	asks, answers := raw("asks", nftables.ChainHookOutput), raw("answers", nftables.ChainHookPrerouting)
	for _, version := range []byte{4, 6} {
		b.rule(asks, ours(), protocol(unix.IPPROTO_UDP), toPort(53), to(version, "resolvers"), []expr.Any{&expr.Notrack{}})
		b.rule(answers, protocol(unix.IPPROTO_UDP), fromPort(53), from(version, "resolvers"), []expr.Any{&expr.Notrack{}})
	}
	if b.err != nil {
		return b.err
	}
	return n.conn.Flush()
}

// Close gives the pod its resolvers back.
func (n *Names) Close() error {
	if n.conn == nil {
		return nil
	}
	if err := n.conn.CloseLasting(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("release table %s: %w", n.table.Name, err)
	}
	return nil
}
