//go:build linux

package capture

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Verdict is what becomes of the connections that a pod opens to one address and port.
type Verdict uint8

const (
	Dropped Verdict = iota // no decision: the packet is dropped. No Decision has it
	Direct                 // left to the kernel, as without a mesh
	Mesh                   // redirected to the node proxy
	Refused                // reset, so that connect fails with ECONNREFUSED
)

// String returns the name of v, which its sets have too.
func (v Verdict) String() string {
	switch v {
	case Dropped:
		return "dropped"
	case Direct:
		return "direct"
	case Mesh:
		return "mesh"
	case Refused:
		return "refused"
	}
	return fmt.Sprintf("verdict %d", uint8(v))
}

var verdicts = []Verdict{Direct, Mesh, Refused}

// Decision is the verdict on one destination, in force until the kernel's timer of it fires.
type Decision struct {
	To      netip.AddrPort // an IPv4 address is not mapped into IPv6
	Verdict Verdict
	For     time.Duration // at least a millisecond
}

// MaxDecisions is how many destinations of one verdict and IP version a pod's sets hold. The kernel rejects more.
const MaxDecisions = 4096

// decisionSets names the sets of decisions of one process. The kernel rejects decisions of a process whose rules were
// replaced by the rules of another one, because it no longer finds sets of these names.
func (r Rules) decisionSets() (names []string) {
	if r.Group == 0 {
		return nil
	}
	for _, v := range verdicts {
		names = append(names, decisionSet(v, 4, r.By), decisionSet(v, 6, r.By))
	}
	return names
}

func decisionSet(v Verdict, version byte, by Setter) string {
	return fmt.Sprintf("%s-%x", versioned(v.String(), version), by.Socket)
}

// keepsDecisions returns which sets of an existing table Set keeps, with their elements: decisions of the same process.
func (r Rules) keepsDecisions() func(set string) bool {
	names := r.decisionSets()
	return func(set string) bool { return slices.Contains(names, set) }
}

var destinationTypes = map[byte]nftables.SetDatatype{
	4: nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetService),
	6: nftables.MustConcatSetType(nftables.TypeIP6Addr, nftables.TypeInetService),
}

// decisions adds the sets of decisions, unless they are kept, and the rules that apply them.
//
// Only the first packet of a connection is decided on: what is open stays as it is. The chain runs before any NAT, on
// the address that the application asked for. Destinations are matched in the order refused, mesh, direct, so that no
// leftover element can send a destination of the mesh out in plain text.
//
// The first packet to an undecided destination is logged to r.Group, for the node proxy to decide, and dropped. The
// kernel's TCP does not report that to the application, and sends the packet again after a second. For a captured
// destination this needs a running node proxy (see Undecided): without one the packet is redirected to a port where
// nothing listens, and refused.
func (b *batch) decisions(r Rules, out, decide, refuse *nftables.Chain) {
	for _, v := range verdicts {
		for _, version := range []byte{4, 6} {
			b.add(&nftables.Set{Name: decisionSet(v, version, r.By), KeyType: destinationTypes[version], Concatenation: true, HasTimeout: true, Size: MaxDecisions})
		}
	}
	is := func(v Verdict, version byte) any {
		return decided{set: decisionSet(v, version, r.By), version: version}
	}
	undecided := []expr.Any{
		&expr.Log{Key: 1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_QTHRESHOLD, Group: r.Group, QThreshold: 1},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}
	for _, others := range [][]expr.Any{notOpening(), notProtocol(unix.IPPROTO_TCP), ours(), overLoopback()} {
		b.rule(decide, others, accept())
	}
	for _, version := range []byte{4, 6} {
		b.rule(decide, is(Refused, version), reset())
		b.rule(decide, is(Mesh, version), setAlive(false), accept())
		if r.Everything {
			b.rule(decide, is(Direct, version), setAlive(false), accept())
		}
	}
	for _, m := range r.captured() {
		b.rule(decide, m, alive(false), accept())
		b.rule(decide, m, setAlive(false), undecided)
	}
	if r.Everything {
		b.rule(decide, linkLocal(), setAlive(false), accept())
		b.rule(decide, setAlive(false), undecided)
		for _, version := range []byte{4, 6} {
			b.rule(out, notOurs(), protocol(unix.IPPROTO_TCP), opening(), elsewhere(), is(Mesh, version), redirect(OutboundPort))
		}
	} else {
		b.rule(decide, setAlive(false))
	}
	for _, version := range []byte{4, 6} { // not redirected, because the kernel takes it for part of another connection
		b.rule(refuse, notOurs(), elsewhere(), is(Mesh, version), reset())
	}
}

// decisionRules returns how many rules decisions adds to each chain.
func (r Rules) decisionRules() (out, decide, refuse int) {
	if r.Group == 0 {
		return 0, 0, 0
	}
	out, decide, refuse = 0, 8+2*len(r.captured())+1, 2
	if r.Everything {
		out, decide = 2, decide+3
	}
	return out, decide, refuse
}

// decided matches destinations that are in one of the sets of decisions.
type decided struct {
	set     string
	version byte
}

// expressions loads the key of the set: the address into register 1, and the port behind it.
func (d decided) expressions(b *batch) []expr.Any {
	i := slices.IndexFunc(b.sets, func(s *nftables.Set) bool { return s.Name == d.set })
	port := uint32(unix.NFT_REG32_01)
	if d.version == 6 {
		port = unix.NFT_REG_2
	}
	return append(address(d.version, false),
		&expr.Payload{DestRegister: port, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Lookup{SourceRegister: 1, SetName: d.set, SetID: b.sets[i].ID})
}

func accept() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}} }

func notProtocol(n byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{n}},
	}
}

// notOpening matches TCP packets that opening does not match.
func notOpening() []expr.Any {
	all := opening()
	c := *all[len(all)-1].(*expr.Cmp)
	c.Op = expr.CmpOpNeq
	return append(all[:len(all)-1], &c)
}

// linkLocal matches packets of IPv6 to fe80::/10.
func linkLocal() []expr.Any { return within(netip.MustParsePrefix("fe80::/10")) }

// aliveMark is on the first packet of a connection while it is decided on, if a node proxy runs. The table that sets it
// belongs to a socket of the process, and goes with it (Linux 5.12). No other table sees it: the two chains run one after
// the other, and it is taken off before the packet leaves the second one.
const aliveMark = 1 << 31

// alive matches packets with aliveMark, or without.
func alive(has bool) []expr.Any {
	op := expr.CmpOpEq
	if has {
		op = expr.CmpOpNeq
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(aliveMark), Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: 1, Data: make([]byte, 4)},
	}
}

// setAlive puts aliveMark on a packet, or takes it off. The other bits of its mark stay.
func setAlive(on bool) []expr.Any {
	var bit uint32
	if on {
		bit = aliveMark
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(^uint32(aliveMark)), Xor: binaryutil.NativeEndian.PutUint32(bit)},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1, SourceRegister: true},
	}
}

// decideChain is where first packets are decided on: after conntrack, and before mangle and NAT.
func decideChain() *nftables.Chain {
	return &nftables.Chain{Name: "decide", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookOutput, Priority: before(nftables.ChainPriorityMangle)}
}

// aliveChain is just before decideChain.
func aliveChain(t *nftables.Table) *nftables.Chain {
	return &nftables.Chain{Name: "alive", Table: t, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookOutput, Priority: before(before(nftables.ChainPriorityMangle))}
}
