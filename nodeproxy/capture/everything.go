//go:build linux

package capture

import (
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// InboundPort is where connections come that others open to the pod in plain text: on all its addresses.
const InboundPort = 15006

// hbonePort is where tunnels come; they are never led elsewhere.
const hbonePort = 15008

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

func notLoopback(key expr.MetaKey) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: key, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: interfaceName("lo")},
	}
}
