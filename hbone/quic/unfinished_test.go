package quic

import (
	"context"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	quicgo "github.com/quic-go/quic-go"
)

// Unfinished handshakes never exceed their bounds, whatever comes and goes: all together, those of one
// address that was verified, and those that were admitted unverified before Retry is required. A
// refused one leaves nothing behind.
func TestHandshakeBoundsHoldUnderRandomSchedule(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		refusals := 0
		l := newListener(nil, ListenConfig{MaxHandshakes: 8 + rng.IntN(60), Refused: func(_ net.Addr, err error) {
			if err == ErrHandshakes {
				refusals++
			}
		}})
		type started struct {
			address  byte
			verified bool
			h        *handshake
		}
		var open []started
		count := func(keep func(started) bool) (n int) {
			for _, s := range open {
				if keep(s) {
					n++
				}
			}
			return n
		}
		for range 2000 {
			if len(open) > 0 && rng.IntN(5) < 2 {
				i := rng.IntN(len(open))
				for range 1 + rng.IntN(2) { // twice counts once
					open[i].h.finish(nil)
				}
				open = append(open[:i], open[i+1:]...)
			} else {
				s := started{address: byte(rng.IntN(4)), verified: l.crowded() || rng.IntN(4) == 0}
				mine := count(func(o started) bool { return o.verified && o.address == s.address })
				want := len(open) < l.cfg.MaxHandshakes && (!s.verified || mine < l.share())
				before := refusals
				ctx, err := l.starts(context.Background(), &quicgo.ClientInfo{RemoteAddr: &net.UDPAddr{IP: net.IPv4(192, 0, 2, s.address), Port: 1 + rng.IntN(60000)}, AddrVerified: s.verified})
				if (err == nil) != want || (refusals > before) == want {
					t.Fatalf("seed %d: %v with %d of %d open, %d of its address; want admitted: %t", seed, err, len(open), l.cfg.MaxHandshakes, mine, want)
				}
				if err == nil {
					s.h = ctx.Value(handshakeKey{}).(*handshake)
					open = append(open, s)
				}
			}
			if l.Handshakes() != len(open) || len(open) > l.cfg.MaxHandshakes || count(func(o started) bool { return !o.verified }) > l.share() {
				t.Fatalf("seed %d: %d unfinished, %d counted, %d at most", seed, len(open), l.Handshakes(), l.cfg.MaxHandshakes)
			}
		}
		for _, s := range open {
			s.h.finish(nil)
		}
		if l.Handshakes() != 0 || len(l.by) != 0 {
			t.Errorf("seed %d: %d unfinished, %d addresses left", seed, l.Handshakes(), len(l.by))
		}
	}
}

// A handshake that its client does not finish ends when it has taken as long as it may.
func TestHandshakeIsBounded(t *testing.T) {
	const limit = time.Second
	r := newRig(t, rigConfig{listen: ListenConfig{Handshake: limit}})
	tr := &quicgo.Transport{Conn: deaf{udp(t)}}
	defer tr.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 3*limit)
	defer cancel()
	go tr.Dial(ctx, r.listener.Addr(), r.clientTLS(), nil)
	eventually(t, "a handshake has started", func() bool { return r.listener.Handshakes() == 1 })
	started := time.Now()
	eventually(t, "it has ended", func() bool { return r.listener.Handshakes() == 0 })
	if d := time.Since(started); d > 2*limit {
		t.Errorf("it ended after %v, want %v at most", d, limit)
	}
}
