//go:build linux

package wan

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// attempt is what became of one connection.
type attempt struct {
	begun time.Time
	took  time.Duration
	place int // that answered
	err   error
}

// crowd is the outcome of many connections, in the order of their begin.
type crowd []attempt

// many makes n connections, some at a time, each with size more bytes both ways.
func (w *world) many(p path, n, atATime, size int) crowd {
	free := make(chan struct{}, atATime)
	return w.crowd(p, n, size, func() func() {
		free <- struct{}{}
		return func() { <-free }
	})
}

// steady begins a connection every so often, whatever becomes of the others.
func (w *world) steady(p path, every, during time.Duration) crowd {
	tick := time.NewTicker(every)
	defer tick.Stop()
	return w.crowd(p, int(during/every), 0, func() func() {
		<-tick.C
		return func() {}
	})
}

// crowd makes n connections; each begins when turn returns, and calls what that
// returned at its end.
func (w *world) crowd(p path, n, size int, turn func() func()) crowd {
	c := make(crowd, n)
	var all sync.WaitGroup
	for i := range c {
		end := turn()
		all.Go(func() {
			defer end()
			begun := time.Now()
			place, err := w.ask(p, size)
			c[i] = attempt{begun, time.Since(begun), place, err}
		})
	}
	all.Wait()
	return c
}

// places are how many connections each place answered.
func (c crowd) places() map[int]int {
	n := map[int]int{}
	for _, a := range c {
		if a.err == nil {
			n[a.place]++
		}
	}
	return n
}

// failed are those that failed, and the others.
func (c crowd) failed() (failed, well crowd) {
	for _, a := range c {
		if a.err != nil {
			failed = append(failed, a)
		} else {
			well = append(well, a)
		}
	}
	return failed, well
}

// errs are some of the errors, with the time from an instant on.
func (c crowd) errs(from time.Time) (errs []error) {
	failed, _ := c.failed()
	for i, a := range failed {
		if i == 5 {
			return append(errs, fmt.Errorf("... %d more", len(failed)-i))
		}
		errs = append(errs, fmt.Errorf("begun after %v, %v later: %w", a.begun.Sub(from).Round(time.Millisecond), a.took.Round(time.Millisecond), a.err))
	}
	return errs
}

func (c crowd) String() string {
	failed, well := c.failed()
	if len(well) == 0 {
		return fmt.Sprintf("all of %d failed", len(failed))
	}
	var took []time.Duration
	for _, a := range well {
		took = append(took, a.took.Round(time.Millisecond))
	}
	return fmt.Sprintf("%d connections (%d failed) took %v (longest %v) and went to %v", len(c), len(failed), median(took), slices.Max(took), c.places())
}

// begunBetween are those that began in an interval from an instant on.
func (c crowd) begunBetween(from time.Time, low, high time.Duration) (some crowd) {
	for _, a := range c {
		if d := a.begun.Sub(from); d >= low && d < high {
			some = append(some, a)
		}
	}
	return some
}
