//go:build linux

package wan

import (
	"fmt"
	"sync"
	"time"
)

// crowd is the outcome of many connections.
type crowd struct {
	places map[int]int // connections that each place answered
	took   []time.Duration
	errs   []error
}

// many makes n connections, some at a time, each with size more bytes both ways.
func (w *world) many(p path, n, atATime, size int) crowd {
	c := crowd{places: map[int]int{}}
	var mu sync.Mutex
	var all sync.WaitGroup
	turns := make(chan int)
	for range atATime {
		all.Go(func() {
			for i := range turns {
				begin := time.Now()
				place, err := w.ask(p, size)
				took := time.Since(begin)
				mu.Lock()
				if err != nil {
					c.errs = append(c.errs, fmt.Errorf("connection %d, after %v: %w", i, took.Round(time.Millisecond), err))
				} else {
					c.places[place]++
					c.took = append(c.took, took)
				}
				mu.Unlock()
			}
		})
	}
	for i := range n {
		turns <- i
	}
	close(turns)
	all.Wait()
	return c
}
