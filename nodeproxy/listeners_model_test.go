package nodeproxy

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/sockdiag"
)

// fakeKernel is one application as the kernel shows it, and what connects to it find:
// sockets, and a dialTCP.
type fakeKernel struct {
	mu      sync.Mutex
	cookie  uint64 // of the listener; 0: none
	next    uint64
	queue   []uint64 // cookies of who waits
	backlog int
	paused  bool // accepts nobody
	hidden  bool // the kernel shows nothing
	failing bool // nor answers
	short   bool // it lacks memory
	asked   int  // meanwhile
	events  chan error

	accepted time.Time // the last one
}

func newFakeKernel() *fakeKernel { return &fakeKernel{events: make(chan error, 1), backlog: 128} }

func (k *fakeKernel) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.failing {
		k.failing = true
		k.tell(os.ErrClosed)
	}
}

// tell says that a listener has ended; what was not taken is lost.
func (k *fakeKernel) tell(what error) {
	select {
	case k.events <- what:
		return
	default:
	}
	select {
	case <-k.events:
	default:
	}
	if what == nil {
		what = sockdiag.ErrLost
	}
	k.events <- what
}

func (k *fakeKernel) Next(ports []uint16) ([]uint16, error) {
	if err := <-k.events; err != nil {
		return ports, err
	}
	return append(ports, 8080), nil
}

func (k *fakeKernel) Listener(netip.AddrPort) (l sockdiag.Listener, ok bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.failing {
		return l, false, os.ErrClosed
	}
	if k.short {
		k.asked++
		return l, false, syscall.ENOBUFS
	}
	if k.cookie == 0 || k.hidden {
		return l, false, nil
	}
	return sockdiag.Listener{Cookie: k.cookie, Queue: uint32(len(k.queue)), Backlog: uint32(k.backlog)}, true, nil
}

func (k *fakeKernel) Group(sockdiag.Listener) ([]sockdiag.Listener, error) {
	l, ok, err := k.Listener(netip.AddrPort{})
	if !ok {
		return nil, err
	}
	return []sockdiag.Listener{l}, err
}

func (k *fakeKernel) Waiting(sockdiag.Listener) ([]uint64, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.queue), nil
}

// dial implements dialTCP.
func (k *fakeKernel) dial(ctx context.Context, _ netip.AddrPort, timeout time.Duration) (net.Conn, error) {
	k.mu.Lock()
	switch {
	case k.cookie == 0:
		k.mu.Unlock()
		return nil, syscall.ECONNREFUSED
	case len(k.queue) > k.backlog:
		k.mu.Unlock()
		if !pause(ctx, timeout) {
			return nil, ctx.Err()
		}
		return nil, os.ErrDeadlineExceeded
	}
	k.next++
	k.queue = append(k.queue, k.next)
	k.drain()
	k.mu.Unlock()
	a, b := net.Pipe()
	b.Close()
	return a, nil
}

// drain accepts everybody; the caller holds mu.
func (k *fakeKernel) drain() {
	if !k.paused && len(k.queue) > 0 {
		k.queue, k.accepted = nil, time.Now()
	}
}

// listen opens or closes the listener, or replaces it.
func (k *fakeKernel) listen(on bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	was := k.cookie != 0
	k.cookie, k.queue = 0, nil
	if on {
		k.next++
		k.cookie = k.next
	}
	if was && !k.failing {
		k.tell(nil)
	}
}

func (k *fakeKernel) pause(on bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.paused = on
	if k.cookie != 0 {
		k.drain()
	}
}

// seenWorld is a witness beside a fakeKernel.
type seenWorld struct {
	*witness
	k   *fakeKernel
	key health.Key
	pod *mesh.Workload
}

func newSeenWorld(ctx context.Context, k *fakeKernel) *seenWorld {
	w := newUnseenWorld(ctx, k)
	w.sockets.start()
	w.watchIt()
	return w
}

// newUnseenWorld is one that nobody looks at.
func newUnseenWorld(ctx context.Context, k *fakeKernel) *seenWorld {
	pod := &mesh.Workload{UID: "x", Network: "west", Endpoint: mesh.EndpointIDOf("west", "x"), Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}
	w := &seenWorld{k: k, key: health.Key{Endpoint: pod.Endpoint, Port: 8080}, pod: pod}
	c := DefaultConfig()
	w.witness = newWitness(ctx, c, func(health.Key) *mesh.Workload { return pod }, k.dial, func(...healthstream.Target) {}, zerolog.Nop())
	w.sockets = newListeners(ctx, func(sockdiag.Namespace) (sockets, error) {
		if k.failing {
			return nil, errors.ErrUnsupported
		}
		return k, nil
	}, w.witness, prometheus.NewRegistry(), zerolog.Nop())
	return w
}

func (w *seenWorld) watchIt() {
	w.sockets.watch("x", nil)
	w.sockets.revise(func(string) []watchedPort {
		return []watchedPort{{w.key, netip.AddrPortFrom(w.pod.Addresses[0], 8080)}}
	})
}

func (w *seenWorld) connect(ctx context.Context) {
	if c, _, err := w.dial(ctx, w.pod, 8080, netip.Addr{}); err == nil {
		c.Close()
	}
}

// TestTheWitnessUnderRandomSchedules has an application open, close, replace and pause
// its listener while users come, and the kernel hide it, lose events or stop answering. A
// port is called stalled only while it accepts nobody; a sound one is in within the
// damping's time, and one that is closed is out, wherever it was seen; and all ends.
func TestTheWitnessUnderRandomSchedules(t *testing.T) {
	t.Parallel()
	stalls, gone := 0, 0
	seeds := uint64(300)
	if underRace {
		seeds = 60
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			rng := rand.New(rand.NewPCG(seed, 1))
			k := newFakeKernel()
			k.backlog = 1 + rng.IntN(100)
			k.listen(true)
			w := newSeenWorld(ctx, k)
			var users sync.WaitGroup
			rate := time.Duration(1+rng.IntN(40)) * time.Millisecond
			for range 60 {
				switch rng.IntN(12) {
				case 0, 1:
					k.listen(false)
				case 2, 3, 4:
					k.listen(true)
				case 5, 6:
					k.pause(true)
				case 7, 8:
					k.pause(false)
				case 9:
					k.mu.Lock()
					k.hidden = rng.IntN(3) == 0
					k.mu.Unlock()
				case 10:
					if rng.IntN(10) == 0 {
						k.Close()
					}
				case 11:
					rate = time.Duration(1+rng.IntN(40)) * time.Millisecond
				}
				for end := time.Now().Add(time.Duration(rng.IntN(600)) * time.Millisecond); time.Now().Before(end); time.Sleep(rate) {
					users.Go(func() { w.connect(ctx) })
					f, _ := w.Fact(healthstream.Target(w.key))
					k.mu.Lock()
					if stalled := f.State == federation.Ejected && f.Reason == string(stalledReason); stalled && f.Age == 0 {
						stalls++
						// at the very instant either may have been first
						if d := time.Since(k.accepted); d > 0 && d < 20*time.Millisecond {
							t.Errorf("seed %d: called stalled %v after it has accepted", seed, time.Since(k.accepted))
						}
					}
					k.mu.Unlock()
				}
			}
			// A seen listener that ends is found without a user.
			k.mu.Lock()
			k.hidden = false
			k.mu.Unlock()
			k.listen(true)
			k.pause(false)
			time.Sleep(3 * time.Minute) // all penalties are over
			synctest.Wait()
			if w.isOut(w.key) || w.isStalled(w.key) || w.prober.Active() != 0 {
				t.Errorf("seed %d: out %t, stalled %t, %d series of probes; it has been well for three minutes", seed, w.isOut(w.key), w.isStalled(w.key), w.prober.Active())
			}
			w.connect(ctx)
			time.Sleep(2 * listenerLook)
			k.listen(false)
			time.Sleep(2 * suspectPause)
			synctest.Wait()
			if k.mu.Lock(); !k.failing {
				gone++
				if k.mu.Unlock(); !w.isOut(w.key) {
					t.Errorf("seed %d: its listener has ended, and it is not out", seed)
				}
				k.mu.Lock()
			}
			k.mu.Unlock()
			users.Wait()
			cancel()
			w.sockets.wait()
			w.prober.Wait()
		})
		if t.Failed() {
			return
		}
	}
	t.Logf("%d looks at a stall, %d ends that were seen", stalls, gone)
	if stalls < int(seeds)/15 || gone < int(seeds)/3 {
		t.Error("the schedules cause too little")
	}
}

func TestAWitnessThatSeesNothingGoesOnByConnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		k := newFakeKernel()
		k.failing = true
		w := newSeenWorld(ctx, k)
		w.connect(ctx)
		time.Sleep(200 * time.Millisecond)
		if !w.isOut(w.key) {
			t.Error("one that refuses is not out")
		}
		k.listen(true)
		time.Sleep(time.Second)
		if w.isOut(w.key) {
			t.Error("one that answers is not in")
		}
		cancel()
		w.sockets.wait()
		w.prober.Wait()
	})
}

// The kernel is short of something for a while (ENOBUFS, ENOMEM), however long: what is seen afterwards counts as before.
func TestListenersAreWatchedAfterErrors(t *testing.T) {
	for _, short := range []time.Duration{2 * listenerLook, 20 * time.Minute} {
		t.Run(short.String(), func(t *testing.T) { watchedAfterErrors(t, short) })
	}
}

func watchedAfterErrors(t *testing.T, short time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		k := newFakeKernel()
		k.listen(true)
		w := newSeenWorld(ctx, k)
		k.mu.Lock()
		k.short = true
		k.tell(syscall.ENOMEM)
		k.mu.Unlock()
		asked := 0
		for began := time.Now(); time.Since(began) < short; time.Sleep(listenerLook) {
			w.connect(ctx) // the port is in use all the while
			k.mu.Lock()
			asked, k.asked = asked+k.asked, 0
			k.mu.Unlock()
		}
		if most := 10 + int(short/(askAgain.Limit/2)); asked == 0 || asked > most || w.sockets.seen() != 0 {
			t.Errorf("in %v the kernel was asked %d times, want at most %d; %v listeners are seen", short, asked, most, w.sockets.seen())
		}
		k.mu.Lock()
		k.short = false
		k.mu.Unlock()
		time.Sleep(askAgain.Limit + time.Second)
		w.connect(ctx)
		time.Sleep(2 * listenerLook)
		k.listen(false)
		time.Sleep(2 * suspectPause)
		synctest.Wait()
		if !w.isOut(w.key) {
			t.Error("its listener has ended, and it is not out")
		}
		cancel()
		w.sockets.wait()
		w.prober.Wait()
	})
}

// The clock of the machine is set back by an hour: stalls are found as before.
func TestAClockThatIsSetBackHidesNoStall(t *testing.T) {
	setBack := func(now time.Time) time.Time {
		(*struct{ wall uint64 })(unsafe.Pointer(&now)).wall -= 3600 << 30 // seconds; the monotonic reading goes on
		return now
	}
	ctx, cancel := context.WithCancel(t.Context())
	k := newFakeKernel()
	k.listen(true)
	w := newUnseenWorld(ctx, k)
	w.watchIt()
	k.pause(true)
	began := time.Now()
	for i := range 100 {
		w.connect(ctx)
		now := began.Add(time.Duration(i) * 10 * time.Millisecond)
		if i >= 15 { // one census has been taken
			now = setBack(now)
		}
		w.sockets.lookAll(now)
	}
	if w.sockets.census.Load() == 0 || !w.isOut(w.key) {
		t.Error("it accepts nobody, and is not out")
	}
	cancel()
	w.sockets.wait()
	w.prober.Wait()
}

// A service comes back before anybody has looked that it went: the witness has forgotten the stall,
// and the application accepts nobody still.
func TestAStallOutlastsWhatIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		k := newFakeKernel()
		k.listen(true)
		w := newSeenWorld(ctx, k)
		users := func(n int) {
			for range n {
				w.connect(ctx)
				time.Sleep(10 * time.Millisecond)
			}
		}
		k.pause(true)
		users(60)
		if !w.isOut(w.key) {
			t.Fatal("it accepts nobody, and is not out")
		}
		listed := w.declared
		w.declared = func(health.Key) *mesh.Workload { return nil }
		w.forget()
		w.declared = listed
		users(60)
		if !w.isOut(w.key) {
			t.Error("it accepts nobody, and is not out any more")
		}
		k.pause(false)
		time.Sleep(time.Minute)
		if w.isOut(w.key) {
			t.Error("it accepts, and is out")
		}
		cancel()
		w.sockets.wait()
		w.prober.Wait()
	})
}
