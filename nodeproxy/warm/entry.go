package warm

import (
	"context"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/nodeproxy/warmset"
)

// entry is one set and the timer that it needs.
type entry struct {
	keeper *Keeper
	key    Key
	turns  chan struct{} // one slot for each session that is being opened in its network

	mu    sync.Mutex
	set   *warmset.Set
	timer *time.Timer
	wake  time.Time // what timer is set to; zero: it is not
	ended bool
}

func newEntry(k *Keeper, key Key) *entry {
	e := &entry{keeper: k, key: key, turns: k.turnsOf(key.Network), set: warmset.New(k.cfg.Random, k.cfg.Seed())}
	if silent := k.cfg.Silent; silent != nil {
		e.set.Avoid = func(id uint64) bool { return silent(Session{Key: key, ID: id}) }
	}
	e.set.Revise(k.cfg.Share(key), time.Now())
	e.timer = time.AfterFunc(k.cfg.Idle, e.passed)
	return e
}

// turnsOf returns the turns that the sets of network share: one that answers nothing
// holds up no other. The caller holds mu.
func (k *Keeper) turnsOf(network string) chan struct{} {
	for key, e := range k.sets {
		if key.Network == network {
			return e.turns
		}
	}
	return make(chan struct{}, k.cfg.Opening)
}

// do lets f change the set, and does what the set then wants. It returns false, and
// does nothing, if the set has ended.
func (e *entry) do(f func(now time.Time)) bool {
	now := time.Now()
	e.mu.Lock()
	if e.ended {
		e.mu.Unlock()
		return false
	}
	f(now)
	requests, over := e.set.Due(now), e.set.Ended()
	e.schedule(now)
	e.keeper.wg.Add(len(requests)) // before end can wait for them
	e.mu.Unlock()
	e.retire(over)
	for _, r := range requests {
		go e.open(r)
	}
	return true
}

// choose is Choose of the set; nearly always the set then wants nothing.
func (e *entry) choose(now time.Time, gateway string, fits func(warmset.Choice) bool) (c warmset.Choice, ok, ended bool) {
	e.mu.Lock()
	if e.ended {
		e.mu.Unlock()
		return c, false, true
	}
	c, ok = e.set.Choose(now, gateway, fits)
	next := e.set.Next(now)
	wants := !next.IsZero() && (!next.After(now) || e.wake.IsZero() || next.Before(e.wake))
	e.mu.Unlock()
	if wants {
		e.do(func(time.Time) {})
	}
	return c, ok, false
}

// schedule sets the timer; the caller holds mu. A timer that is early finds nothing
// to do, so that a set in use does not set it with each connection.
func (e *entry) schedule(now time.Time) {
	idle := e.keeper.cfg.Idle
	next := now.Add(max(idle-e.set.Unused(now), time.Millisecond))
	if due := e.set.Next(now); !due.IsZero() && due.Before(next) {
		next = due
	}
	if e.wake.IsZero() || next.Before(e.wake) {
		e.wake = next
		e.timer.Reset(max(next.Sub(now), time.Millisecond))
	}
}

// passed is what the timer does. What is known of the share may have changed by the
// passing of time alone, so it is asked for again.
func (e *entry) passed() {
	idle := func(now time.Time) bool { return e.set.Unused(now) >= e.keeper.cfg.Idle }
	if !e.endIf(idle) {
		e.do(func(now time.Time) {
			e.wake = time.Time{}
			e.set.Revise(e.keeper.cfg.Share(e.key), now)
		})
	}
}

// endIf ends the set if cond says so. Whoever finds it ended then makes another.
func (e *entry) endIf(cond func(now time.Time) bool) bool {
	k := e.keeper
	k.mu.Lock()
	e.mu.Lock()
	if e.ended || !cond(time.Now()) {
		e.mu.Unlock()
		k.mu.Unlock()
		return false
	}
	delete(k.sets, e.key)
	e.ended = true
	e.timer.Stop()
	e.set.Close()
	over := e.set.Ended()
	e.mu.Unlock()
	k.mu.Unlock()
	e.retire(over)
	return true
}

func (e *entry) retire(ids []uint64) {
	for _, id := range ids {
		e.keeper.cfg.Retire(Session{e.key, id})
	}
}

// open does what r asks for, when it is its turn.
func (e *entry) open(r warmset.Request) {
	k := e.keeper
	defer k.wg.Done()
	a, gone, err := e.opened(r)
	kept := false
	e.do(func(now time.Time) {
		if err != nil {
			e.set.Failed(r.ID, gone, now)
		} else {
			kept = e.set.Opened(r.ID, a, now)
		}
	})
	if err == nil && !kept {
		k.cfg.Retire(Session{e.key, r.ID})
	}
}

func (e *entry) opened(r warmset.Request) (a warmset.Answer, gone bool, err error) {
	k := e.keeper
	select {
	case e.turns <- struct{}{}:
	case <-k.ctx.Done():
		return a, false, k.ctx.Err()
	}
	defer func() { <-e.turns }()
	ctx, cancel := context.WithTimeout(k.ctx, k.cfg.Timeout)
	defer cancel()
	return k.cfg.Open(ctx, Session{e.key, r.ID}, r)
}
