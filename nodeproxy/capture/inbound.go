//go:build linux

package capture

import (
	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Rules of Inbound in the chains of the table.
const (
	inboundIn    = 2
	inboundGuard = 1
)

// nowherePort is a port that the guard resets connections to. A port of the pod without a listener is led there, so
// that no other rule of the pod, such as one of a container engine in it, can lead the connection past policies.
const nowherePort = 1

// inbound leads to the node proxy what others open to ports of the pod that have a listener. The guard resets the rest,
// as the kernel does for a port without a listener. Whether there is a listener is looked up for each first packet, for
// its own address and family, so it needs no list of ports. A listener that opens between the two chains gets the
// connection after that one: no connection meets it that the node proxy has not seen.
//
// Packets with the mark of Exempt pass both chains: the kernel gives them to the application's own socket.
//
// The guard also resets what comes in and was not led to the node proxy, because the kernel follows a connection already:
// by a raw packet that is no SYN, and that the application's socket drops without an answer, others could have the kernel
// follow a connection that is not there, and open one from the same port then. Whose address was forged in such a packet
// is refused from that port, and from no other. A SYN that is dropped would not get in by its repeats either, as what is
// followed stays for five minutes (nf_conntrack_tcp_timeout_unacknowledged).
func (b *batch) inbound(in, guard *nftables.Chain) {
	b.rule(in, notOurs(), protocol(unix.IPPROTO_TCP), opening(), fromOutside(), toThePod(), notToPort(hbonePort), hasSocket(), redirect(InboundPort))
	b.rule(in, notOurs(), protocol(unix.IPPROTO_TCP), opening(), fromOutside(), toThePod(), notToPort(hbonePort), redirect(nowherePort))
	b.rule(guard, notOurs(), protocol(unix.IPPROTO_TCP), opening(), fromOutside(), notToPort(hbonePort), notToPort(InboundPort), reset())
}

// hasSocket matches a packet for which the network namespace has a socket: a connection of these two ends or, of its
// destination, a listener. Without one the kernel stops the rule at the first of the two expressions.
func hasSocket() []expr.Any {
	return []expr.Any{
		&expr.Socket{Key: expr.SocketKeyTransparent, Register: 1},
		&expr.Cmp{Op: expr.CmpOpLte, Register: 1, Data: []byte{1}},
	}
}

// fromOutside matches what comes into the pod.
func fromOutside() []expr.Any { return notLoopback(expr.MetaKeyIIFNAME) }

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
