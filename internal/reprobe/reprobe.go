// Package reprobe keeps asking a thing that failed whether it answers again,
// so that an ejection lasts as long as the fault and not as long as a timer.
// It knows nothing about what it probes.
//
// Every series of questions ends: with the answer, when its key is no longer
// retained, or with the Prober's context. However many keys are asked, there are
// at most Schedule.Concurrent questions at once, and pauses grow so that all keys
// together are asked about once per Schedule.Spacing, and, with a Schedule.Bound,
// with the time that a key has failed.
package reprobe

import (
	"context"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/backoff"
)

// Schedule says how often a failed thing is asked.
type Schedule struct {
	// First is the pause before the second question; the first is put at once.
	First time.Duration
	// Limit is the longest pause; pauses double up to it.
	Limit time.Duration
	// Bound is the longest pause of a series that has lasted for long: pauses grow
	// beyond Limit with it, as in [backoff.Backoff]. Zero: they do not.
	Bound time.Duration
	// Least is the least time between two questions, however often Watch and Restart
	// ask for one. Zero: there is none.
	Least time.Duration
	// Timeout bounds one question.
	Timeout time.Duration
	// Spacing bounds how often all keys together are asked again: with n series no
	// pause is shorter than n·Spacing/2, whatever Limit says. Default 5 ms.
	Spacing time.Duration
	// Concurrent is how many questions may be under way at once; the others wait
	// for their turn. Default 64.
	Concurrent int
}

// Prober runs at most one series of questions per key. Safe for concurrent use.
type Prober[K comparable] struct {
	schedule Schedule
	ctx      context.Context // ends every series; set once by New
	turns    chan struct{}   // one slot per question under way
	wg       sync.WaitGroup

	mu     sync.Mutex
	series map[K]*series
}

// series is the questions of one key.
type series struct {
	ctx    context.Context
	cancel context.CancelFunc
	kick   chan struct{} // one slot: a send asks for the next question now

	// Prober.mu guards these.
	fresh bool      // Restart was called since the last question began
	by    time.Time // when the next question is due at the latest; zero: see the schedule
}

// New returns a Prober whose series all end with ctx. The owner calls Wait.
func New[K comparable](ctx context.Context, s Schedule) *Prober[K] {
	if s.Spacing <= 0 {
		s.Spacing = 5 * time.Millisecond
	}
	if s.Concurrent <= 0 {
		s.Concurrent = 64
	}
	return &Prober[K]{schedule: s, ctx: ctx, turns: make(chan struct{}, s.Concurrent), series: map[K]*series{}}
}

// Watch asks at once and then again and again until done returns true for an
// answer, k is no longer retained, or the Prober's context ends. If a series for
// k runs already it only asks for the next question now. ask must return when its
// context ends. done is called after every question with what ask returned and
// decides whether the series is over.
func (p *Prober[K]) Watch(k K, ask func(context.Context) error, done func(err error) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s, ok := p.series[k]; ok {
		s.hurry()
		return
	}
	if p.ctx.Err() != nil {
		return
	}
	s := &series{kick: make(chan struct{}, 1)}
	s.ctx, s.cancel = context.WithCancel(p.ctx)
	p.series[k] = s
	p.wg.Go(func() {
		defer s.cancel()
		p.run(k, s, ask, done)
	})
}

// hurry asks for the next question now.
func (s *series) hurry() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// Restart begins the series of k, if there is one, anew: somebody else has seen it
// work. It is asked now, and, if it does not answer, as often as at the start.
func (p *Prober[K]) Restart(k K) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.restart(p.series[k])
}

// RestartAll is Restart for each key that matches.
func (p *Prober[K]) RestartAll(match func(K) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for k, s := range p.series {
		if match(k) {
			p.restart(s)
		}
	}
}

// restart begins s, unless it is nil, anew; the caller holds mu.
func (p *Prober[K]) restart(s *series) {
	if s != nil {
		s.fresh = true
		s.hurry()
	}
}

// By puts the next question of k's series no later than at, unless that is sooner than
// the schedule allows in the beginning. It is for done, and holds until the question.
func (p *Prober[K]) By(k K, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s, ok := p.series[k]; ok {
		s.by = at
	}
}

// Retain ends the series of every key that keep refuses: a question under way is
// cancelled, and done is not called any more, except for a call that has begun.
func (p *Prober[K]) Retain(keep func(K) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for k, s := range p.series {
		if !keep(k) {
			s.cancel()
			delete(p.series, k)
		}
	}
}

func (p *Prober[K]) run(k K, s *series, ask func(context.Context) error, done func(error) bool) {
	started := time.Now()
	for n := 1; ; {
		if p.begin(s) {
			n, started = 1, time.Now()
		}
		asking := time.Now()
		err, asked := p.ask(s, ask)
		switch {
		case !asked, s.ctx.Err() != nil:
			p.remove(k, s)
			return
		case done(err) && p.end(k, s):
			return
		}
		due := time.Now().Add(p.pause(s, n, time.Since(started)))
		t := time.NewTimer(time.Until(due))
		select {
		case <-s.ctx.Done():
		case <-s.kick:
			t.Reset(min(time.Until(due), time.Until(asking.Add(p.schedule.Least))))
			select {
			case <-s.ctx.Done():
			case <-t.C:
			}
		case <-t.C:
			n++
		}
		t.Stop()
	}
}

// begin notes that the next question of s begins; fresh if its series begins with it.
func (p *Prober[K]) begin(s *series) (fresh bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fresh, s.fresh, s.by = s.fresh, false, time.Time{}
	return fresh
}

// pause draws the pause before question n+1 of s, which has failed for a time.
func (p *Prober[K]) pause(s *series, n int, failing time.Duration) time.Duration {
	pauses := backoff.Backoff{First: p.schedule.First, Limit: p.schedule.Limit, Bound: p.schedule.Bound}
	p.mu.Lock()
	by := s.by
	p.mu.Unlock()
	d := p.wait(pauses.Lasting(n, failing))
	if !by.IsZero() {
		d = min(d, max(time.Until(by), p.wait(pauses.Longest(n))))
	}
	return d
}

// ask puts one question when there is a turn for it; not asked if the series
// ended before.
func (p *Prober[K]) ask(s *series, ask func(context.Context) error) (err error, asked bool) {
	select {
	case <-s.ctx.Done():
		return nil, false
	case p.turns <- struct{}{}:
	}
	defer func() { <-p.turns }()
	if s.ctx.Err() != nil {
		return nil, false
	}
	select {
	case <-s.kick: // this question comes after the request for it
	default:
	}
	ctx, cancel := context.WithTimeout(s.ctx, p.schedule.Timeout)
	defer cancel()
	return ask(ctx), true
}

// wait draws a pause evenly from [d/2, d], where d is pause or, with many series,
// what keeps to Spacing.
func (p *Prober[K]) wait(pause time.Duration) time.Duration {
	return backoff.Jitter(max(pause, time.Duration(p.Active())*p.schedule.Spacing))
}

// end forgets the series unless somebody has asked for one more question
// since the last: a failure seen while the answer was on its way is not lost.
func (p *Prober[K]) end(k K, s *series) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(s.kick) > 0 && s.ctx.Err() == nil {
		return false
	}
	if p.series[k] == s {
		delete(p.series, k)
	}
	return true
}

// remove forgets s, unless k has a newer series by now.
func (p *Prober[K]) remove(k K, s *series) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.series[k] == s {
		delete(p.series, k)
	}
}

// Active returns how many keys are being asked.
func (p *Prober[K]) Active() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.series)
}

// Wait returns when every series has ended; the context must have ended.
func (p *Prober[K]) Wait() { p.wg.Wait() }
