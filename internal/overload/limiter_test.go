package overload

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/isthmus-mesh/isthmus/internal/memory"
)

// boundTo returns a limiter with a window of n and so much under way.
func boundTo(n int) (l *Limiter, under []Work) {
	l = New(prometheus.NewRegistry())
	l.control = control{short: shortHere, bounded: true, window: float64(n)}
	for range n {
		w, err := l.gate.Admit(context.Background(), time.Now())
		if err != nil {
			panic(err)
		}
		under = append(under, w)
	}
	return l, under
}

// idle is what the scheduler says when nobody waits for a processor.
var idle = scheduling{processors: 1}

func TestWithoutRunEverythingIsAdmittedAndNothingIsLate(t *testing.T) {
	l := New(prometheus.NewRegistry())
	for range 10000 {
		if _, err := l.gate.Admit(t.Context(), time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	if d := l.Late(time.Time{}); d != 0 {
		t.Errorf("late by %v", d)
	}
}

func TestTheNewestIsAdmittedAndTheOldestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, under := boundTo(100)
		type answer struct {
			who int
			err error
		}
		answers := make(chan answer, 10)
		for who := range 10 {
			go func() {
				_, err := l.gate.Admit(t.Context(), time.Now())
				answers <- answer{who, err}
			}()
			synctest.Wait()
			time.Sleep(time.Millisecond)
		}
		for i := range 3 {
			under[i].Done()
			under[i].Done() // does nothing
		}
		synctest.Wait()
		for range 3 {
			if a := <-answers; a.who < 7 || a.err != nil {
				t.Errorf("number %d got %v; want 7 to 9 to be admitted", a.who, a.err)
			}
		}
		if n := len(answers); n != 0 {
			t.Fatalf("%d more were answered", n)
		}
		time.Sleep(maxWait)
		l.control.window = 0 // and stays below what is under way
		l.step(time.Now(), idle)
		synctest.Wait()
		for range 7 {
			if a := <-answers; errors.Is(a.err, ErrOverloaded) != (a.who < 7-floor) {
				t.Errorf("number %d got %v after %v; want the %d newest to be admitted", a.who, a.err, maxWait, floor)
			}
		}
	})
}

// Whatever happens, each caller gets one answer in bounded time, the window is
// never exceeded, nobody is left, and what was admitted is accounted for.
func TestEveryCallerIsAnswered(t *testing.T) {
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) { everyCaller(t, seed) })
	}
}

func everyCaller(t *testing.T, seed uint64) {
	const callers = 3000
	rng := rand.New(rand.NewPCG(seed, 0))
	l, _ := boundTo(0)
	l.control.window = 40
	var admitted, refused, left atomic.Int64
	var all, loop sync.WaitGroup
	for range callers {
		once, who := rng.IntN(3) == 0, fmt.Sprint(rng.IntN(5))
		patience, at, work := time.Duration(rng.IntN(900))*time.Millisecond, time.Duration(rng.IntN(700))*time.Millisecond, time.Duration(rng.IntN(100))*time.Millisecond
		all.Go(func() {
			time.Sleep(at)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			started := time.Now()
			admit, most := func(ctx context.Context) (Work, error) { return l.gate.Admit(ctx, time.Now()) }, maxWait
			if once {
				admit, most = func(ctx context.Context) (Work, error) { return l.AdmitOnce(ctx, who) }, onceWait
			}
			piece, err := admit(ctx)
			if took := time.Since(started); took > most+2*tick {
				t.Errorf("seed %d: an answer took %v", seed, took)
			}
			switch {
			case err == nil:
				admitted.Add(1)
				time.Sleep(work)
				piece.Done()
			case errors.Is(err, ErrOverloaded):
				refused.Add(1)
			default:
				left.Add(1)
			}
		})
	}
	ctx, stop := context.WithCancel(t.Context())
	loop.Go(func() {
		for ctx.Err() == nil {
			time.Sleep(tick)
			l.step(time.Now(), idle)
			l.mu.Lock()
			const most = 100*time.Millisecond/tick + 1 // ticks that a piece takes here
			if l.control.bounded && float64(l.all) > l.control.window+float64(floor*most) || l.all != l.recent.underWay {
				t.Errorf("seed %d: %d are under way, %d of them lately, in a window of %.0f", seed, l.all, l.recent.underWay, l.control.window)
			}
			l.mu.Unlock()
		}
	})
	all.Wait()
	stop()
	loop.Wait()
	if n := admitted.Load() + refused.Load() + left.Load(); n != callers || admitted.Load() == 0 || left.Load() == 0 || l.waiters.len != 0 || l.direct.len != 0 || len(l.clients.waiting) != 0 || l.all != 0 || l.recent.underWay != 0 {
		t.Errorf("seed %d: %d admitted, %d refused, %d left, %d wait still, %d are under way", seed, admitted.Load(), refused.Load(), left.Load(), l.waiters.len, l.all)
	}
}

// Peers that hang fill nobody's window, however late established connections make
// the process: a dead service costs others nothing.
func TestHangingPeersBesideBusyTransfersHoldNobodyBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, hanging := boundTo(1000)
		l.control = control{}
		busy := scheduling{processors: 2, runnable: 600, wait: 50 * time.Millisecond}
		turn := func() { time.Sleep(tick); l.step(time.Now(), busy) }
		for range ticksToHang {
			turn()
		}
		for i := range 500 {
			started := time.Now()
			piece, err := l.gate.Admit(t.Context(), time.Now())
			if err != nil || time.Since(started) > 0 {
				t.Fatalf("piece %d: %v after %v", i, err, time.Since(started))
			}
			turn()
			piece.Done()
		}
		if l.all != len(hanging) || l.recent.underWay != 0 {
			t.Errorf("%d are under way, %d of them lately; want %d and 0", l.all, l.recent.underWay, len(hanging))
		}
		for i := range hanging {
			hanging[i].Done()
		}
		if l.all != 0 || l.recent.underWay != 0 {
			t.Errorf("%d are under way, %d of them lately, when all are done", l.all, l.recent.underWay)
		}
	})
}

// ticksToHang is how many ticks it takes until work counts as hanging.
const ticksToHang = int(hanging/tick) + 1

func TestRunAdmitsWhoWaitsWhenItEnds(t *testing.T) {
	l, _ := boundTo(100)
	ctx, stop := context.WithCancel(t.Context())
	got := make(chan error)
	go func() {
		_, err := l.gate.Admit(t.Context(), time.Now())
		got <- err
	}()
	done := make(chan struct{})
	go func() { l.Run(ctx); close(done) }()
	stop()
	<-done
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// The scheduler's own figures show that goroutines wait when there are many that
// want to run.
func TestWaitIsSeenWhenProcessorsAreScarce(t *testing.T) {
	s := newScheduler()
	var all sync.WaitGroup
	var stop atomic.Bool
	for range 200 * runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for !stop.Load() {
				for range 20000 {
					_ = stop.Load()
				}
				runtime.Gosched()
			}
		})
	}
	time.Sleep(300 * time.Millisecond)
	runnable, wait := s.read()
	stop.Store(true)
	all.Wait()
	if wait < time.Millisecond || runnable < 100 {
		t.Errorf("%d want to run and the mean wait is %v, with 200 goroutines for each processor", runnable, wait)
	}
}

func TestHistoryKeepsTheWorstOfATime(t *testing.T) {
	var h history
	at := time.Unix(1000, 0)
	for i := range 3 * kept {
		late := time.Duration(0)
		if i == 3*kept-10 {
			late = time.Second
		}
		h.add(at, at.Add(tick), late)
		at = at.Add(tick)
	}
	for _, c := range []struct {
		ago, want time.Duration
	}{{0, 0}, {8 * tick, 0}, {10 * tick, time.Second}, {kept * tick, time.Second}, {time.Hour, time.Second}} {
		if got := h.worst(at.Add(-c.ago), at); got != c.want {
			t.Errorf("worst of the last %v is %v, want %v", c.ago, got, c.want)
		}
	}
	if got := h.worst(at, at.Add(time.Second)); got != time.Second-2*tick {
		t.Errorf("a second after the last span it is late by %v", got)
	}
}

// Work that nobody repeats waits through a shortage that lasts longer than others may
// wait, is bounded in time and number by itself, and crowds nobody else out.
func TestWorkThatNobodyRepeatsOutwaitsAShortage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, under := boundTo(100)
		answers := make(chan error, 2*leastOnce)
		ask := func() {
			go func() {
				_, err := l.AdmitOnce(t.Context(), "stock")
				answers <- err
			}()
			synctest.Wait()
		}
		for range leastOnce {
			ask()
		}
		if l.gate.Refuse(0) {
			t.Error("those that wait longer keep others from waiting")
		}
		if ask(); len(answers) != 1 || !errors.Is(<-answers, ErrOverloaded) {
			t.Errorf("more may wait than %d", leastOnce)
		}
		overdue := func(after time.Duration) {
			time.Sleep(after)
			l.mu.Lock()
			l.refuseOverdue(time.Now())
			l.mu.Unlock()
			synctest.Wait()
		}
		if overdue(onceWait - time.Millisecond); len(answers) != 0 {
			t.Fatalf("%d were answered before %v", len(answers), onceWait)
		}
		for i := range under {
			under[i].Done()
		}
		synctest.Wait()
		if len(answers) != len(under) {
			t.Errorf("%d of %d that there is room for are answered", len(answers), len(under))
		}
		for range len(answers) {
			if err := <-answers; err != nil {
				t.Errorf("when there is room again: %v", err)
			}
		}
		if overdue(time.Millisecond); len(answers) != leastOnce-len(under) || l.waiters.len != 0 || l.direct.len != 0 {
			t.Errorf("after %v %d are answered, %d wait, %d of them counted", onceWait, len(answers), l.waiters.len, l.waiters.len-l.direct.len)
		}
		for range len(answers) {
			if err := <-answers; !errors.Is(err, ErrOverloaded) {
				t.Errorf("after %v: %v", onceWait, err)
			}
		}
	})
}

// A new stream that the gate refuses costs no stream that is open.
func TestRefusedStreamResetsNoOther(t *testing.T) {
	const mib = 1 << 20
	b := memory.NewBudget(64 * mib)
	resets := 0
	fill := func() {
		for b.Used() < 57*mib {
			b.Open("client", memory.Stream, func() bool { resets++; return true }).Reserve(mib)
		}
	}
	b.Open("other", memory.Stream, nil)
	l, _ := boundTo(1)
	l.Memory = b
	refused, admitted := 0, 0
	for range 20 {
		fill()
		before := resets
		w, err := l.TryAdmit("client")
		switch {
		case err == nil && resets == before:
			t.Error("a stream was admitted, and no room was made for it")
		case err != nil && resets > before:
			t.Errorf("%d open streams were reset for one that was refused: %v", resets-before, err)
		case err != nil:
			refused++
			continue
		}
		admitted++
		w.Done()
	}
	if refused == 0 || admitted == 0 {
		t.Errorf("%d refused, %d admitted: want some of both", refused, admitted)
	}
	l.control.window = 100
	opening := l.gate.opening()
	l.Memory = memory.NewBudget(mib)
	l.Memory.Open("stuck", memory.Stream, nil).Reserve(mib / 16 * 15)
	l.Memory.Open("other", memory.Stream, nil)
	if _, err := l.TryAdmit("stuck"); !errors.Is(err, memory.ErrTight) || l.gate.opening() != opening {
		t.Errorf("a stream of an owner that cannot be reset: %v, and %g are counted as being opened, want %g", err, l.gate.opening(), opening)
	}
}
