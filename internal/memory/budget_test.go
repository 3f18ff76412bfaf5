package memory

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// modelUse is what the model knows of a Use.
type modelUse struct {
	use    *Use
	owner  string
	n      int
	first  int
	window int
	stuck  bool // it cannot be reset
	reset  bool
}

// model is the budget as a list.
type model struct {
	t      *testing.T
	seed   uint64
	b      *Budget
	live   []*modelUse
	forced int // bytes taken by Add and not given back
}

func (m *model) owned(owner string) (n int, resettable bool) {
	for _, u := range m.live {
		if u.owner == owner {
			n += u.n
			resettable = resettable || u.n > 0 && !u.stuck
		}
	}
	return n, resettable
}

// mayReset checks that u is the largest that can be reset, of the largest owner.
func (m *model) mayReset(u *modelUse) {
	own, _ := m.owned(u.owner)
	for _, o := range m.live {
		if n, ok := m.owned(o.owner); ok && n > own {
			m.t.Errorf("seed %d: owner %s with %d bytes lost a stream, and %s holds %d", m.seed, u.owner, own, o.owner, n)
		}
		if o.owner == u.owner && !o.stuck && o.n > u.n {
			m.t.Errorf("seed %d: a use of %d bytes was reset, and one of its owner holds %d", m.seed, u.n, o.n)
		}
	}
	if own == 0 || u.n == 0 {
		m.t.Errorf("seed %d: a use that holds nothing was reset", m.seed)
	}
}

func (m *model) remove(u *modelUse) {
	for i, o := range m.live {
		if o == u {
			m.live = append(m.live[:i], m.live[i+1:]...)
			return
		}
	}
}

func (m *model) open(rng *rand.Rand) {
	u := &modelUse{owner: fmt.Sprint(rng.IntN(4)), first: m.b.FirstWindow(1 << 20), stuck: rng.IntN(5) == 0}
	u.window = u.first
	u.use = m.b.Open(u.owner, Stream, func() bool {
		if u.stuck {
			return false
		}
		m.mayReset(u)
		u.reset = true
		m.remove(u)
		return true
	})
	m.live = append(m.live, u)
}

func (m *model) check(op string) {
	sum := 0
	for _, u := range m.live {
		sum += u.n
	}
	if got := int(m.b.Used()); got != sum {
		m.t.Fatalf("seed %d: after %s %d bytes are used, the model has %d", m.seed, op, got, sum)
	}
	if m.forced == 0 && sum > int(m.b.Size()) {
		m.t.Fatalf("seed %d: after %s %d of %d bytes are used", m.seed, op, sum, m.b.Size())
	}
	growth := 0
	for _, u := range m.live {
		growth += u.window - u.first
	}
	if got := int(m.b.growth.Load()); got != growth || growth > int(m.b.Size())/growthPart {
		m.t.Fatalf("seed %d: after %s windows have grown by %d, the model has %d, at most %d", m.seed, op, got, growth, m.b.Size()/growthPart)
	}
}

func (m *model) step(rng *rand.Rand) string {
	if len(m.live) == 0 || rng.IntN(6) == 0 && len(m.live) < 40 {
		m.open(rng)
		return "open"
	}
	u := m.live[rng.IntN(len(m.live))]
	n := 1 << rng.IntN(18)
	switch rng.IntN(9) {
	case 7:
		if err := m.b.Admit(u.owner); err != nil {
			own, _ := m.owned(u.owner)
			for _, o := range m.live {
				if n, ok := m.owned(o.owner); ok && n >= own || !errors.Is(err, ErrTight) {
					m.t.Errorf("seed %d: a new stream of %s, while %s holds %d bytes that can be reset: %v", m.seed, u.owner, o.owner, n, err)
				}
			}
		}
		return "admit"
	case 0, 1, 2:
		if u.use.Reserve(n) {
			u.n += n
		} else if !u.reset {
			for _, o := range m.live {
				if !o.stuck && o.n > 0 {
					m.t.Errorf("seed %d: %d bytes were refused while a use of %d can be reset", m.seed, n, o.n)
				}
			}
		}
		return "reserve"
	case 3:
		if u.use.TryReserve(n) {
			u.n += n
			if int(m.b.Used()) > int(m.b.Size())/2 {
				m.t.Errorf("seed %d: a try took more than half of the budget", m.seed)
			}
		}
		return "try"
	case 4:
		n = min(n, 4<<10)
		u.n += n
		m.forced += n
		u.use.Add(n)
		synctest.Wait()
		return "add"
	case 5:
		n = min(n, u.n)
		u.n -= n
		u.use.Release(n)
		return "release"
	case 6:
		got := u.use.Window(u.first, 1<<20)
		if got < u.first || got > 1<<20 {
			m.t.Errorf("seed %d: a window of %d bytes, want %d to %d", m.seed, got, u.first, 1<<20)
		}
		u.window = got
		u.use.SetWindow(u.first, got)
		return "window"
	}
	m.remove(u)
	u.use.Close()
	u.use.Close()
	u.use.Release(n)
	if u.use.Reserve(1) || u.use.TryReserve(1) {
		m.t.Errorf("seed %d: a closed use has taken bytes", m.seed)
	}
	return "close"
}

// Whatever is opened, taken, given back and closed: the budget holds what a list of the
// uses holds, and resets the largest of the largest owner only.
func TestBudgetAgreesWithModel(t *testing.T) {
	for seed := range uint64(300) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			m := &model{t: t, seed: seed, b: NewBudget(int64(1+rng.IntN(16)) << 18)}
			for range 400 {
				m.check(m.step(rng))
				m.forced = max(0, min(m.forced, int(m.b.Used())))
			}
			for len(m.live) > 0 {
				u := m.live[0]
				m.remove(u)
				u.use.Close()
			}
			m.check("the end")
			if len(m.b.owners) != 0 {
				t.Errorf("seed %d: %d owners are left without a use", seed, len(m.b.owners))
			}
		})
	}
}

func TestBudgetHoldsUnderConcurrency(t *testing.T) {
	b := NewBudget(4 << 20)
	stop := make(chan struct{})
	var watch, all sync.WaitGroup
	watch.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if n := b.Used(); n > b.Size() || n < 0 {
					t.Errorf("%d of %d bytes are used", n, b.Size())
					return
				}
			}
		}
	})
	for g := range 8 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 2))
			for range 200 {
				u := b.Open(fmt.Sprint(g%3), Stream, func() bool { return true })
				held := 0
				for range rng.IntN(20) {
					if n := 1 + rng.IntN(128<<10); u.Reserve(n) {
						held += n
					}
					if held > 0 && rng.IntN(3) == 0 {
						n := rng.IntN(held)
						u.Release(n)
						held -= n
					}
					u.SetWindow(1<<16, u.Window(1<<16, 1<<20))
				}
				u.Close()
			}
		})
	}
	all.Wait()
	close(stop)
	watch.Wait()
	if b.Used() != 0 || b.growth.Load() != 0 {
		t.Errorf("%d bytes are used and windows have grown by %d, though no use is open", b.Used(), b.growth.Load())
	}
}

func TestAwaitDelaysOwnersAboveShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(1 << 20)
		large := b.Open("large", Stream, nil)
		small := b.Open("small", Stream, nil)
		large.Reserve(900 << 10)
		small.Reserve(20 << 10)
		began := time.Now()
		if err := b.Await(t.Context(), "small"); err != nil || time.Since(began) != 0 {
			t.Errorf("an owner below its share: %v after %v, want none at once", err, time.Since(began))
		}
		if err := b.Await(t.Context(), "new"); err != nil || time.Since(began) != 0 {
			t.Errorf("an owner without a use: %v after %v, want none at once", err, time.Since(began))
		}
		if err := b.Await(t.Context(), "large"); err != nil || time.Since(began) != waitAtMost {
			t.Errorf("the owner of most bytes: %v after %v, want none after %v", err, time.Since(began), waitAtMost)
		}
		if err := b.Admit("large"); !errors.Is(err, ErrTight) {
			t.Errorf("the owner of most bytes, which cannot be reset: %v, want ErrTight", err)
		}
		cause := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		if err := b.Await(ctx, "large"); err != cause {
			t.Errorf("a caller that left gets %v, want %v", err, cause)
		}
		go func() {
			time.Sleep(100 * time.Millisecond)
			large.Release(500 << 10)
		}()
		if err := b.Await(t.Context(), "large"); err != nil {
			t.Errorf("when memory was given back: %v", err)
		}
		large.Close()
		small.Close()
	})
}

// Streams that are never read again fill the budget up to where nothing resets them. A new
// stream of their owner resets the largest of them, and none of another owner's.
func TestAdmitResetsLargestOfOwner(t *testing.T) {
	b := NewBudget(1 << 20)
	var reset []int
	for i := range 9 {
		b.Open("reads nothing", Stream, func() bool { reset = append(reset, i); return true }).Reserve(100<<10 + i)
	}
	other := b.Open("reads", Stream, func() bool { t.Error("a stream of another owner was reset"); return true })
	other.Reserve(30 << 10)
	if !b.Tight() || len(reset) != 0 {
		t.Fatalf("%d of %d bytes are used after %d resets, want more than 7/8 after none", b.Used(), b.Size(), len(reset))
	}
	if err := b.Admit("reads"); err != nil || len(reset) != 0 {
		t.Errorf("an owner below its share: %v after %d resets, want none", err, len(reset))
	}
	if err := b.Admit("reads nothing"); err != nil || len(reset) == 0 || reset[0] != 8 || b.Tight() {
		t.Errorf("an owner above its share: %v, streams %v reset, %d of %d bytes used; want stream 8 first", err, reset, b.Used(), b.Size())
	}
}

// Pressure ends when what caused it is closed: then windows are as large as before.
func TestWindowsGrowAgainAfterPressure(t *testing.T) {
	const first, most = 64 << 10, 4 << 20
	b := NewBudget(64 << 20)
	lone := b.Open("lone", Stream, nil)
	before := lone.Window(first, most)
	var others []*Use
	for range 500 {
		u := b.Open("others", Stream, nil)
		u.SetWindow(first, u.Window(first, most))
		u.Reserve(100 << 10)
		others = append(others, u)
	}
	if got := lone.Window(first, most); got >= before/2 {
		t.Errorf("beside 500 streams that are not read a window may have %d bytes, without them %d", got, before)
	}
	for _, u := range others {
		u.Close()
	}
	if got := lone.Window(first, most); got != before {
		t.Errorf("after the pressure a window may have %d bytes, before it %d", got, before)
	}
}

// An owner above its share, which others' idle sessions make small, loses nothing for its new streams while another one
// holds more.
func TestAdmitResetsLargestOwnerFirst(t *testing.T) {
	const mib = 1 << 20
	b := NewBudget(64 * mib)
	lost := map[string]int{}
	open := func(owner string) *Use { return b.Open(owner, Stream, func() bool { lost[owner]++; return true }) }
	for range 57 {
		open("reads nothing").Reserve(mib)
	}
	for i := range 100 {
		open(fmt.Sprint("idle-", i))
	}
	for i := range 20 {
		u := open("reads")
		if !u.Reserve(mib) {
			t.Fatalf("no room for stream %d", i)
		}
		if err := b.Admit("reads"); err != nil {
			t.Errorf("new stream %d: %v", i, err)
		}
		u.Close()
	}
	if lost["reads nothing"] == 0 || len(lost) > 1 {
		t.Errorf("streams reset by owner: %v; want only those of the largest", lost)
	}
}

// Making room for a new stream of an owner whose bytes cannot be reset makes no list of the streams of smaller owners.
func TestAdmitListsNoSmallerOwners(t *testing.T) {
	const idle = 5000
	for _, reset := range []func() bool{nil, func() bool { return false }} {
		b := NewBudget(1 << 20)
		for i := range idle {
			b.Open(fmt.Sprint("quiet-", i%3), Stream, func() bool { t.Error("a stream of another owner was reset"); return true }).Reserve(1)
		}
		b.Open("busy", Session, reset).Reserve(900 << 10)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 100 {
			if err := b.Admit("busy"); !errors.Is(err, ErrTight) {
				t.Fatalf("the owner of most bytes: %v, want ErrTight", err)
			}
		}
		runtime.ReadMemStats(&after)
		if got := (after.TotalAlloc - before.TotalAlloc) / 100; got > idle { // a list takes 16 bytes for each
			t.Errorf("a new stream takes %d bytes beside %d idle streams of other owners", got, idle)
		}
	}
}
