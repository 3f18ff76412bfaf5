package capture

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// FirstPacket is the first packet of a connection that a pod opens, as its kernel would have sent it.
type FirstPacket struct {
	From, To netip.AddrPort
	Sequence uint32
	Mark     uint32 // of the application's socket
	Out      uint32 // index of the interface that it was to leave by; 0: unknown
	ip       []byte // the whole packet, with its checksums complete; nil if it cannot be sent again
}

const (
	protocolTCP = 6
	minTCP      = 20
)

var errNotFirst = errors.New("not the first packet of a TCP connection")

// parsePacket reads an IP packet, which it owns from then on. Any process of a pod with CAP_NET_RAW chooses its bytes.
func parsePacket(b []byte) (p FirstPacket, err error) {
	var tcp []byte
	var from, to netip.Addr
	whole := false
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		header := int(b[0]&15) * 4
		if header < 20 || len(b) < header || b[9] != protocolTCP || binary.BigEndian.Uint16(b[6:])&0x1fff != 0 {
			return p, errNotFirst
		}
		from, to, tcp = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20])), b[header:]
		whole = int(binary.BigEndian.Uint16(b[2:])) == len(b) && binary.BigEndian.Uint16(b[6:])&0x2000 == 0
	case len(b) >= 40 && b[0]>>4 == 6:
		from, to = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
		var ok bool
		if tcp, ok = skipExtensions(b[6], b[40:]); !ok {
			return p, errNotFirst
		}
		whole = b[6] == protocolTCP && int(binary.BigEndian.Uint16(b[4:])) == len(tcp)
	default:
		return p, errNotFirst
	}
	const flags, fin, syn, rst, ack = 13, 1, 2, 4, 16
	if len(tcp) < minTCP || tcp[flags]&(fin|syn|rst|ack) != syn {
		return p, errNotFirst
	}
	p.From = netip.AddrPortFrom(from, binary.BigEndian.Uint16(tcp))
	p.To = netip.AddrPortFrom(to, binary.BigEndian.Uint16(tcp[2:]))
	p.Sequence = binary.BigEndian.Uint32(tcp[4:])
	if whole && len(tcp) <= 0xffff {
		completeChecksum(tcp, from, to)
		p.ip = b
	}
	return p, nil
}

// skipExtensions returns what follows the extension headers of IPv6, if that is the beginning of TCP.
func skipExtensions(next byte, b []byte) (tcp []byte, ok bool) {
	const hopByHop, routing, fragment, destination = 0, 43, 44, 60
	for range 8 {
		size := 8
		switch next {
		case protocolTCP:
			return b, true
		case fragment:
			if len(b) < 8 || binary.BigEndian.Uint16(b[2:])&^7 != 0 {
				return nil, false
			}
		case hopByHop, routing, destination:
			if len(b) < 8 {
				return nil, false
			}
			size = 8 + int(b[1])*8
		default:
			return nil, false
		}
		if len(b) < size {
			return nil, false
		}
		next, b = b[0], b[size:]
	}
	return nil, false
}

// completeChecksum computes the checksum of a TCP segment. That of a packet which its network card was to complete is
// only that of its addresses so far.
func completeChecksum(tcp []byte, from, to netip.Addr) {
	tcp[16], tcp[17] = 0, 0
	sum := uint32(protocolTCP) + uint32(len(tcp))
	for _, part := range [][]byte{from.AsSlice(), to.AsSlice(), tcp} {
		for ; len(part) > 1; part = part[2:] {
			sum += uint32(binary.BigEndian.Uint16(part))
		}
		if len(part) == 1 {
			sum += uint32(part[0]) << 8
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(tcp[16:], ^uint16(sum))
}
