package decider

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
)

// fullKernel has no sets: it notes what is revoked. It judges too, and gives each destination a lifetime of its own.
type fullKernel struct {
	lasts   func() time.Duration
	revoked []netip.AddrPort
}

func (k *fullKernel) Decide(capture.Decision) error  { return nil }
func (k *fullKernel) Send(capture.FirstPacket) error { return nil }
func (k *fullKernel) Decided(capture.Verdict)        {}
func (k *fullKernel) Revoke(x capture.Decision) error {
	k.revoked = append(k.revoked, x.To)
	return nil
}
func (k *fullKernel) Ask(context.Context, netip.AddrPort) bool { return true }
func (k *fullKernel) Judge(netip.AddrPort) (capture.Verdict, time.Duration, bool) {
	return capture.Direct, k.lasts(), false
}

func destination(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{1, byte(n >> 16), byte(n >> 8), byte(n)}), 443)
}

// Of a full set the decision that expires first goes, whatever is decided again or revoked in between.
func TestFullSetRevokesSoonest(t *testing.T) {
	const most = 20
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	now := time.Unix(0, 0)
	k := &fullKernel{lasts: func() time.Duration { return time.Duration(1+rng.IntN(1e6)) * time.Millisecond }}
	d := New(k, k)
	d.most, d.now = most, func() time.Time { return now }
	for n := range 5000 {
		if n%100 == 99 {
			d.Review(func(netip.Addr) bool { return false })
		}
		now = now.Add(time.Duration(rng.IntN(4000)) * time.Millisecond)
		to := destination(rng.IntN(60))
		full, soonest := len(d.all) == most && d.all[key{to, capture.Direct}] == nil, (*decision)(nil)
		for _, x := range d.all {
			if soonest == nil || x.until.Before(soonest.until) {
				soonest = x
			}
		}
		k.revoked = nil
		d.Packet(t.Context(), capture.FirstPacket{To: to, Sequence: uint32(n)})
		switch expired := full && !now.Before(soonest.until); {
		case len(d.all) > most:
			t.Fatalf("packet %d: %d decisions, want %d at most", n, len(d.all), most)
		case full && !expired && (len(k.revoked) != 1 || k.revoked[0] != soonest.to):
			t.Fatalf("packet %d: %v were revoked, want %v, which expires first", n, k.revoked, soonest.to)
		case (!full || expired) && len(k.revoked) != 0:
			t.Fatalf("packet %d: %v were revoked, and there was room", n, k.revoked)
		}
	}
}

// A new destination costs the same whether the set is full or not: no list of all decisions is made.
func TestFullSetCostsNoList(t *testing.T) {
	k := &fullKernel{lasts: func() time.Duration { return 5 * time.Minute }}
	d := New(k, k)
	n := 0
	open := func(count int) (bytes uint64) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range count {
			n++
			d.Packet(t.Context(), capture.FirstPacket{To: destination(n), Sequence: uint32(n)})
		}
		runtime.ReadMemStats(&after)
		return (after.TotalAlloc - before.TotalAlloc) / uint64(count)
	}
	room := open(d.most)
	k.revoked = make([]netip.AddrPort, 0, d.most)
	full := open(1000)
	if len(k.revoked) != 1000 {
		t.Errorf("%d decisions were revoked for 1000 new ones", len(k.revoked))
	}
	if full > 4*room { // 421 and 160 bytes
		t.Errorf("a new destination takes %d bytes if the set is full, and %d if not", full, room)
	}
}
