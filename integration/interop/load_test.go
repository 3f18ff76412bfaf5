package interop

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

// load opens short connections at a fixed rate until it is stopped.
type load struct {
	cell cell
	stop chan struct{}
	wait sync.WaitGroup

	mu   sync.Mutex
	done []attempt
}

// attempt is one connection that asked for the pod's name.
type attempt struct {
	begun time.Time
	took  time.Duration
	pod   string
	err   error
}

func (a attempt) String() string {
	return fmt.Sprintf("pod %q after %v: %v", a.pod, a.took.Round(time.Millisecond), a.err)
}

// startLoad opens rate connections per second. It is stopped with the test, if
// not before.
func startLoad(t *testing.T, c cell, rate int) *load {
	l := &load{cell: c, stop: make(chan struct{})}
	l.wait.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(rate))
		defer tick.Stop()
		for {
			select {
			case <-l.stop:
				return
			case <-tick.C:
				l.wait.Go(l.once)
			}
		}
	})
	t.Cleanup(l.end)
	return l
}

func (l *load) once() {
	a := attempt{begun: time.Now()}
	a.pod, a.err = here.who(l.cell)
	if a.err == nil && a.pod == "" {
		a.err = fmt.Errorf("ended without a byte")
	}
	a.took = time.Since(a.begun)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done = append(l.done, a)
}

// end stops the load and waits for the connections that are under way.
func (l *load) end() {
	l.mu.Lock()
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	l.mu.Unlock()
	l.wait.Wait()
}

// between are the attempts that began in [from, to), in that order.
func (l *load) between(from, to time.Time) (all, lost []attempt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.done {
		if !a.begun.Before(from) && a.begun.Before(to) {
			all = append(all, a)
			if a.err != nil {
				lost = append(lost, a)
			}
		}
	}
	for _, s := range [][]attempt{all, lost} {
		slices.SortFunc(s, func(a, b attempt) int { return a.begun.Compare(b.begun) })
	}
	return all, lost
}
