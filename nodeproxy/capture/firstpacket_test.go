package capture

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"
)

// sumOf is the checksum that a receiver computes over a TCP segment: 0 if the segment is whole.
func sumOf(from, to netip.Addr, tcp []byte) uint16 {
	pseudo := append(from.AsSlice(), to.AsSlice()...)
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(tcp)))
	pseudo = append(append(pseudo, 0, 0, 0, protocolTCP), tcp...)
	if len(pseudo)%2 == 1 {
		pseudo = append(pseudo, 0)
	}
	sum := uint64(0)
	for i := 0; i < len(pseudo); i += 2 {
		sum += uint64(binary.BigEndian.Uint16(pseudo[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// packetTo makes a SYN with random addresses, options and data, and a checksum of any value.
func packetTo(rng *rand.Rand, six bool) (ip []byte, from, to netip.AddrPort) {
	tcp := make([]byte, 20+4*rng.IntN(11)+rng.IntN(1400))
	for i := range tcp {
		tcp[i] = byte(rng.Uint32())
	}
	tcp[13] = 2 | byte(rng.IntN(4))<<6 // with ECN
	random := func(n int) netip.Addr {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		a, _ := netip.AddrFromSlice(b)
		return a
	}
	n := 4
	if six {
		n = 16
	}
	from, to = netip.AddrPortFrom(random(n), binary.BigEndian.Uint16(tcp)), netip.AddrPortFrom(random(n), binary.BigEndian.Uint16(tcp[2:]))
	if six {
		ip = make([]byte, 40)
		ip[0], ip[6] = 0x60, protocolTCP
		binary.BigEndian.PutUint16(ip[4:], uint16(len(tcp)))
		copy(ip[8:], from.Addr().AsSlice())
		copy(ip[24:], to.Addr().AsSlice())
	} else {
		ip = make([]byte, 20+4*rng.IntN(11))
		ip[0], ip[9] = 0x40|byte(len(ip)/4), protocolTCP
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(tcp)))
		copy(ip[12:], from.Addr().AsSlice())
		copy(ip[16:], to.Addr().AsSlice())
	}
	return append(ip, tcp...), from, to
}

func TestFirstPacketIsReadWhole(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	for i := range 2000 {
		b, from, to := packetTo(rng, i%2 == 1)
		p, err := parsePacket(b)
		if err != nil || p.From != from || p.To != to {
			t.Fatalf("seed %d, packet %d: %v to %v, %v; want %v to %v", seed, i, p.From, p.To, err, from, to)
		}
		header := 40
		if b[0]>>4 == 4 {
			header = int(b[0]&15) * 4
		}
		if got := sumOf(from.Addr(), to.Addr(), p.ip[header:]); got != 0 {
			t.Fatalf("seed %d, packet %d: its checksum is wrong by %#x", seed, i, got)
		}
		cut := b[:header+20+rng.IntN(len(b)-header-19)]
		if p, err := parsePacket(cut); err == nil && p.ip != nil && len(cut) != len(b) {
			t.Fatalf("seed %d, packet %d: a part of it can be sent again", seed, i)
		}
	}
}

func FuzzFirstPacket(f *testing.F) {
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 8 {
		b, _, _ := packetTo(rng, i%2 == 1)
		f.Add(b)
	}
	f.Add(append(append([]byte{0x60, 0, 0, 0, 0, 28, 0, 64}, make([]byte, 32)...), append([]byte{6, 0, 0, 0, 0, 0, 0, 0}, make([]byte, 20)...)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		size := len(b)
		p, err := parsePacket(b)
		if err != nil {
			return
		}
		if len(b) != size || !p.To.IsValid() || p.To.Addr().Is4() != (b[0]>>4 == 4) || p.From.Addr().Is4() != p.To.Addr().Is4() {
			t.Errorf("%x: %+v", b, p)
		}
		if p.ip != nil && len(p.ip) != size {
			t.Errorf("%x: %d of %d bytes are sent again", b, len(p.ip), size)
		}
	})
}
