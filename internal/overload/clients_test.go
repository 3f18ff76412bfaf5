package overload

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// offer is work that somebody asks a process for, so many times a second.
type offer struct {
	name string
	rate int
	ask  func() (Work, error)
}

// offered offers work to a process that serves 1000 pieces a second, of its own clients
// as of others, and returns how many of each offer were served a second.
func offered(t *testing.T, l *Limiter, d time.Duration, offers ...offer) map[string]int {
	var mu sync.Mutex
	got := map[string]int{}
	var all sync.WaitGroup
	all.Go(func() { // the control loop keeps its window
		for range int((d + onceWait + time.Second) / tick) {
			time.Sleep(tick)
			for _, g := range []*gate{&l.gate, &l.own} {
				g.mu.Lock()
				g.control.bounded, g.control.window = true, 20
				g.step(time.Now(), load{processors: 1, tried: true})
				g.mu.Unlock()
			}
		}
	})
	end := time.Now().Add(d)
	for i, o := range offers {
		rng := rand.New(rand.NewPCG(uint64(i), 1))
		all.Go(func() {
			for {
				time.Sleep(time.Duration(rng.ExpFloat64() / float64(o.rate) * float64(time.Second)))
				if time.Now().After(end) {
					return
				}
				all.Go(func() {
					w, err := o.ask()
					if err != nil {
						return
					}
					if time.Now().Before(end) {
						mu.Lock()
						got[o.name]++
						mu.Unlock()
					}
					time.Sleep(20 * time.Millisecond)
					w.Opened()
					w.Done()
				})
			}
		})
	}
	all.Wait()
	for name := range got {
		got[name] = int(float64(got[name])/d.Seconds() + 0.5)
	}
	return got
}

func (l *Limiter) stock(ctx context.Context, who string) func() (Work, error) {
	return func() (Work, error) { return l.AdmitOnce(ctx, who) }
}

func (l *Limiter) repeats(who string) func() (Work, error) {
	return func() (Work, error) { return l.TryAdmit(who) }
}

// One pod of a node opens more connections than its node proxy can: what comes in for
// other pods of that node, hardly anything, is served all the same.
func TestAFloodOfOneLocalPodLeavesRoomForWhatComesIn(t *testing.T) {
	for _, rate := range []int{900, 3000, 10000} {
		synctest.Test(t, func(t *testing.T) {
			l, _ := boundTo(0)
			got := offered(t, l, 10*time.Second,
				offer{"out", rate, func() (Work, error) { return l.Admit(t.Context(), time.Now(), "client") }},
				offer{"stock", 20, l.stock(t.Context(), "stock")},
				offer{"repeats", 20, l.repeats("repeats")})
			t.Logf("beside a pod that opens %d a second: %v", rate, got)
			if got["stock"] < 16 || got["repeats"] < 16 || got["out"] < min(rate, 1000)*8/10 {
				t.Errorf("beside a pod that opens %d a second: of 20 a second that come in of either kind %v are served", rate, got)
			}
		})
	}
}

// One client asks for many times what can be served, and never comes again, so that it
// waits: who asks for little is served all the same, whether it waits or comes again.
func TestAFloodOfOneStockClientLeavesRoomForOthers(t *testing.T) {
	for _, rate := range []int{1100, 3000, 10000} {
		synctest.Test(t, func(t *testing.T) {
			l, _ := boundTo(0)
			got := offered(t, l, 10*time.Second,
				offer{"flood", rate, l.stock(t.Context(), "flood")},
				offer{"stock", 20, l.stock(t.Context(), "stock")},
				offer{"repeats", 20, l.repeats("repeats")})
			t.Logf("beside a client that asks for %d a second: %v", rate, got)
			if got["stock"] < 16 || got["repeats"] < 16 || got["flood"] < 750 {
				t.Errorf("beside a client that asks for %d a second: of 20 a second of either kind %v are served", rate, got)
			}
		})
	}
}

// So many stock clients that each has one piece under way leave nobody room by that:
// who comes again, and seldom, gets what is kept.
func TestManyStockClientsLeaveRoomForWhoSeldomComesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := boundTo(0)
		offers := []offer{{"repeats", 20, l.repeats("repeats")}}
		for i := range 100 {
			offers = append(offers, offer{"stock", 30, l.stock(t.Context(), fmt.Sprint("stock ", i))})
		}
		got := offered(t, l, 10*time.Second, offers...)
		t.Log(got)
		if got["repeats"] < 14 || got["stock"] < 800 {
			t.Errorf("beside 100 stock clients with 3000 a second: of 20 a second that come again %v are served", got)
		}
	})
}

// A client that says isthmus-repeats and does not hold back, within what one identity may
// ask for a second (limits.identity.streamsPerSecond: 10 000), leaves others of those that
// come again their part: these ask for less the more they are refused.
func TestOneClientThatComesAgainLeavesOthersTheirPart(t *testing.T) {
	for _, c := range []struct{ clients, rate, polite int }{{0, 0, 300}, {1, 1000, 300}, {1, 3000, 300}, {1, 9000, 300}, {4, 9000, 100}} {
		synctest.Test(t, func(t *testing.T) {
			l, _ := boundTo(0)
			var throttle Throttle
			offers := []offer{{"polite", c.polite, func() (Work, error) { // as a node proxy does
				if !throttle.Allow("svc:80", "polite", time.Now(), rand.Float64()) {
					return Work{}, ErrOverloaded
				}
				w, err := l.TryAdmit("polite")
				throttle.Answered("svc:80", "polite", err == nil, time.Now())
				return w, err
			}}}
			for i := range c.clients {
				offers = append(offers, offer{"rude", c.rate, l.repeats(fmt.Sprint("rude ", i))})
			}
			got := offered(t, l, 10*time.Second, offers...)
			t.Logf("%d clients with %d a second each beside one with %d: %v", c.clients, c.rate, c.polite, got)
			if got["polite"] < c.polite*7/10 || c.clients > 0 && got["polite"]+got["rude"] < 800 {
				t.Errorf("a client that asks for %d of 1000 a second gets %d beside %d that ask for %d each and get %d; its part is all of it", c.polite, got["polite"], c.clients, c.rate, got["rude"])
			}
		})
	}
}

// A client by itself has the whole window, and is forgotten some time after it has asked.
func TestAClientByItselfHasAllTheRoom(t *testing.T) {
	l, _ := boundTo(0)
	l.control.window = 100
	fill := func() (n int) {
		for ; ; n++ {
			if _, err := l.TryAdmit("one"); err != nil {
				return n
			}
		}
	}
	turns := func(d time.Duration) {
		for range int(d / tick) {
			l.mu.Lock()
			l.control.bounded, l.control.window = true, 100
			l.gate.step(time.Now(), load{processors: 1, tried: true})
			l.mu.Unlock()
		}
	}
	if n := fill(); n != 100 {
		t.Errorf("a client by itself has %d of 100 places", n)
	}
	turns(2 * hanging)
	if _, err := l.TryAdmit("other"); err != nil {
		t.Fatal(err)
	}
	if n := fill(); n < 85 || n > 90 {
		t.Errorf("beside another client it has %d of 100 places, want eight ninths", n)
	}
	turns(keptIdle + 2*hanging)
	if n := len(l.clients.known); n != 0 {
		t.Errorf("%d clients are known %v after they have asked", n, keptIdle)
	}
	if n := fill(); n != 100 {
		t.Errorf("by itself again it has %d of 100 places", n)
	}
}

// What is under way of a client is what began lately and has not ended, whenever it ends.
func TestPiecesAreThoseThatBeganLately(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var p pieces
		var began []uint64
		now := rng.Uint64N(1000)
		for range 2000 {
			switch rng.IntN(5) {
			case 0, 1:
				p.begin(now)
				began = append(began, now)
			case 2, 3:
				if n := len(began); n > 0 {
					i := rng.IntN(n)
					p.end(began[i], now)
					began[i] = began[n-1]
					began = began[:n-1]
				}
			default:
				now += rng.Uint64N(rng.Uint64N(100) + 1)
			}
			least, most := 0, 0
			for _, at := range began {
				if now-at < uint64(hanging/tick) {
					least++
				}
				if now-at < uint64(hanging/tick)+coarse {
					most++
				}
			}
			if n := p.underWay(now); n < least || n > most {
				t.Fatalf("seed %d: %d are under way, want %d to %d", seed, n, least, most)
			}
		}
	}
}
