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
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// Names leads a pod's queries to its node proxy for as long as that lives: the table belongs to a
// socket of this process, and the kernel removes it with that. Two processes that overlap have one each.
type Names struct {
	conn    *nftables.Conn
	table   *nftables.Table
	leading []*nftables.Chain // that lead queries here
}

// tableOwner is NFT_TABLE_F_OWNER: the table goes with the socket that made it (Linux 5.12).
const tableOwner = 0x2

// CaptureNames leads queries of a pod to resolvers, port 53 of UDP, to where QueriesTo says, and of TCP to NamesPort.
// Resolvers on a loopback address are left alone: those are in the pod itself. Close ends it.
//
// Queries by UDP are rewritten packet by packet, and the kernel keeps no connection of them: a socket that asks for
// years is captured with its next query, and has its resolver back with its next one when this process ends, however
// it does. A translated connection would lead it to nobody until half a minute after it was last used.
func CaptureNames(ns *podns.Namespace, resolvers []netip.Addr) (*Names, error) {
	n := &Names{table: &nftables.Table{Name: namesTable + "-" + rand.Text()[:8], Family: nftables.TableFamilyINet}}
	err := ns.FD(func(fd int) (err error) {
		var socket *netlink.Conn
		n.conn, err = nftables.New(nftables.WithNetNSFd(fd), nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
			socket = c
			return hearKernel(c)
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
	m, err := request(unix.NFPROTO_INET, unix.NFT_MSG_NEWTABLE, netlink.Create|netlink.Excl,
		text(unix.NFTA_TABLE_NAME, t.Name), netlink.Attribute{Type: unix.NFTA_TABLE_FLAGS, Data: binaryutil.BigEndian.PutUint32(tableOwner)})
	if err != nil {
		return err
	}
	return transact(socket, m)
}

// place is where queries to a resolver come.
type place struct {
	resolver netip.Addr
	at       netip.AddrPort
	tracked  bool // by a connection of the kernel's: from a link-local address of IPv6 there is no other way to a loopback one
}

// places are those of resolvers. Each has a port of its own, by which the answer is known to be its.
func places(resolvers []netip.Addr) (out []place) {
	next := map[netip.Addr]uint16{}
	for _, a := range resolvers {
		a = a.Unmap().WithZone("")
		if !a.IsValid() || a.IsLoopback() || slices.ContainsFunc(out, func(p place) bool { return p.resolver == a }) {
			continue
		}
		loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
		if a.Is6() {
			loopback = netip.IPv6Loopback()
		}
		out = append(out, place{a, netip.AddrPortFrom(loopback, NamesPort+next[loopback]), a.Is6() && a.IsLinkLocalUnicast()})
		next[loopback]++
	}
	return out
}

// QueriesTo returns where queries by UDP to resolvers come: the first of each version of IP to NamesPort of the loopback
// address, and others to the ports behind it.
func QueriesTo(resolvers []netip.Addr) (out []netip.AddrPort) {
	for _, p := range places(resolvers) {
		out = append(out, p.at)
	}
	return out
}

// Following returns for which resolvers queries are to be captured of a pod that has others now than those of before, while the
// latter are still captured: by its port an answer is known to be that of one resolver, so the two must not have one port for
// different ones. It is all of them, those of before first.
func Following(before, now []netip.Addr) []netip.Addr { return slices.Concat(before, now) }

func (n *Names) set(resolvers []netip.Addr) error {
	b, places := &batch{c: n.conn, table: n.table}, places(resolvers)
	resolvers = nil
	for _, p := range places {
		resolvers = append(resolvers, p.resolver)
	}
	b.addresses("resolvers", resolvers)
	out := n.conn.AddChain(&nftables.Chain{Name: "output", Table: n.table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookOutput, Priority: before(before(nftables.ChainPriorityNATDest))}) // and before Set's, which may lead all TCP elsewhere
	for _, version := range []byte{4, 6} {
		b.rule(out, notOurs(), protocol(unix.IPPROTO_TCP), toPort(53), to(version, "resolvers"), redirect(NamesPort))
	}
	raw := func(name string, hook *nftables.ChainHook) *nftables.Chain {
		return n.conn.AddChain(&nftables.Chain{Name: name, Table: n.table, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: nftables.ChainPriorityRaw})
	}
	asks, answers := raw("asks", nftables.ChainHookOutput), raw("answers", nftables.ChainHookPrerouting)
	// Answers are led back by chains of their own: until Close also those to what was asked before Release.
	queries := n.conn.AddChain(&nftables.Chain{Name: "queries", Table: n.table, Type: nftables.ChainTypeRoute, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityRaw})
	n.leading = []*nftables.Chain{out, queries}
	answered := raw("answered", nftables.ChainHookInput)
	for _, p := range places {
		if p.tracked {
			// What the node proxy asks itself is not followed then, nor are its answers: a query of the pod from the same
			// port, within half a minute, would be taken for one more of that and go to the resolver. Answers of others are
			// left alone: what a pod passes on for somebody behind it needs the kernel's connection to come back.
			b.rule(asks, ours(), protocol(unix.IPPROTO_UDP), toPort(53), is(p.resolver, false), []expr.Any{&expr.Notrack{}})
			b.rule(answers, protocol(unix.IPPROTO_UDP), fromPort(53), is(p.resolver, true), []expr.Any{&expr.Notrack{}})
			b.rule(out, notOurs(), protocol(unix.IPPROTO_UDP), toPort(53), is(p.resolver, false), redirect(p.at.Port()))
			continue
		}
		query := slices.Concat(notOurs(), protocol(unix.IPPROTO_UDP), toPort(53), is(p.resolver, false), []expr.Any{&expr.Notrack{}})
		b.rule(queries, query, unchecked(), become(p.at, false, expr.CsumTypeNone))
		b.rule(queries, query, become(p.at, false, expr.CsumTypeInet))
		b.rule(asks, protocol(unix.IPPROTO_UDP), fromPort(p.at.Port()), is(p.at.Addr(), true), []expr.Any{&expr.Notrack{}})
		answer, resolver := slices.Concat(protocol(unix.IPPROTO_UDP), fromPort(p.at.Port()), is(p.at.Addr(), true)), netip.AddrPortFrom(p.resolver, 53)
		b.rule(answered, answer, unchecked(), become(resolver, true, expr.CsumTypeNone))
		b.rule(answered, answer, become(resolver, true, expr.CsumTypeInet))
	}
	if b.err != nil {
		return b.err
	}
	return n.conn.Flush()
}

// is matches packets from or to an address.
func is(a netip.Addr, source bool) []expr.Any {
	version := byte(4)
	if a.Is6() {
		version = 6
	}
	return append(address(version, source), &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: a.AsSlice()})
}

// unchecked matches UDP packets without a checksum: 0. One that is kept up to date would be wrong, where none is right.
func unchecked() []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 6, Len: 2}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{0, 0}}}
}

// become makes a UDP packet one from or to a. checksum is how that of UDP follows its port; for its address the kernel does
// what is right.
func become(a netip.AddrPort, source bool, checksum expr.PayloadCsumType) []expr.Any {
	host := &expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4,
		CsumType: expr.CsumTypeInet, CsumOffset: 10, CsumFlags: unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR}
	if a.Addr().Is6() {
		host.Offset, host.Len, host.CsumType, host.CsumOffset = 24, 16, expr.CsumTypeNone, 0
	}
	port := &expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2, CsumType: checksum, CsumOffset: 6}
	if source {
		host.Offset, port.Offset = host.Offset-host.Len, 0
	}
	return []expr.Any{&expr.Immediate{Register: 1, Data: a.Addr().AsSlice()}, host, &expr.Immediate{Register: 1, Data: binaryutil.BigEndian.PutUint16(a.Port())}, port}
}

// Release gives the pod its resolvers back. Answers to what it has asked before still come from whom it has asked.
func (n *Names) Release() error {
	if n.conn == nil || n.leading == nil {
		return nil
	}
	for _, c := range n.leading {
		n.conn.FlushChain(c)
	}
	n.leading = nil
	if err := n.conn.Flush(); err != nil {
		return fmt.Errorf("release table %s: %w", n.table.Name, err)
	}
	return nil
}

// Close ends all of it, and gives the pod its resolvers back.
func (n *Names) Close() error {
	if n.conn == nil {
		return nil
	}
	if err := n.conn.CloseLasting(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("release table %s: %w", n.table.Name, err)
	}
	return nil
}
