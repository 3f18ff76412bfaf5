package pool

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/internal/simnet"
)

var (
	modelSeeds = flag.Int("pool.seeds", modelRuns, "how many random schedules of a pool are run")
	modelFirst = flag.Uint64("pool.first", 1, "seed of the first one")
)

// TestModel runs random schedules of calls, and of what peers and networks do to
// sessions, in virtual time, and checks what the package promises after each step.
func TestModel(t *testing.T) {
	for i := range uint64(*modelSeeds) {
		if seed := *modelFirst + i; !t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { newWorld(t, seed).run() })
		}) {
			t.Fatalf("run again with -run 'TestModel' -pool.seeds 1 -pool.first %d", seed)
		}
	}
}

// world is a pool, the peers of its keys, and the calls that were made.
type world struct {
	t     *testing.T
	rng   *rand.Rand // of the goroutine that makes the schedule
	pool  *Pool
	peers []*peer
	calls sync.WaitGroup
	made  uint64

	severed map[*hbone.Session]time.Time // when each is closed at the latest
}

// peer is whoever answers for one key.
type peer struct {
	key Key

	mu     sync.Mutex
	rng    *rand.Rand
	limit  int           // streams that its next sessions allow
	delay  time.Duration // one way
	slow   time.Duration // before a dial begins
	answer time.Duration // at most, before a CONNECT is answered
	eager  bool          // dials do not wait for SETTINGS
	down   bool          // dials fail
	failed bool          // some dial has failed
	harmed bool          // some session was killed, stalled or limited to no streams
	served []*served
}

// served is the peer's end of a session.
type served struct {
	s     *hbone.Session
	t     *injector
	ends  [2]*simnet.Conn
	limit int
}

// injector is a transport into which frames can be put between bursts.
type injector struct {
	pipeTransport
	mu sync.Mutex
}

func (i *injector) WriteBurst(b []byte) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.pipeTransport.WriteBurst(b)
}

var errDown = errors.New("peer is down")

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 1)), pool: New(Config{MaxStreams: 1 + int(seed%5)*20, DialTimeout: 5 * time.Second}), severed: map[*hbone.Session]time.Time{}}
	for i := range 1 + w.rng.IntN(2) {
		p := &peer{key: Key{Address: fmt.Sprint(i)}, rng: rand.New(rand.NewPCG(seed, uint64(2+i)))}
		p.limit = []int{1, 2, 5, 30, 100}[w.rng.IntN(5)]
		p.delay = time.Duration(w.rng.IntN(50)) * time.Millisecond
		p.eager = w.rng.IntN(2) == 0
		w.peers = append(w.peers, p)
	}
	return w
}

func (w *world) run() {
	for range 60 {
		w.step()
		synctest.Wait()
		w.check()
		time.Sleep(time.Duration(w.rng.ExpFloat64() * float64(200*time.Millisecond)))
		synctest.Wait()
		w.check()
	}
	for _, p := range w.peers { // everything heals
		p.set(func() { p.down, p.slow = false, 0 })
		p.each(func(s *served) { s.ends[0].Resume(); s.ends[1].Resume() })
	}
	w.calls.Wait()
	time.Sleep(2 * w.pool.cfg.IdleTimeout)
	if s := w.pool.Stats(); s.Keys != 0 || s.Dials > 2*w.made+s.Hedges {
		w.t.Errorf("long after %d calls have ended: %+v", w.made, s)
	}
	w.pool.Close()
	for _, p := range w.peers {
		p.each(func(s *served) { s.s.Close(nil) })
	}
	time.Sleep(time.Minute)
}

// step does one thing, most often a few calls.
func (w *world) step() {
	p := w.peers[w.rng.IntN(len(w.peers))]
	switch n := w.rng.IntN(20); n {
	default:
		calls := 1 + w.rng.IntN(5)
		if w.rng.IntN(5) == 0 {
			calls = 50 + w.rng.IntN(100)
		}
		for range calls {
			w.call(p)
		}
	case 0, 1:
		p.set(func() { p.down = !p.down })
	case 2:
		p.set(func() { p.slow = time.Duration(p.rng.IntN(4000)) * time.Millisecond })
	case 3:
		p.set(func() { p.answer = time.Duration(p.rng.IntN(1000)) * time.Millisecond })
	case 4:
		p.set(func() { p.limit = 1 + p.rng.IntN(100) })
	case 5:
		p.one(func(s *served) { p.harmed = true; s.ends[0].Cut() })
	case 6:
		p.each(func(s *served) { p.harmed = true; s.ends[0].Cut() }) // it restarts
	case 7:
		p.each(func(s *served) { p.harmed = true; s.ends[0].Stall(); s.ends[1].Stall() }) // a firewall forgets
	case 8:
		p.each(func(s *served) { s.ends[0].Resume(); s.ends[1].Resume() })
	case 9:
		p.one(func(s *served) { p.harmed = true; go s.s.Drain(context.Background()) })
	case 10:
		p.one(func(s *served) { p.announce(s, []int{0, p.rng.IntN(s.limit + 1), s.limit}[p.rng.IntN(3)]) })
	case 11: // calls wait while a limit moves, or a firewall remembers
		p.set(func() { p.slow = 3 * time.Second })
		p.each(func(s *served) {
			if p.rng.IntN(2) == 0 {
				p.harmed = true
				s.ends[0].Stall()
				s.ends[1].Stall()
			} else {
				p.announce(s, 1)
			}
		})
		for range 20 {
			w.call(p)
		}
		time.Sleep(time.Duration(w.rng.IntN(2000)) * time.Millisecond)
		synctest.Wait()
		w.check()
		p.each(func(s *served) { s.ends[0].Resume(); s.ends[1].Resume(); p.announce(s, s.limit) })
	case 12:
		w.pool.Retire(func(k Key) bool { return k == p.key })
		p.set(func() { p.harmed = true })
	case 13: // its network is unlinked, and linked again at once
		p.set(func() { p.harmed = true })
		d := time.Duration(w.rng.IntN(2000)) * time.Millisecond
		var all sync.Map
		for _, sh := range w.pool.all() {
			w.pool.mu.Lock()
			severed := sh.severed
			w.pool.mu.Unlock()
			if sh.e.key == p.key && !severed {
				all.Store(sh.s, true)
				w.severed[sh.s] = time.Now().Add(d)
			}
		}
		w.pool.Sever(func(k Key, s *hbone.Session) bool {
			_, ok := all.Load(s)
			return k == p.key && ok
		}, d, errDown)
	}
}

// call makes one call, which holds its stream for a while.
func (w *world) call(p *peer) {
	w.made++
	patience := time.Duration(1+w.rng.IntN(10_000)) * time.Millisecond
	hold := time.Duration(w.rng.IntN(3000)) * time.Millisecond
	bulk := w.rng.IntN(50) == 0
	w.calls.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		began := time.Now()
		st, _, err := w.pool.Open(ctx, p.key, p.dial, poolReq)
		if took := time.Since(began); took > patience {
			w.t.Errorf("a call with %v of patience took %v", patience, took)
		}
		if err != nil {
			w.judge(p, ctx, err)
			return
		}
		if bulk {
			st.SetDeadline(time.Now().Add(hold))
			st.Write(make([]byte, 512<<10))
		}
		time.Sleep(hold)
		st.Close()
	})
}

// judge knows why a call may fail.
func (w *world) judge(p *peer, ctx context.Context, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case errors.Is(err, hbone.ErrSessionFull):
		w.t.Errorf("a call heard that a session is full: %v", err)
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
	case errors.Is(err, errDown) || errors.Is(err, hbone.ErrSettingsTimeout) || errors.Is(err, context.DeadlineExceeded):
		if !p.failed && !p.harmed && p.slow == 0 {
			w.t.Errorf("a call failed, and no dial did: %v", err)
		}
	case !p.harmed && !p.failed:
		w.t.Errorf("a call failed, and its peer is well: %v", err)
	}
}

// check holds the pool against its promises. Nobody is about to run.
func (w *world) check() {
	p := w.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	for s, at := range w.severed {
		if time.Now().After(at) && s.Err() == nil {
			w.t.Errorf("a session that was severed is open %v after its end", time.Since(at))
		}
	}
	for _, e := range p.keys {
		bad := func(format string, args ...any) {
			w.t.Errorf("key %s: "+format, append([]any{e.key.Address}, args...)...)
		}
		now := time.Now()
		if len(e.sessions)+len(e.dials)+len(e.waiters) == 0 {
			bad("an empty entry")
		}
		if len(e.dials) > dialsAtOnce {
			bad("%d dials in flight", len(e.dials))
		}
		if !slices.IsSortedFunc(e.waiters, func(a, b *waiter) int { return cmp.Compare(a.call.ticket, b.call.ticket) }) {
			bad("the queue is out of order")
		}
		if len(e.waiters) > 0 && len(e.dials) == 0 {
			bad("%d calls wait, and nobody dials", len(e.waiters))
		}
		for _, x := range e.waiters {
			if x.got != nil || x.err != nil || x.call.ctx.Err() != nil {
				bad("a call is in the queue and does not wait")
			}
			for _, sh := range e.sessions {
				a := sh.s.Availability(now)
				if free := p.free(sh, a); free > 0 && !p.past(sh, a, now) && sh.seq > x.call.after && !x.spare {
					bad("a call waits beside a session with %d free streams: %+v", free, a)
				}
			}
		}
		lent := 0
		for _, sh := range e.sessions {
			if lent += sh.opening; sh.opening < 0 || sh.out || sh.severed || sh.e != e {
				bad("a session is not the entry's own, or was given back twice")
			}
		}
		if e.opening < lent {
			bad("%d calls have a session, the entry counts %d", lent, e.opening)
		}
	}
}

func (p *peer) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

func (p *peer) each(f func(*served)) {
	p.set(func() {
		for _, s := range p.served {
			f(s)
		}
	})
}

func (p *peer) one(f func(*served)) {
	p.set(func() {
		if len(p.served) > 0 {
			f(p.served[len(p.served)-1-p.rng.IntN(min(3, len(p.served)))])
		}
	})
}

// announce changes how many streams s allows, unless its peer cannot read.
func (p *peer) announce(s *served, limit int) {
	p.harmed = true
	b := append([]byte{0, 0, 6, byte(http2.FrameSettings), 0, 0, 0, 0, 0}, 0, byte(http2.SettingMaxConcurrentStreams), 0, 0, 0, byte(limit))
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	s.t.SetWriteDeadline(time.Now())
	s.t.Write(b)
	s.t.SetWriteDeadline(time.Time{})
}

func (p *peer) dial(ctx context.Context) (*hbone.Session, error) {
	p.mu.Lock()
	slow := p.slow
	p.mu.Unlock()
	select {
	case <-time.After(slow):
	case <-ctx.Done():
		p.set(func() { p.failed = true })
		return nil, context.Cause(ctx)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down {
		p.failed = true
		return nil, errDown
	}
	x, y := simnet.Pair(simnet.Options{Delay: p.delay})
	t := &injector{pipeTransport: pipeTransport{y}}
	cfg := hbone.DefaultConfig()
	cfg.MaxStreams = p.limit
	s := hbone.NewServer(t, cfg, p.serve)
	p.served = append(p.served, &served{s: s, t: t, ends: [2]*simnet.Conn{x, y}, limit: p.limit})
	go s.Serve(context.Background())
	client, err := hbone.StartClient(pipeTransport{x}, hbone.DefaultConfig())
	if p.eager || err != nil {
		return client, err
	}
	p.mu.Unlock()
	err = client.AwaitSettings(ctx)
	p.mu.Lock()
	if err != nil {
		p.failed = true
		client.Close(nil)
		return nil, err
	}
	return client, nil
}

// serve answers a CONNECT after a while and reads until the end.
func (p *peer) serve(ctx context.Context, in *hbone.Incoming) {
	p.mu.Lock()
	wait := time.Duration(p.rng.Int64N(int64(p.answer) + 1))
	p.mu.Unlock()
	select {
	case <-time.After(wait):
	case <-ctx.Done():
		return
	}
	st, err := in.Accept(nil)
	if err != nil {
		return
	}
	discard(st)
	st.Close()
}
