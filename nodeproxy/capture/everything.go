//go:build linux

package capture

import (
	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// InboundPort is where connections come that are opened to the pod itself, in plain text: on all its addresses.
const InboundPort = 15006

// hbonePort is where tunnels come; they are never led elsewhere.
const hbonePort = 15008

// Rules of Everything in the chains of the table.
const (
	everythingIn   = 1
	everythingHeld = 1
)

// everything redirects here what others open to the pod. What the pod opens is decided on by destination (see decisions).
//
// What was open before stays as it is: only the first packet of a connection is redirected, where the kernel would
// take the next one of a connection that it has not followed yet for a new one.
//
// The guard resets what comes in and was not led here: by a raw packet that is no SYN, and that the application's socket drops
// without an answer, others could have the kernel follow a connection that is not there, and open one from the same port then.
// Whose address was forged in such a packet is refused at once from that port, and from no other. A SYN that is dropped would
// not get in by its repeats either, as what is followed stays for five minutes (nf_conntrack_tcp_timeout_unacknowledged).
func (b *batch) everything(in, guard *nftables.Chain) {
	b.rule(in, protocol(unix.IPPROTO_TCP), opening(), fromOutside(), toThePod(), notToPort(hbonePort), redirect(InboundPort))
	b.rule(guard, protocol(unix.IPPROTO_TCP), opening(), fromOutside(), notToPort(hbonePort), notToPort(InboundPort), reset())
}

// reset answers the first packet of a TCP connection with a reset.
func reset() []expr.Any { return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}} }

// opening matches the first packet of a TCP connection: SYN, and neither ACK, RST nor FIN.
func opening() []expr.Any {
	const fin, syn, rst, ack = 1, 2, 4, 16
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{fin | syn | rst | ack}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{syn}},
	}
}

// elsewhere matches what leaves the pod: what goes to itself goes over its loopback interface, whatever the address.
func elsewhere() []expr.Any { return notLoopback(expr.MetaKeyOIFNAME) }

// fromOutside matches what comes into the pod.
func fromOutside() []expr.Any { return notLoopback(expr.MetaKeyIIFNAME) }

func notLoopback(key expr.MetaKey) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: key, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: interfaceName("lo")},
	}
}

// toThePod matches what has one of the pod's own addresses for its destination.
func toThePod() []expr.Any { return local(expr.CmpOpEq) }

func local(op expr.CmpOp) []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagDADDR: true},
		&expr.Cmp{Op: op, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
	}
}

func notToPort(n uint16) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.BigEndian.PutUint16(n)},
	}
}
