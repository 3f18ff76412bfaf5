package nodeproxy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/answer"
)

// pathWorld is what paths check, and a simple model of it.
type pathWorld struct {
	mu      sync.Mutex
	dropped map[string]bool // large packets, now
	gone    map[string]bool // no connection is possible
	started map[string][]time.Time
}

func (w *pathWorld) check(ctx context.Context, key string) (*answer.Path, error) {
	w.mu.Lock()
	w.started[key] = append(w.started[key], time.Now())
	dropped, gone := w.dropped[key], w.gone[key]
	w.mu.Unlock()
	if gone {
		return nil, errors.New("connection refused")
	}
	if !dropped {
		return &answer.Path{}, nil
	}
	select {
	case <-time.After(7 * time.Second):
		return &answer.Path{MaxSegment: 1260, There: answer.Way{PacketBytes: 1300, Dropped: true}}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func withPaths(t *testing.T, f func(w *pathWorld, p *paths)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := &pathWorld{dropped: map[string]bool{}, gone: map[string]bool{}, started: map[string][]time.Time{}}
		p := newPaths(ctx, w.check)
		f(w, p)
		cancel()
		p.checks.Wait()
	})
}

func (w *pathWorld) set(m map[string]bool, key string, v bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	m[key] = v
}

func TestPathFaultIsKeptUntilChecked(t *testing.T) {
	withPaths(t, func(w *pathWorld, p *paths) {
		const key = "west/gw-1"
		w.set(w.dropped, key, true)
		p.suspect(key)
		time.Sleep(8 * time.Second)
		const want = "TCP connects, packets over 1300 bytes to it are dropped: set lines.maxSegment: 1260 on gateways and node proxies, or fix the tunnel's MTU"
		if got := p.fault(key); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if got := strings.Join(p.problems(), "\n"); got != "path to gateway gw-1 of network west: "+want {
			t.Errorf("problems: %q", got)
		}
		w.set(w.gone, key, true) // shows nothing
		time.Sleep(10 * time.Minute)
		if p.fault(key) != want {
			t.Error("a check without a connection has ended the finding")
		}
		w.set(w.gone, key, false)
		w.set(w.dropped, key, false)
		time.Sleep(pathSchedule.Limit + 20*time.Second)
		if got := p.fault(key); got != "" || len(p.problems()) > 0 || p.checks.Active() > 0 {
			t.Errorf("%q, %d series: large packets pass again", got, p.checks.Active())
		}
	})
}

// Gateways fail, come back, and leave discovery, at random. Of no gateway two checks start within pathPause, a fault is
// one that some check found, and what discovery does not list has none.
func TestPathsFollowModel(t *testing.T) {
	for seed := range uint64(100) {
		withPaths(t, func(w *pathWorld, p *paths) {
			rng := rand.New(rand.NewPCG(seed, 1))
			ever := map[string]bool{}
			for range 300 {
				key := fmt.Sprintf("west/gw-%d", rng.IntN(4))
				switch rng.IntN(7) {
				case 0, 1, 2:
					p.suspect(key)
				case 3:
					v := rng.IntN(2) == 0
					w.set(w.dropped, key, v)
					ever[key] = ever[key] || v
				case 4:
					w.set(w.gone, key, rng.IntN(3) == 0)
				case 5:
					if rng.IntN(4) > 0 {
						break
					}
					p.retain(func(k string) bool { return k != key })
					synctest.Wait() // a check that was about to start has
					w.mu.Lock()
					delete(w.started, key)
					w.mu.Unlock()
					if p.fault(key) != "" {
						t.Fatalf("seed %d: %s is not listed and has a fault", seed, key)
					}
				default:
					time.Sleep(time.Duration(rng.Int64N(int64(time.Minute))))
				}
				for _, l := range p.problems() {
					if k := "west/" + strings.Fields(l)[3]; !ever[k] {
						t.Fatalf("seed %d: %q, and no packet was ever dropped", seed, l)
					}
				}
			}
			w.mu.Lock()
			clear(w.dropped)
			clear(w.gone)
			for key, at := range w.started {
				for i := range at[1:] {
					if d := at[i+1].Sub(at[i]); d < pathPause/2 {
						t.Errorf("seed %d: %s is checked again after %v", seed, key, d)
					}
				}
			}
			w.mu.Unlock()
			time.Sleep(2*pathSchedule.Limit + time.Minute)
			synctest.Wait()
			if list := p.problems(); len(list) > 0 || p.checks.Active() > 0 {
				t.Errorf("seed %d: %q, %d series, and all paths are well", seed, list, p.checks.Active())
			}
		})
		if t.Failed() {
			return
		}
	}
}

// One session that falls silent is no reason for a check, and many at once are as one.
func TestPathsCheckAfterSecondSilence(t *testing.T) {
	withPaths(t, func(w *pathWorld, p *paths) {
		const key = "west/gw-1"
		checks := func() int {
			synctest.Wait()
			w.mu.Lock()
			defer w.mu.Unlock()
			return len(w.started[key])
		}
		for range 3 {
			p.silent(key)
			time.Sleep(sameSilence / 10)
		}
		p.silent("west/gw-2")
		time.Sleep(silentAgain)
		if p.silent(key); checks() != 0 {
			t.Errorf("%d checks after silences at the same time, and one that is long ago", checks())
		}
		time.Sleep(10 * time.Second)
		if p.silent(key); checks() != 1 {
			t.Errorf("%d checks after a second silence, want 1", checks())
		}
	})
}
