package hbone

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// PoolKey says who may share a session: nobody with another source identity,
// other expected peers, another address or another workload at that address.
type PoolKey struct {
	Source   string // SPIFFE ID of the caller
	Expected string // SPIFFE IDs that may answer, in a stable order
	Address  string // ip:port dialled, or the authority asked for through a gateway
	UID      string // the workload behind Address, or the gateway
	Through  string // the gateway whose stream carries the session; empty on a connection
}

// PoolConfig holds the limits of a pool; zero fields take their defaults.
type PoolConfig struct {
	MaxStreams  int           // per session, whatever the peer allows; default 100
	IdleTimeout time.Duration // sessions without streams live this long; default 5 min
	DialTimeout time.Duration // bounds one dial, which callers share; default 15 s
	// ExpiresAt returns until when the session's certificates, own and peer's,
	// are valid; zero means unknown. Default: the peer's certificate.
	ExpiresAt func(PoolKey, *Session) time.Time
}

func (c PoolConfig) withDefaults() PoolConfig {
	setInt(&c.MaxStreams, 100)
	setDuration(&c.IdleTimeout, 5*time.Minute)
	setDuration(&c.DialTimeout, 15*time.Second)
	if c.ExpiresAt == nil {
		c.ExpiresAt = func(_ PoolKey, s *Session) time.Time { return s.Peer().NotAfter }
	}
	return c
}

// Dial opens a session for a pool. It must honour ctx.
type Dial = func(ctx context.Context) (*Session, error)

// Pool shares client sessions. All methods are safe for concurrent use. One dial
// per key is in flight at a time and everybody who needs it waits for it; a
// session that is full stays in use and another one is opened beside it. A
// session that carries bulk is passed over while there is another one, so that
// small messages do not wait behind it; if there is none, one more is opened.
type Pool struct {
	cfg PoolConfig

	mu     sync.Mutex
	closed bool
	keys   map[PoolKey]*poolEntry
	stats  PoolStats
	sweep  *time.Timer
}

// poolEntry is guarded by the pool's mu.
type poolEntry struct {
	sessions []*pooled
	dial     *dialing
	calmless time.Time // when a dial for a session without bulk has failed
}

const (
	// calmSessions is how many sessions of a key are opened to have one without
	// bulk. calmWait is how long a stream waits for that: two round trips of a
	// long path, once; after that it goes on beside the bulk. After a failure
	// none is tried for calmPause.
	calmSessions = 2
	calmWait     = 300 * time.Millisecond
	calmPause    = 5 * time.Second
)

type pooled struct {
	s       *Session
	expires time.Time
}

// dialing is a dial in flight. err is set before done is closed.
type dialing struct {
	done chan struct{}
	s    *Session
	err  error
	gone bool // retired meanwhile, guarded by the pool's mu
}

// PoolStats counts since the pool was made; Sessions and Streams are of now.
type PoolStats struct {
	Keys, Sessions, Streams                     int
	Dials, DialErrors, Reused, Retired, Retried uint64
}

// NewPool returns an empty pool. Close it.
func NewPool(cfg PoolConfig) *Pool {
	return &Pool{cfg: cfg.withDefaults(), keys: make(map[PoolKey]*poolEntry)}
}

// Open opens a stream on a pooled session of key. See Use.
func (p *Pool) Open(ctx context.Context, key PoolKey, dial Dial, req *Request) (st *Stream, resp *Response, err error) {
	err = p.Use(ctx, key, dial, func(s *Session) error {
		st, resp, err = s.Open(ctx, req)
		return err
	})
	return st, resp, err
}

// Use has open open a stream on a session of key, dialling one if there is none
// with room. A request that was certainly not served (ErrRetryable) is tried
// once more, on a fresh session: the pooled one may have been dead for a while.
func (p *Pool) Use(ctx context.Context, key PoolKey, dial Dial, open func(*Session) error) error {
	fresh := false
	for {
		s, dialled, err := p.session(ctx, key, dial, fresh)
		if err != nil {
			return err
		}
		err = open(s)
		switch {
		case errors.Is(err, ErrSessionFull) && !dialled:
			continue // somebody took the last stream meanwhile
		case errors.Is(err, ErrRetryable) && !errors.Is(err, ErrSettingsTimeout) && !dialled && !fresh:
			fresh = true
			p.drop(key, s)
			continue
		}
		return err
	}
}

// session returns a session with room, and whether it was dialled for this call.
func (p *Pool) session(ctx context.Context, key PoolKey, dial Dial, fresh bool) (*Session, bool, error) {
	for choosy := true; ; choosy = false {
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			return nil, false, ErrPoolClosed
		}
		e := p.keys[key]
		if e == nil {
			e = &poolEntry{}
			p.keys[key] = e
		}
		s, calm := p.pick(e)
		if fresh {
			s = nil
		}
		if s != nil && (calm || !choosy || !e.wantsCalm()) {
			p.stats.Reused++
			p.mu.Unlock()
			return s, false, nil
		}
		mine := e.dial == nil
		if mine {
			e.dial = &dialing{done: make(chan struct{})}
			p.stats.Dials++
			go p.dial(context.WithoutCancel(ctx), key, e, e.dial, dial)
		}
		d := e.dial
		p.mu.Unlock()
		if s != nil {
			if s = p.awaitCalm(ctx, e, d, s); s != nil {
				return s, false, nil
			}
			continue
		}
		select {
		case <-d.done:
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		}
		if d.err != nil {
			return nil, false, d.err
		}
		if mine || fresh {
			return d.s, true, nil
		}
	}
}

// wantsCalm reports whether a session without bulk is worth a dial.
func (e *poolEntry) wantsCalm() bool {
	return len(e.sessions) < calmSessions && time.Since(e.calmless) >= calmPause
}

// awaitCalm waits for d, which is to bring a session without bulk. It returns s,
// the one that there is, if that fails or takes too long, and nil otherwise.
func (p *Pool) awaitCalm(ctx context.Context, e *poolEntry, d *dialing, s *Session) *Session {
	timer := time.NewTimer(calmWait)
	defer timer.Stop()
	select {
	case <-d.done:
		if d.err == nil {
			return nil
		}
		p.mu.Lock()
		e.calmless = time.Now()
		p.mu.Unlock()
	case <-timer.C:
	case <-ctx.Done():
	}
	return s
}

// dial runs one dial for everybody who waits for it.
func (p *Pool) dial(ctx context.Context, key PoolKey, e *poolEntry, d *dialing, dial Dial) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.DialTimeout, fmt.Errorf("hbone: dial took more than %v", p.cfg.DialTimeout))
	defer cancel()
	d.s, d.err = dial(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	defer close(d.done)
	e.dial = nil
	if d.err != nil {
		p.stats.DialErrors++
		p.forgetEmpty(key, e)
		return
	}
	if p.closed || d.gone {
		// Whoever waits may still use it, nobody else will.
		time.AfterFunc(p.cfg.DialTimeout, d.s.CloseWhenIdle)
		p.forgetEmpty(key, e)
		return
	}
	e.sessions = append(e.sessions, &pooled{s: d.s, expires: p.cfg.ExpiresAt(key, d.s)})
	p.keys[key] = e
	if p.sweep == nil {
		p.sweep = time.AfterFunc(p.sweepEvery(), p.sweepNow)
	}
}

// pick returns a usable session of e, one without bulk if there is one, retiring
// those that are past use.
func (p *Pool) pick(e *poolEntry) (found *Session, calm bool) {
	now := time.Now()
	keep := e.sessions[:0]
	for _, ps := range e.sessions {
		if ps.past(now) {
			p.retire(ps)
			continue
		}
		keep = append(keep, ps)
		if calm {
			continue
		}
		if free, bulk := ps.s.room(p.cfg.MaxStreams, now); free && (found == nil || !bulk) {
			found, calm = ps.s, !bulk
		}
	}
	clear(e.sessions[len(keep):])
	e.sessions = keep
	return found, calm
}

// past reports whether no new stream may go on the session, ever.
func (ps *pooled) past(now time.Time) bool {
	return ps.s.retired() || !ps.expires.IsZero() && !now.Before(ps.expires)
}

func (p *Pool) retire(ps *pooled) {
	p.stats.Retired++
	go ps.s.CloseWhenIdle()
}

func (p *Pool) forgetEmpty(key PoolKey, e *poolEntry) {
	if len(e.sessions) == 0 && e.dial == nil && p.keys[key] == e {
		delete(p.keys, key)
	}
}

// drop takes s, on which a request was not served, out of the pool.
func (p *Pool) drop(key PoolKey, s *Session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.Retried++
	e := p.keys[key]
	if e == nil {
		return
	}
	for i, ps := range e.sessions {
		if ps.s == s {
			e.sessions = slices.Delete(e.sessions, i, i+1)
			p.retire(ps)
			break
		}
	}
	p.forgetEmpty(key, e)
}

// Retire lets no new stream onto the sessions whose key matches; they close when
// their last stream ends.
func (p *Pool) Retire(match func(PoolKey) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, e := range p.keys {
		if !match(key) {
			continue
		}
		for _, ps := range e.sessions {
			p.retire(ps)
		}
		e.sessions = nil
		if e.dial != nil {
			e.dial.gone = true
			e.dial = nil
		}
		delete(p.keys, key)
	}
}

// Close retires everything and opens nothing any more. Open streams live on.
func (p *Pool) Close() {
	p.Retire(func(PoolKey) bool { return true })
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.sweep != nil {
		p.sweep.Stop()
		p.sweep = nil
	}
}

// Stats returns the counters.
func (p *Pool) Stats() PoolStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	stats := p.stats
	stats.Keys = len(p.keys)
	for _, e := range p.keys {
		stats.Sessions += len(e.sessions)
		for _, ps := range e.sessions {
			stats.Streams += ps.s.Streams()
		}
	}
	return stats
}

func (p *Pool) sweepEvery() time.Duration { return max(p.cfg.IdleTimeout/8, time.Millisecond) }

// sweepNow retires what is idle, expired or dead, and runs again later if
// anything is left.
func (p *Pool) sweepNow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	now := time.Now()
	left := 0
	for key, e := range p.keys {
		e.sessions = slices.DeleteFunc(e.sessions, func(ps *pooled) bool {
			out := ps.past(now) || ps.s.idleFor(now) >= p.cfg.IdleTimeout
			if out {
				p.retire(ps)
			}
			return out
		})
		left += len(e.sessions)
		p.forgetEmpty(key, e)
	}
	if left == 0 {
		p.sweep = nil
		return
	}
	p.sweep.Reset(p.sweepEvery())
}
