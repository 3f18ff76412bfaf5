package meshtest

import (
	"sync/atomic"
	"time"
)

// Lateness watches how late timers of this process fire, which is what a busy machine does to all that a test measures.
type Lateness struct {
	most    atomic.Int64 // nanoseconds
	stop    chan struct{}
	stopped chan struct{}
}

// WatchLateness begins to watch, each millisecond, until [Lateness.Stop].
func WatchLateness() *Lateness {
	l := &Lateness{stop: make(chan struct{}), stopped: make(chan struct{})}
	go func() {
		defer close(l.stopped)
		const every = time.Millisecond
		timer := time.NewTimer(every)
		defer timer.Stop()
		for due := time.Now().Add(every); ; {
			select {
			case <-l.stop:
				return
			case <-timer.C:
			}
			now := time.Now()
			l.most.Store(max(l.most.Load(), int64(now.Sub(due))))
			due = now.Add(every)
			timer.Reset(every)
		}
	}()
	return l
}

// Stop ends the watch and returns how late a timer was at most.
func (l *Lateness) Stop() time.Duration {
	close(l.stop)
	<-l.stopped
	return time.Duration(l.most.Load())
}
