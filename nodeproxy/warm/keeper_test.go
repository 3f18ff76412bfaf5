package warm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/warmset"
)

var who = spiffeid.RequireFromString("spiffe://x/ns/shop/sa/a")

// far is a network with pods, and the twin that a Keeper's calls are held to.
type far struct {
	t *testing.T
	k *Keeper

	mu       sync.Mutex
	rng      *rand.Rand
	pods     int
	out      []mesh.EndpointID
	fails    bool
	takes    time.Duration
	opened   map[Session]warmset.Answer // and not retired
	requests []warmset.Request
	opening  int // now
	most     int // at once
	ended    map[Session]bool
}

func newFar(t *testing.T, pods int, c Config) *far {
	f := &far{t: t, rng: rand.New(rand.NewPCG(1, 2)), pods: pods, takes: 100 * time.Millisecond, opened: map[Session]warmset.Answer{}, ended: map[Session]bool{}}
	c.Open, c.Retire, c.Share = f.open, f.retire, f.share
	c.Random, c.Seed = f.random, func() uint64 { return uint64(f.random() * (1 << 62)) }
	f.k = New(c)
	return f
}

func (f *far) random() float64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rng.Float64()
}

func (f *far) share(Key) warmset.Share {
	f.mu.Lock()
	defer f.mu.Unlock()
	return warmset.Share{Healthy: f.pods - len(f.out), Out: slices.Clone(f.out), Expect: []spiffeid.ID{who}, Gateways: []string{"gw-1", "gw-2"}}
}

func (f *far) open(ctx context.Context, s Session, r warmset.Request) (warmset.Answer, bool, error) {
	f.mu.Lock()
	f.requests = append(f.requests, r)
	f.opening++
	f.most = max(f.most, f.opening)
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.opening--
		f.mu.Unlock()
	}()
	select {
	case <-time.After(f.takes):
	case <-ctx.Done():
		return warmset.Answer{}, false, ctx.Err()
	}
	return f.answer(s, r)
}

func (f *far) answer(s Session, r warmset.Request) (a warmset.Answer, gone bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fails {
		return a, false, errors.New("nobody answers")
	}
	a = warmset.Answer{Endpoint: r.Pin, Weight: 1, Identity: who, Gateway: r.Gateway}
	for a.Endpoint == 0 {
		id := mesh.EndpointID(f.rng.IntN(f.pods) + 1)
		if !slices.Contains(f.out, id) && (!slices.Contains(r.Avoid, id) || len(r.Avoid) >= f.pods-len(f.out)) {
			a.Endpoint = id
		}
	}
	if _, twice := f.opened[s]; twice || f.ended[s] {
		f.t.Errorf("session %d was opened twice", s.ID)
	}
	f.opened[s] = a
	return a, false, nil
}

func (f *far) retire(s Session) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, has := f.opened[s]; !has {
		f.t.Errorf("session %d was retired, which is not open", s.ID)
	}
	delete(f.opened, s)
	f.ended[s] = true
}

// connect is one connection, as a node proxy makes it.
func (f *far) connect(key Key, lasts time.Duration) {
	c, ok := f.k.Choose(key, "", nil)
	s := Session{key, c.ID}
	if !ok {
		if c.ID == 0 || c.Joined {
			time.Sleep(f.takes)
			return
		}
		a, gone, err := f.answer(s, warmset.Request{Gateway: "gw-1"})
		time.Sleep(f.takes) // what was chosen may be out by then
		if err != nil {
			f.k.Failed(s, gone)
			return
		}
		if !f.k.Opened(s, a) {
			return
		}
		f.k.Use(s)
	}
	time.Sleep(lasts)
	f.k.Done(s)
}

func (f *far) is() (opened, requests int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.opened), len(f.requests)
}

// atOnce is how many sessions are being opened, and the most that ever were.
func (f *far) atOnce() (now, most int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.opening, f.most
}

// A connection whose own session is not kept goes on, and that session is retired.
func TestWhatIsNotKeptIsRetired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t, 10, Config{})
		defer f.k.Close()
		c, ok := f.k.Choose(keyOf(1), "", nil)
		if ok || c.ID == 0 {
			t.Fatalf("chosen %+v, %t; want a request", c, ok)
		}
		s := Session{keyOf(1), c.ID}
		a, _, _ := f.answer(s, warmset.Request{Gateway: "gw-1"})
		f.mu.Lock()
		f.out = []mesh.EndpointID{a.Endpoint}
		f.mu.Unlock()
		f.k.Revise(func(Key) bool { return true })
		if f.k.Opened(s, a) || !f.ended[s] {
			t.Error("a session with an endpoint that has gone out meanwhile was kept, or not retired")
		}
	})
}

func keyOf(i int) Key {
	return Key{Source: who, Network: "west", Service: fmt.Sprint("svc-", i), Port: 80}
}

func TestConnectionsFindSessionsAndEverySessionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t, 10, Config{})
		var conns sync.WaitGroup
		for range 1000 {
			conns.Go(func() { f.connect(keyOf(1), time.Second) })
			time.Sleep(50 * time.Millisecond)
		}
		conns.Wait()
		if n, _ := f.is(); n != 10 {
			t.Errorf("%d sessions with 10 pods, want one with each", n)
		}
		f.k.Close()
		if n, _ := f.is(); n != 0 || f.k.Len() != 0 {
			t.Errorf("%d sessions and %d sets after Close, want none", n, f.k.Len())
		}
		if _, ok := f.k.Choose(keyOf(1), "", nil); ok || f.k.Len() != 0 {
			t.Error("after Close a set began")
		}
	})
}

// What changes by the passing of time alone is taken in without anybody's word.
func TestWhatIsKnownIsAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t, 10, Config{})
		defer f.k.Close()
		var conns sync.WaitGroup
		defer conns.Wait()
		connect := func(n int) {
			for range n {
				conns.Go(func() { f.connect(keyOf(1), time.Second) })
				time.Sleep(50 * time.Millisecond)
			}
		}
		connect(200)
		f.mu.Lock()
		f.out = []mesh.EndpointID{3}
		f.mu.Unlock()
		connect(1300) // more than a minute
		f.mu.Lock()
		defer f.mu.Unlock()
		for s, a := range f.opened {
			if a.Endpoint == 3 {
				t.Errorf("session %d is with an endpoint that has been out for a minute", s.ID)
			}
		}
	})
}

// A set that nobody uses ends with its sessions, and one with a connection does not.
func TestUnusedSetsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t, 10, Config{Idle: 5 * time.Minute})
		defer f.k.Close()
		f.connect(keyOf(1), time.Second)
		go f.connect(keyOf(2), 20*time.Minute)
		time.Sleep(4 * time.Minute)
		if f.k.Len() != 2 {
			t.Fatalf("%d sets, want 2", f.k.Len())
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if n, _ := f.is(); f.k.Len() != 1 || n == 0 || n > 2 {
			t.Errorf("%d sets with %d sessions after six minutes, want that of the connection alone", f.k.Len(), n)
		}
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		if n, _ := f.is(); n != 0 || f.k.Len() != 0 {
			t.Errorf("%d sets with %d sessions, want none", f.k.Len(), n)
		}
		f.connect(keyOf(1), time.Second)
		if f.k.Len() != 1 {
			t.Error("a set that has ended did not begin again")
		}
	})
}

// Who is out leaves with Revise, and is asked for by name within a second of being
// back, without a connection meanwhile.
func TestReviseEndsAndBringsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t, 3, Config{})
		defer f.k.Close()
		for range 100 {
			f.connect(keyOf(1), 0)
			time.Sleep(50 * time.Millisecond)
		}
		has := func(id mesh.EndpointID) bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			for _, a := range f.opened {
				if a.Endpoint == id {
					return true
				}
			}
			return false
		}
		say := func(out ...mesh.EndpointID) {
			f.mu.Lock()
			f.out = out
			f.mu.Unlock()
			f.k.Revise(func(k Key) bool { return k == keyOf(1) })
		}
		if !has(2) {
			t.Fatal("one of three has no session")
		}
		say(2)
		if has(2) {
			t.Error("a session with an endpoint that is out was not retired")
		}
		time.Sleep(3 * time.Second)
		say()
		time.Sleep(time.Second)
		synctest.Wait()
		if !has(2) {
			t.Error("an endpoint has been back for a second, and has no session")
		}
	})
}

// However many sets ask, a few sessions are opened at once; and if nobody answers,
// the tries become few.
func TestOpeningIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t, 1000, Config{Opening: 8})
		defer f.k.Close()
		for range 20 {
			for i := range 50 {
				go f.connect(keyOf(i), 0)
			}
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if _, most := f.atOnce(); most > 8 {
			t.Errorf("%d sessions were opened at once, want at most 8", most)
		}
		f = newFar(t, 10, Config{})
		defer f.k.Close()
		f.mu.Lock()
		f.fails = true
		f.mu.Unlock()
		f.connect(keyOf(1), 0)
		time.Sleep(time.Minute)
		synctest.Wait()
		if _, n := f.is(); n < 10 || n > 60 {
			t.Errorf("%d requests of two slots in a minute in which nobody answered, want some 35", n)
		}
	})
}

func TestCloseEndsWhatIsBeingOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t, 10, Config{})
		f.takes = time.Hour
		f.k.Choose(keyOf(1), "", nil)
		f.k.Choose(keyOf(1), "", nil)
		time.Sleep(time.Millisecond)
		if now, _ := f.atOnce(); now == 0 {
			t.Fatal("nothing is being opened")
		}
		began := time.Now()
		f.k.Close()
		if now, _ := f.atOnce(); time.Since(began) > 0 || now != 0 {
			t.Errorf("Close took %v, and %d sessions are being opened", time.Since(began), now)
		}
	})
}

// Random users of a few sets, with pods that come and go and gateways that fail: what
// far checks holds, and in the end nothing is left.
func TestEverySessionHasAnOwner(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			f := newFar(t, 20, Config{Idle: 30 * time.Second})
			f.rng = rand.New(rand.NewPCG(seed, 3))
			rng := rand.New(rand.NewPCG(seed, 4))
			var users sync.WaitGroup
			for range 20 {
				pace, r := time.Duration(rng.IntN(3000)+1)*time.Millisecond, rand.New(rand.NewPCG(rng.Uint64(), 5))
				users.Go(func() {
					for range 60 {
						f.connect(keyOf(r.IntN(3)), time.Duration(r.IntN(5000))*time.Millisecond)
						time.Sleep(time.Duration(r.Int64N(int64(pace))))
					}
				})
			}
			for range 100 {
				time.Sleep(time.Duration(rng.IntN(2000)) * time.Millisecond)
				f.mu.Lock()
				f.fails = rng.IntN(5) == 0
				f.out = nil
				for id := range f.pods {
					if rng.IntN(4) == 0 {
						f.out = append(f.out, mesh.EndpointID(id+1))
					}
				}
				f.mu.Unlock()
				f.k.Revise(func(Key) bool { return rng.IntN(4) > 0 })
			}
			users.Wait()
			f.k.Close()
			if n, _ := f.is(); n != 0 {
				t.Errorf("seed %d: %d sessions are left", seed, n)
			}
		})
	}
}

// BenchmarkChoose is a connection on a set of 64 sessions, from its choice to its
// end.
func BenchmarkChoose(b *testing.B) {
	f := newFar(new(testing.T), 1000, Config{})
	f.takes = 0
	defer f.k.Close()
	for range 10_000 {
		f.connect(keyOf(1), 0)
	}
	key := keyOf(1)
	b.ReportAllocs()
	for b.Loop() {
		c, _ := f.k.Choose(key, "", nil)
		f.k.Done(Session{key, c.ID})
	}
}

// A network that answers nothing holds up no session with another one.
func TestANetworkThatHangsHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t, 10, Config{Timeout: time.Hour})
		open := f.k.cfg.Open
		f.k.cfg.Open = func(ctx context.Context, s Session, r warmset.Request) (warmset.Answer, bool, error) {
			if s.Network == "north" {
				<-ctx.Done()
				return warmset.Answer{}, false, ctx.Err()
			}
			return open(ctx, s, r)
		}
		defer f.k.Close()
		for i := range 12 {
			k := keyOf(100 + i)
			k.Network = "north"
			for range 5 {
				if c, ok := f.k.Choose(k, "", nil); !ok && c.ID != 0 && !c.Joined {
					f.k.Failed(Session{k, c.ID}, false)
				}
				time.Sleep(20 * time.Millisecond)
			}
		}
		time.Sleep(20 * time.Second)
		for range 200 {
			go f.connect(keyOf(1), 10*time.Millisecond)
			time.Sleep(50 * time.Millisecond)
		}
		synctest.Wait()
		if n, _ := f.is(); n < 9 {
			t.Errorf("%d of 10 pods have sessions after 10 s, each of which is opened in 100 ms, while another network hangs", n)
		}
	})
}
