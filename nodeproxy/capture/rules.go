//go:build linux

package capture

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
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
}

// Set puts r in the place of the rules that are in a namespace, in one transaction.
func Set(ns *podns.Namespace, r Rules) error {
	return ns.FD(func(fd int) error {
		four, six := intervals(r)
		c, err := nftables.New(nftables.WithNetNSFd(fd), nftables.WithSockOptions(room(len(four)+len(six))))
		if err != nil {
			return explain(err)
		}
		t := replaced(c, table)
		b := &batch{c: c, table: t, about: r.digest()}
		b.prefixes("addresses4", nftables.TypeIPAddr, four)
		b.prefixes("addresses6", nftables.TypeIP6Addr, six)
		if err := c.AddSet(&nftables.Set{Table: t, Name: ownerMark + hex.EncodeToString([]byte(r.Owner)), KeyType: nftables.TypeInetService}, nil); err != nil {
			return err
		}
		out := c.AddChain(&nftables.Chain{Name: "output", Table: t, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookOutput, Priority: before(nftables.ChainPriorityNATDest)})
		b.rule(out, notOurs(), protocol(unix.IPPROTO_TCP), to(4, "addresses4"), redirect(OutboundPort))
		b.rule(out, notOurs(), protocol(unix.IPPROTO_TCP), to(6, "addresses6"), redirect(OutboundPort))
		refuse := c.AddChain(&nftables.Chain{Name: "refuse", Table: t, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityFilter})
		four, six = intervals(Rules{Ranges: r.Ranges})
		b.prefixes("virtual4", nftables.TypeIPAddr, four)
		b.prefixes("virtual6", nftables.TypeIP6Addr, six)
		b.rule(refuse, to(4, "virtual4"), reject())
		b.rule(refuse, to(6, "virtual6"), reject())
		if b.err == nil {
			b.err = c.Flush()
		}
		return explain(b.err)
	})
}

// Remove takes all rules out of a namespace. That there are none is no error.
func Remove(ns *podns.Namespace) error { return removeTable(ns, table) }

func removeTable(ns *podns.Namespace, name string) error {
	return ns.FD(func(fd int) error {
		c, err := nftables.New(nftables.WithNetNSFd(fd))
		if err != nil {
			return explain(err)
		}
		c.DelTable(replaced(c, name))
		return explain(c.Flush())
	})
}

// replaced begins a transaction that makes a table of ours anew.
func replaced(c *nftables.Conn, name string) *nftables.Table {
	t := &nftables.Table{Name: name, Family: nftables.TableFamilyINet}
	c.AddTable(t) // there is one to delete, then
	c.DelTable(t)
	return c.AddTable(t)
}

// room has a socket take a transaction that has so many intervals, which the kernel wants in one piece.
func room(intervals int) func(*netlink.Conn) error {
	return func(c *netlink.Conn) error {
		return c.SetWriteBuffer(256<<10 + 64*2*intervals) // an element of IPv6 is 36 bytes
	}
}

// before is a priority just before p: the first rule that translates a connection decides.
func before(p *nftables.ChainPriority) *nftables.ChainPriority {
	q := *p - 1
	return &q
}

// explain adds to what the kernel says what it may come from.
func explain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("set nftables rules: %w: give this process the capability NET_ADMIN", err)
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EAFNOSUPPORT):
		return fmt.Errorf("set nftables rules: %w: this kernel needs nf_tables with NAT of family inet (modules nf_tables, nft_chain_nat, nft_redir, nft_reject_inet; Linux 5.2)", err)
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
			i := slices.IndexFunc(b.sets, func(s *nftables.Set) bool { return s.Name == p.set })
			all = append(all, p.load()...)
			all = append(all, &expr.Lookup{SourceRegister: 1, SetName: p.set, SetID: b.sets[i].ID})
		}
	}
	b.c.AddRule(&nftables.Rule{Table: b.table, Chain: c, Exprs: all, UserData: b.about})
}

// prefixes adds a set of addresses.
func (b *batch) prefixes(name string, kind nftables.SetDatatype, ranges []span) {
	s := &nftables.Set{Table: b.table, Name: name, KeyType: kind, Interval: true}
	b.sets = append(b.sets, s)
	err := b.c.AddSet(s, nil)
	for part := range slices.Chunk(ranges, maxIntervals) {
		var elements []nftables.SetElement
		for _, r := range part {
			elements = append(elements, nftables.SetElement{Key: r.first.AsSlice()})
			if r.end.IsValid() {
				elements = append(elements, nftables.SetElement{Key: r.end.AsSlice(), IntervalEnd: true})
			}
		}
		err = errors.Join(err, b.c.SetAddElements(s, elements))
	}
	if err != nil && b.err == nil {
		b.err = fmt.Errorf("set %s: %w", name, err)
	}
}

// maxIntervals is how many intervals one message has: the length of their attribute is 16 bits, and what is
// longer is cut off without an error.
const maxIntervals = 512

// lookup matches a destination address in a set.
type lookup struct {
	version byte
	set     string
	source  bool // of the source instead
}

func to(version byte, set string) lookup { return lookup{version: version, set: set} }

func from(version byte, set string) lookup { return lookup{version: version, set: set, source: true} }

func (l lookup) load() []expr.Any {
	family, offset, size := byte(unix.NFPROTO_IPV4), uint32(16), uint32(4)
	if l.version == 6 {
		family, offset, size = unix.NFPROTO_IPV6, 24, 16
	}
	if l.source {
		offset -= size
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{family}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
	}
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

// span is from first up to end, exclusively; no end: to the last address there is.
type span struct{ first, end netip.Addr }

// intervals are the addresses of r, in order and without overlap, as the kernel wants them.
func intervals(r Rules) (four, six []span) {
	all := slices.Clone(r.Ranges)
	for _, a := range r.Addresses {
		all = append(all, netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()))
	}
	slices.SortFunc(all, func(a, b netip.Prefix) int {
		if c := a.Masked().Addr().Compare(b.Masked().Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	var last netip.Prefix
	for _, p := range all {
		if p = p.Masked(); last.IsValid() && last.Overlaps(p) {
			continue // prefixes are apart, or one holds the other
		}
		last = p
		out := &four
		if p.Addr().Is6() {
			out = &six
		}
		s := span{p.Addr(), after(p)}
		if n := len(*out); n > 0 && (*out)[n-1].end == s.first {
			(*out)[n-1].end = s.end // the kernel takes no two that touch
			continue
		}
		*out = append(*out, s)
	}
	return four, six
}

// after is the first address behind p; the zero Addr: there is none.
func after(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	last, _ := netip.AddrFromSlice(b)
	return last.Next()
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
	return strings.Join(words, ", ")
}

// ownerMark begins the name of a set that has no other use.
const ownerMark = "owner-"

// Owner returns whose rules are in a namespace, of a node proxy that may have ended since; there is false if
// nobody's are.
func Owner(ns *podns.Namespace) (owner string, there bool, err error) {
	err = ns.FD(func(fd int) error {
		c, err := nftables.New(nftables.WithNetNSFd(fd))
		if err != nil {
			return explain(err)
		}
		tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
		i := slices.IndexFunc(tables, func(t *nftables.Table) bool { return t.Name == table })
		if err != nil || i < 0 {
			return explain(err)
		}
		there = true
		sets, err := c.GetSets(tables[i])
		for _, s := range sets {
			if mark, ok := strings.CutPrefix(s.Name, ownerMark); ok {
				text, _ := hex.DecodeString(mark)
				owner = string(text)
			}
		}
		return explain(err)
	})
	return owner, there, err
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
