package meshtest

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"
)

// Traffic is a steady flow of short exchanges in the background.
type Traffic struct {
	stop chan struct{}
	done sync.WaitGroup

	mu       sync.Mutex
	answered map[string]int // by pod
	failed   []Failure
	slowest  time.Duration
}

// Failure is one exchange that did not succeed.
type Failure struct {
	Begun time.Time
	Err   error
}

func (f Failure) String() string { return f.Begun.Format("15:04:05.000") + " " + f.Err.Error() }

// Flow keeps workers clients saying hello to a static listener, one connection
// each at a time, until Stop.
func Flow(t testing.TB, at netip.AddrPort, workers int) *Traffic {
	f := &Traffic{stop: make(chan struct{}), answered: map[string]int{}}
	for range workers {
		f.done.Go(func() { f.work(at) })
	}
	t.Cleanup(func() { f.end() })
	return f
}

func (f *Traffic) work(at netip.AddrPort) {
	for {
		select {
		case <-f.stop:
			return
		case <-time.After(2 * time.Millisecond):
		}
		begun := time.Now()
		pod, err := Hello(at)
		f.mu.Lock()
		f.slowest = max(f.slowest, time.Since(begun))
		if err != nil {
			f.failed = append(f.failed, Failure{begun, fmt.Errorf("after %v: %w", time.Since(begun).Round(time.Millisecond), err)})
		} else {
			f.answered[pod]++
		}
		f.mu.Unlock()
	}
}

func (f *Traffic) end() {
	select {
	case <-f.stop:
	default:
		close(f.stop)
	}
	f.done.Wait()
}

// Stop ends the flow and returns what came of it.
func (f *Traffic) Stop() (answered map[string]int, failed []Failure) {
	f.end()
	return f.answered, f.failed
}

// Slowest returns how long the slowest exchange took.
func (f *Traffic) Slowest() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.slowest
}

// Count returns how many exchanges have succeeded so far.
func (f *Traffic) Count() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, k := range f.answered {
		n += k
	}
	return n
}

// Answered returns how many exchanges a pod has answered so far.
func (f *Traffic) Answered(pod string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.answered[pod]
}

// AwaitMore waits until n more exchanges have succeeded.
func (f *Traffic) AwaitMore(t testing.TB, n int) {
	t.Helper()
	from := f.Count()
	Eventually(t, fmt.Sprintf("%d more exchanges", n), func() bool { return f.Count() >= from+n })
}
