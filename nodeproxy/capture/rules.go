//go:build linux

package capture

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// Ports of a node proxy in the pods that it captures, as in Istio's ambient mode.
const (
	OutboundPort = 15001 // connections that the pod opens, on its loopback addresses
	NamesPort    = 15053 // queries for names, on its loopback addresses
)

// mark is on every packet of a node proxy's own sockets in a pod, which no rule applies to. It is
// ztunnel's, by which other tools know such packets.
const (
	mark     = 1337
	markMask = 0xfff
)

// Names of the tables, of family inet.
const (
	table      = "isthmus"
	namesTable = "isthmus-names" // and an id: one for each process that answers
)

// Rules are what leads connections of a pod to its node proxy.
type Rules struct {
	// Owner names whose node proxies set them, in at most 100 bytes: two of one owner take over from each
	// other, one of another owner leaves the pod alone.
	Owner string
	// Ranges are the virtual addresses of the mesh: TCP is captured, anything else is refused.
	Ranges []netip.Prefix
	// Addresses are others to which TCP is captured, such as the cluster IPs of services that lead to
	// other networks too.
	Addresses []netip.Addr
	// Everything has TCP captured too that the pod opens to destinations that Undecided decides are of the mesh.
	Everything bool
	// Group is the nfnetlink_log group in the pod to which first packets to undecided destinations are logged (see
	// Undecided). 0: no destination is decided on; what the pod opens is redirected if it is of Ranges and Addresses, and
	// left to the kernel otherwise.
	Group uint16
	// Inbound has TCP captured that others open to ports of the pod on which it listens, except tunnels and what Exempt
	// exempts. Without it the kernel delivers that as if there were no node proxy.
	Inbound bool
	// By is who sets them; two that are alike are, whoever has set them.
	By Setter
}

// Set puts r in the place of the rules that are in a namespace, in one transaction: each connection meets the
// rules before or those after.
func Set(ns *podns.Namespace, r Rules) error {
	return ns.FD(func(fd int) error {
		return explain(begun(func(begin beginning) error { return setRules(fd, r, begin) }))
	})
}

// begun has set make a table of ours: other rules of one that is there, or a new one, or, where somebody else has changed
// it, maybe this moment, one in its place. What else goes wrong is no reason to replace a table that is whole.
func begun(set func(beginning) error) error {
	var err error
	for _, begin := range []beginning{renewed, created, replaced} {
		if err = set(begin); err == nil || !otherwise(err) {
			break
		}
	}
	return err
}

// otherwise reports whether err means that what is there is not what a transaction was made for: no table, one already, one
// whose chains are not as ours, or one of which so much is to be taken out that the transaction, or the answers to it, do not
// fit into a socket.
func otherwise(err error) bool {
	return slices.ContainsFunc([]error{unix.ENOENT, unix.EEXIST, unix.EBUSY, unix.EINVAL, unix.EOPNOTSUPP, unix.EMSGSIZE, unix.ENOBUFS, errNotAsOurs}, func(e error) bool { return errors.Is(err, e) })
}

// beginning begins a transaction that gives a table of ours those base chains, without rules.
// keep reports which of its sets stay as they are; nil: none.
type beginning func(c *nftables.Conn, table string, keep func(set string) bool, chains ...*nftables.Chain) (*nftables.Table, error)

func setRules(fd int, r Rules, begin beginning) error {
	c, err := nftables.New(nftables.WithNetNSFd(fd), nftables.WithSockOptions(hearKernel, room(len(r.Addresses))))
	if err != nil {
		return err
	}
	out := &nftables.Chain{Name: "output", Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookOutput, Priority: before(nftables.ChainPriorityNATDest)}
	refuse := &nftables.Chain{Name: "refuse", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityFilter}
	in := &nftables.Chain{Name: "input", Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting, Priority: before(nftables.ChainPriorityNATDest)}
	guard := &nftables.Chain{Name: "guard", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter}
	decide := decideChain()
	chains := []*nftables.Chain{out, refuse}
	if r.Inbound {
		chains = append(chains, in, guard)
	}
	if r.Group != 0 {
		chains = append(chains, decide)
	}
	t, err := begin(c, table, r.keepsDecisions(), chains...)
	if err != nil {
		return err
	}
	b := &batch{c: c, table: t, about: r.digest()}
	b.add(&nftables.Set{Name: ownerMark + hex.EncodeToString([]byte(r.Owner)), KeyType: nftables.TypeInetService})
	if r.By != (Setter{}) {
		b.add(&nftables.Set{Name: r.By.name(), KeyType: nftables.TypeInetService})
	}
	b.addresses("addresses", r.Addresses)
	for _, m := range r.captured() {
		b.rule(out, notOurs(), protocol(unix.IPPROTO_TCP), m, redirect(OutboundPort))
	}
	if r.Inbound {
		b.inbound(in, guard)
	}
	for _, m := range r.refused() {
		b.rule(refuse, m, reject())
	}
	for _, others := range [][]expr.Any{notOpening(), notProtocol(unix.IPPROTO_TCP)} { // few packets go on from here
		b.rule(refuse, others, accept())
	}
	for _, m := range r.guarded() {
		b.rule(refuse, notOurs(), m, reset())
	}
	if r.Group != 0 {
		b.decisions(r, out, decide, refuse)
	}
	if b.err != nil {
		return b.err
	}
	return c.Flush()
}

// Remove takes all rules out of a namespace, and what Exempt has attached. That there is nothing is no error.
func Remove(ns *podns.Namespace) error {
	return errors.Join(removeTable(ns, table), removeExempt(ns))
}

func removeTable(ns *podns.Namespace, name string) error {
	return ns.FD(func(fd int) error {
		c, err := nftables.New(nftables.WithNetNSFd(fd), nftables.WithSockOptions(hearKernel))
		if err != nil {
			return explain(err)
		}
		t, _ := replaced(c, name, nil)
		c.DelTable(t)
		return explain(c.Flush())
	})
}

// renewed begins a transaction that gives a table of ours other rules, and keeps those base chains of it that are
// there, empty. Were they replaced, two hooks for NAT would be there for a moment, the new one first, and the kernel
// looks at one after the other: a connection in between would meet neither's rules, by the kernel's code.
func renewed(c *nftables.Conn, name string, keep func(set string) bool, chains ...*nftables.Chain) (*nftables.Table, error) {
	t := &nftables.Table{Name: name, Family: nftables.TableFamilyINet}
	var there parts
	err := look(c.NetNS, func(l looking) (err error) {
		is := false
		if there, is, err = l.parts(name); err == nil && !is {
			err = fmt.Errorf("there is no table %s: %w", name, unix.ENOENT)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	c.AddTable(t)
	for _, h := range chains {
		h.Table = t
		c.AddChain(h)
		c.FlushChain(h)
	}
	for h := range there.chains {
		if !slices.ContainsFunc(chains, func(o *nftables.Chain) bool { return o.Name == h }) {
			h := &nftables.Chain{Name: h, Table: t}
			c.FlushChain(h)
			c.DelChain(h)
		}
	}
	for _, s := range there.sets {
		if keep == nil || !keep(s) {
			c.DelSet(&nftables.Set{Table: t, Name: s})
		}
	}
	return t, nil
}

// created begins a transaction that makes a table of ours where there is none. Nothing is deleted by it: when a socket of
// netfilter is closed, the kernel waits until all processors are done with what was (10 ms and more, Linux 6.18).
func created(c *nftables.Conn, name string, _ func(set string) bool, chains ...*nftables.Chain) (*nftables.Table, error) {
	t := &nftables.Table{Name: name, Family: nftables.TableFamilyINet}
	c.CreateTable(t)
	for _, h := range chains {
		h.Table = t
		c.AddChain(h)
	}
	return t, nil
}

// replaced begins a transaction that makes a table of ours anew, with empty base chains.
func replaced(c *nftables.Conn, name string, _ func(set string) bool, chains ...*nftables.Chain) (*nftables.Table, error) {
	t := &nftables.Table{Name: name, Family: nftables.TableFamilyINet}
	c.AddTable(t) // there is one to delete, then
	c.DelTable(t)
	c.AddTable(t)
	for _, h := range chains {
		h.Table = t
		c.AddChain(h)
	}
	return t, nil
}

// room has a socket take a transaction that has so many addresses, which the kernel wants in one piece.
func room(addresses int) func(*netlink.Conn) error {
	return func(c *netlink.Conn) error {
		return c.SetWriteBuffer(256<<10 + 64*addresses) // an element of IPv6 is 36 bytes
	}
}

// before is a priority just before p: the first rule that translates a connection decides.
func before(p *nftables.ChainPriority) *nftables.ChainPriority {
	q := *p - 1
	return &q
}

// explain adds to what the kernel says what it may come from.
func explain(err error) error {
	entering := (*os.SyscallError)(nil)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPERM) && errors.As(err, &entering) && entering.Syscall == "setns": // by the netlink library
		return fmt.Errorf("enter its network namespace to set nftables rules: %w: give this process the capability SYS_ADMIN (capture takes NET_ADMIN and SYS_PTRACE too)", err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("set nftables rules: %w: give this process the capability NET_ADMIN", err)
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EAFNOSUPPORT):
		return fmt.Errorf("set nftables rules: %w: this kernel needs nf_tables with NAT of family inet (modules nf_tables, nft_chain_nat, nft_redir, nft_reject_inet, nft_log, nfnetlink_log, and for capture.scope all nft_fib_inet and nft_socket; Linux 5.12)", err)
	}
	return fmt.Errorf("set nftables rules: %w", err)
}

// batch collects what one transaction consists of.
type batch struct {
	c     *nftables.Conn
	table *nftables.Table
	about []byte // kept with each rule
	sets  []*nftables.Set
	err   error
}

func (b *batch) rule(c *nftables.Chain, parts ...any) {
	var all []expr.Any
	for _, p := range parts {
		switch p := p.(type) {
		case []expr.Any:
			all = append(all, p...)
		case lookup:
			i := slices.IndexFunc(b.sets, func(s *nftables.Set) bool { return s.Name == versioned(p.set, p.version) })
			all = append(all, address(p.version, false)...)
			all = append(all, &expr.Lookup{SourceRegister: 1, SetName: b.sets[i].Name, SetID: b.sets[i].ID})
		case decided:
			all = append(all, p.expressions(b)...)
		}
	}
	b.c.AddRule(&nftables.Rule{Table: b.table, Chain: c, Exprs: all, UserData: b.about})
}

// add adds an empty set. It gives out the id by which rules of this transaction mean the set: the library's own
// counter is shared by all connections without a lock, and two sets of one transaction might get the same.
func (b *batch) add(s *nftables.Set) {
	s.Table, s.ID = b.table, uint32(len(b.sets)+1)
	b.sets = append(b.sets, s)
	if err := b.c.AddSet(s, nil); err != nil && b.err == nil {
		b.err = fmt.Errorf("set %s: %w", s.Name, err)
	}
}

// addresses adds two sets, of the addresses of each version of IP. They hold no intervals: the kernel's sets of
// intervals, when they are made anew, have moments in which nothing is found in them (seen on Linux 6.18).
func (b *batch) addresses(name string, list []netip.Addr) {
	for version, kind := range map[byte]nftables.SetDatatype{4: nftables.TypeIPAddr, 6: nftables.TypeIP6Addr} {
		s := &nftables.Set{Name: versioned(name, version), KeyType: kind}
		b.add(s)
		var elements []nftables.SetElement
		for _, a := range list {
			if a = a.Unmap().WithZone(""); a.Is4() == (version == 4) {
				elements = append(elements, nftables.SetElement{Key: a.AsSlice()})
			}
		}
		for part := range slices.Chunk(elements, maxElements) {
			if err := b.c.SetAddElements(s, part); err != nil && b.err == nil {
				b.err = fmt.Errorf("set %s: %w", s.Name, err)
			}
		}
	}
}

func versioned(name string, version byte) string { return fmt.Sprint(name, version) }

// maxElements is how many addresses one message has: the length of their attribute is 16 bits, and what is
// longer is cut off without an error.
const maxElements = 1024

// lookup matches an address in one of the sets of addresses.
type lookup struct {
	version byte
	set     string
}

func to(version byte, set string) lookup { return lookup{version: version, set: set} }

// address loads an address of a packet into register 1, if it is of that version of IP.
func address(version byte, source bool) []expr.Any {
	family, offset, size := byte(unix.NFPROTO_IPV4), uint32(16), uint32(4)
	if version == 6 {
		family, offset, size = unix.NFPROTO_IPV6, 24, 16
	}
	if source {
		offset -= size
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{family}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
	}
}

// within matches packets to addresses of p.
func within(p netip.Prefix) []expr.Any {
	p = p.Masked()
	version, size := byte(4), p.Addr().BitLen()/8
	if p.Addr().Is6() {
		version = 6
	}
	return append(address(version, false),
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: uint32(size), Mask: net.CIDRMask(p.Bits(), size*8), Xor: make([]byte, size)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Addr().AsSlice()})
}

// captured are what matches destinations that are captured, each by one rule; refused, what is refused otherwise.
func (r Rules) captured() []any {
	return append(r.refused(), to(4, "addresses"), to(6, "addresses"))
}

// guarded are what matches destinations to which TCP alone is captured. A connection to them that was not led to the node
// proxy is reset: by a raw packet of the destination's, that the pod does not answer, others could have the kernel follow a
// connection that is not there, and take the first packet of one to the same port for an answer.
func (r Rules) guarded() []any {
	if len(r.Addresses) == 0 {
		return nil
	}
	return []any{to(4, "addresses"), to(6, "addresses")}
}

func (r Rules) refused() (out []any) {
	for _, p := range r.Ranges {
		out = append(out, within(p))
	}
	return out
}

// notOurs matches packets of others than node proxies, ours those of node proxies.
func notOurs() []expr.Any { return packetMark(mark, false) }
func ours() []expr.Any    { return packetMark(mark, true) }

func protocol(n byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{n}},
	}
}

func toPort(n uint16) []expr.Any   { return port(2, n) }
func fromPort(n uint16) []expr.Any { return port(0, n) }

func port(offset uint32, n uint16) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(n)},
	}
}

// redirect leads to a port of the pod's loopback address.
func redirect(port uint16) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
		&expr.Redir{RegisterProtoMin: 1, Flags: unix.NF_NAT_RANGE_PROTO_SPECIFIED},
	}
}

// reject tells the sender at once that nobody is there.
func reject() []expr.Any {
	return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}}
}

// String shows r as people write it.
func (r Rules) String() string {
	var words []string
	for _, p := range r.Ranges {
		words = append(words, p.String())
	}
	for _, a := range r.Addresses {
		words = append(words, a.String())
	}
	if r.Everything {
		words = append(words, "all TCP")
	}
	if r.Group != 0 {
		words = append(words, fmt.Sprintf("undecided to group %d", r.Group))
	}
	if r.Inbound {
		words = append(words, "inbound TCP")
	}
	return strings.Join(words, ", ")
}

// Free has an error if somebody in a namespace listens on a, on all addresses, or shares
// its port with others.
func Free(ns *podns.Namespace, a netip.AddrPort) error {
	c := net.ListenConfig{Control: ns.Control}
	l, err := c.Listen(context.Background(), "tcp", a.String())
	if errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("port %d of the pod is taken by another program in it, which may be another mesh (is the pod enrolled by istio-cni?): end that, or take the pod out of this mesh", a.Port())
	}
	if err != nil {
		return fmt.Errorf("listen in the pod: %w", err)
	}
	return l.Close()
}
