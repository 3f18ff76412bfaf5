// Package reprobe keeps asking a thing that failed whether it answers again,
// so that an ejection lasts as long as the fault and not as long as a timer.
// It knows nothing about what it probes.
package reprobe

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// Schedule says how often a failed thing is asked.
type Schedule struct {
	// First is the pause before the second question; the first is put at once.
	First time.Duration
	// Limit is the longest pause; pauses double up to it.
	Limit time.Duration
	// Timeout bounds one question.
	Timeout time.Duration
}

// Prober runs at most one series of questions per key. Safe for concurrent use.
type Prober[K comparable] struct {
	schedule Schedule
	ctx      context.Context // ends every series; set once by New
	wg       sync.WaitGroup

	mu     sync.Mutex
	series map[K]chan struct{} // one slot: a send asks for the next question now
}

// New returns a Prober whose series all end with ctx. The owner calls Wait.
func New[K comparable](ctx context.Context, s Schedule) *Prober[K] {
	return &Prober[K]{schedule: s, ctx: ctx, series: map[K]chan struct{}{}}
}

// Watch asks at once and then again and again until done returns true for an
// answer or the Prober's context ends. If a series for k runs already it only
// asks for the next question now. done is called after every question with
// what ask returned and decides whether the series is over.
func (p *Prober[K]) Watch(k K, ask func(context.Context) error, done func(err error) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if kick, ok := p.series[k]; ok {
		select {
		case kick <- struct{}{}:
		default:
		}
		return
	}
	if p.ctx.Err() != nil {
		return
	}
	kick := make(chan struct{}, 1)
	p.series[k] = kick
	p.wg.Go(func() { p.run(k, kick, ask, done) })
}

func (p *Prober[K]) run(k K, kick chan struct{}, ask func(context.Context) error, done func(error) bool) {
	pause := p.schedule.First
	for {
		ctx, cancel := context.WithTimeout(p.ctx, p.schedule.Timeout)
		err := ask(ctx)
		cancel()
		if (p.ctx.Err() != nil || done(err)) && p.end(k, kick) {
			return
		}
		t := time.NewTimer(pause/2 + rand.N(pause/2+1))
		select {
		case <-p.ctx.Done():
			t.Stop()
		case <-kick:
			t.Stop()
		case <-t.C:
			pause = min(2*pause, p.schedule.Limit)
		}
	}
}

// end forgets the series unless somebody has asked for one more question
// since the last: a failure seen while the answer was on its way is not lost.
func (p *Prober[K]) end(k K, kick chan struct{}) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(kick) > 0 && p.ctx.Err() == nil {
		return false
	}
	delete(p.series, k)
	return true
}

// Active returns how many keys are being asked.
func (p *Prober[K]) Active() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.series)
}

// Wait returns when every series has ended; the context must have ended.
func (p *Prober[K]) Wait() { p.wg.Wait() }
