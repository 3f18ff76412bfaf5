package boundtoken

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// invented returns a token that says it is of a node proxy, of a key of which nobody knows.
func (w *world) invented(s signer, n int) string {
	s.id = fmt.Sprintf("invented-%d", n)
	return s.sign(w.t, token{nodeproxy, "np-1", "uid-1", "node-1", []string{ours}, time.Now().Add(time.Hour), issuer}.body())
}

func address(n int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, byte(n >> 8), byte(n)}) }

// flood shows n tokens of invented keys at once, by turns from so many addresses.
func (w *world) flood(s signer, n, addresses int) (wait func() map[Reason]int) {
	var all sync.WaitGroup
	var mu sync.Mutex
	reasons := map[Reason]int{}
	for i := range n {
		text := w.invented(s, i)
		all.Go(func() {
			_, err := w.Review(w.t.Context(), address(i%addresses), text)
			if err == nil {
				w.t.Error("a token of an invented key is accepted")
			}
			mu.Lock()
			defer mu.Unlock()
			reasons[ReasonOf(err)]++
		})
	}
	return func() map[Reason]int { all.Wait(); return reasons }
}

// Where the keys can be fetched, tokens of keys that are none of the cluster's cost the API
// server one question for its keys in keysAgain, whoever shows how many, and no review.
func TestInventedKeysCostTheAPIServerNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t)
		go w.Run(t.Context())
		synctest.Wait()
		stranger := newSigner(t, "x")
		const rounds = 20
		for range rounds {
			if got := w.flood(stranger, 50, 1000)(); got[Unsigned] != 50 {
				t.Fatalf("refused for %v; want all for %q", got, Unsigned)
			}
			time.Sleep(time.Second)
		}
		if w.server.count(&w.server.reviews) != 0 {
			t.Errorf("%d reviews of tokens of invented keys; want none", w.server.count(&w.server.reviews))
		}
		if most := 1 + int(rounds*time.Second/keysAgain); w.server.count(&w.server.asked) > most {
			t.Errorf("asked %d times for keys in %d s; want at most %d", w.server.count(&w.server.asked), rounds, most)
		}
		got := w.flood(stranger, 1000, 1)()
		if got[Unsigned] != strangersBurst || got[Limited] != 1000-strangersBurst {
			t.Errorf("1000 of one address: %v; want %d looked at", got, strangersBurst)
		}
		if got := w.flood(stranger, 1, 1)(); got[Limited] != 1 {
			t.Errorf("one more: %v", got)
		}
		time.Sleep(strangersRefill)
		if got := w.flood(stranger, 1, 1)(); got[Unsigned] != 1 {
			t.Errorf("one more, later: %v", got)
		}
		// The cluster really has a new key: a token of it counts once it can be known.
		second := newSigner(t, "k2")
		w.server.set(func() { w.server.signers = append(w.server.signers, second) })
		time.Sleep(keysAgain)
		w.run(nodeproxy, "np-1", "uid-1", "node-1")
		text := second.sign(t, token{nodeproxy, "np-1", "uid-1", "node-1", []string{ours}, time.Now().Add(time.Hour), issuer}.body())
		w.want("by a new key of the cluster", text, "")
	})
}

// Where no keys can be fetched, the API server has to be asked about each token: not more of
// them than strangersReviewed at once, one of each address, and those that are no strangers
// do not wait for them.
func TestAFloodOfTokensDelaysNoNodeProxy(t *testing.T) {
	const takes = 400 * time.Millisecond
	for _, keys := range []bool{true, false} {
		t.Run(fmt.Sprintf("keys: %t", keys), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newWorld(t)
				w.server.takes = takes
				if !keys {
					w.server.keyless = errors.New("forbidden")
				}
				go w.Run(t.Context())
				synctest.Wait()
				text := w.run(nodeproxy, "np-1", "uid-1", "node-1")
				w.want("before", text, "")
				w.run(nodeproxy, "np-2", "uid-2", "node-2")
				time.Sleep(reviewedFor)
				reviews := w.server.count(&w.server.reviews)
				wait := w.flood(newSigner(t, "x"), 1000, 100)
				synctest.Wait()
				if w.server.count(&w.server.now) > strangersReviewed {
					t.Errorf("%d strangers' tokens are reviewed at once; want at most %d", w.server.count(&w.server.now), strangersReviewed)
				}
				begin := time.Now()
				w.want("its own", text, "")
				if d := time.Since(begin); d > turnTime+reviewTime || w.server.count(&w.server.reviews) == reviews {
					t.Errorf("it took %v; want at most %v, and a review", d, turnTime+reviewTime)
				}
				if keys { // one that nobody has seen before, too
					begin = time.Now()
					w.want("a new one", w.token(nodeproxy, "np-2", "uid-2", "node-2"), "")
					if d := time.Since(begin); d > turnTime+reviewTime {
						t.Errorf("a new one took %v; want at most %v", d, turnTime+reviewTime)
					}
				}
				wait()
				if !keys { // a new one after the flood's turn
					w.want("a new one", w.token(nodeproxy, "np-2", "uid-2", "node-2"), "")
				}
				if w.server.count(&w.server.most) > strangersReviewed+1 {
					t.Errorf("%d reviews at once", w.server.count(&w.server.most))
				}
			})
		})
	}
}

// Without keys one address, whatever it shows, takes one place of all: a node proxy that
// nobody has seen before is reviewed beside it.
func TestOneAddressDelaysNoNewNodeProxyWithoutKeys(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t)
		w.server.takes, w.server.keyless = 400*time.Millisecond, errors.New("forbidden")
		go w.Run(t.Context())
		synctest.Wait()
		text := w.run(nodeproxy, "np-1", "uid-1", "node-1")
		wait := w.flood(newSigner(t, "x"), 200, 1)
		synctest.Wait()
		begin := time.Now()
		w.want("its own", text, "")
		if d := time.Since(begin); d > w.server.takes {
			t.Errorf("it took %v; want %v", d, w.server.takes)
		}
		wait()
	})
}

func TestAddressesThatAreCountedAreBounded(t *testing.T) {
	s, now := newStrangers(), time.Unix(1000, 0)
	for i := range 2 * maxAddresses {
		s.allow(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), now)
	}
	if n := len(s.buckets); n > maxAddresses+1 {
		t.Errorf("%d addresses are counted; want at most %d", n, maxAddresses+1)
	}
	now = now.Add(strangersRefill)
	if s.allow(netip.MustParseAddr("198.51.100.1"), now); len(s.buckets) != 1 {
		t.Errorf("%d addresses are counted when all have been quiet; want one", len(s.buckets))
	}
	a, b := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::ffff:1")
	for s.allow(a, now) {
	}
	if s.allow(b, now) {
		t.Error("each address of one /64 has a bound of its own")
	}
	if !s.allow(netip.MustParseAddr("2001:db8:0:1::1"), now) {
		t.Error("another /64 shares its bound")
	}
}
