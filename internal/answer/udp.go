package answer

import (
	"cmp"
	"fmt"
	"net/netip"
)

// UDP is the result of a QUIC handshake with one address of a gateway, from a UDP socket of its own.
type UDP struct {
	Address     string     `json:"address,omitempty"`     // where it differs from that of TCP
	HandshakeMS float64    `json:"handshakeMs,omitempty"` // in milliseconds, one round trip and the work of both ends. 0: it failed
	Failure     UDPFailure `json:"failure,omitempty"`     // empty: QUIC connects
	Error       string     `json:"error,omitempty"`       // of Failure
	PacketBytes int        `json:"packetBytes"`           // of the IP packets of the handshake
}

// UDPFailure is how a QUIC handshake failed.
type UDPFailure string

const (
	UDPSilent  UDPFailure = "silent"    // no response in time
	UDPRefused UDPFailure = "refused"   // ICMP port unreachable
	UDPBlocked UDPFailure = "blocked"   // another ICMP error, or an error of the socket
	UDPNoQUIC  UDPFailure = "handshake" // packets pass both ways, QUIC does not connect
)

// String is u in one line.
func (u *UDP) String() string {
	if u.Failure != "" {
		return string(u.Failure) + ": " + u.Error
	}
	at := ""
	if u.Address != "" {
		at = " at " + u.Address
	}
	return fmt.Sprintf("UDP passes both ways%s, QUIC handshake in %.1f ms", at, u.HandshakeMS)
}

// UDPFaults returns the defects of the path for UDP, one for each address where QUIC does not connect.
func (t *Tried) UDPFaults() (list []Fault) {
	for _, u := range t.UDP {
		if u.Failure != "" {
			list = append(list, t.udpFault(u))
		}
	}
	return list
}

func (t *Tried) udpFault(u *UDP) Fault {
	at, _ := netip.ParseAddrPort(cmp.Or(u.Address, t.Address))
	to := cmp.Or(u.Address, "it")
	allow := fmt.Sprintf("allow UDP port %d in firewalls, Services and NetworkPolicies", at.Port())
	const orTCP = ", or set lines.transport: tcp on gateways and node proxies"
	switch passes := t.Path.packetBytes(); u.Failure {
	case UDPSilent, UDPBlocked:
		if passes > 0 && passes < u.PacketBytes { // as with lines.maxSegment
			return Fault{fmt.Sprintf("UDP to %s is blocked, or packets of %d bytes are dropped: %s. TCP was checked with packets of up to %d bytes", to, u.PacketBytes, u.Error, passes),
				allow + fmt.Sprintf(", and have packets of %d bytes pass", u.PacketBytes) + orTCP}
		}
		return Fault{"UDP to " + to + " is blocked or dropped: " + u.Error, allow + orTCP}
	case UDPRefused:
		return Fault{fmt.Sprintf("UDP to %s is refused: no process listens on UDP port %d, or a firewall rejects it", to, at.Port()),
			"set lines.transport: auto on the gateways there, and " + allow + orTCP}
	}
	return Fault{"UDP passes to " + to + ", QUIC does not connect: " + u.Error,
		fmt.Sprintf("lead UDP port %d to the same gateways as TCP port %[1]d in Services and load balancers", at.Port()) + orTCP}
}

// packetBytes is the size of packets that pass both ways. 0: unknown.
func (p *Path) packetBytes() int {
	if p == nil || p.Back.PacketBytes == 0 {
		return 0
	}
	return min(p.There.PacketBytes, p.Back.PacketBytes)
}
