// Package pool shares client sessions between callers by key, so that no caller
// uses a session that was authenticated for another one.
//
// Invariants, while no goroutine is about to run:
//
//   - A call never fails because a session is full. It waits, as long as its
//     context allows, for a stream to close or for another session. It fails
//     without waiting if haltedSessions sessions, and no others, are halted and no
//     dial is in flight.
//   - While a call waits, no session of its key that it may use has a free stream.
//     At least one dial of the key is in flight. (A call that finds only sessions
//     with bulk, or crowded ones, waits at most uncongestedWait for another one.)
//   - Streams are assigned in the order of calls. They are not reserved: a call
//     whose stream was taken by another caller goes back to its place.
//   - A key has at most dialsAtOnce dials in flight, and no more than the waiting
//     calls need. It has at most one if a session of the key is silent. A dial
//     stops after Config.DialTimeout, on Close, and on Retire if no call waits.
//   - If all dials in flight have failed, all waiting calls get the error.
//   - A session takes no new stream once it has retired, has expired, was idle for
//     too long, or has failed to serve a request. A silent session takes none until
//     its peer sends again. It is closed if another dial succeeds first.
//   - A key without sessions, dials and waiting calls has no entry.
package pool

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"github.com/isthmus-mesh/isthmus/hbone"
)

var (
	// ErrClosed is returned by a pool after Close.
	ErrClosed = errors.New("pool closed")
	// ErrExhausted is returned, with the cause of the context, if the context is done while every
	// session of the key is full.
	ErrExhausted = errors.New("no session had a free stream in time")

	// ErrHalted is returned while haltedSessions sessions of the key, and no others, are halted:
	// see hbone.Availability.
	ErrHalted = errors.New("all sessions are full of unread data, received or sent by their applications: read from the connections, or close those that are not read")

	errNoStreams = errors.New("peer allows no streams")
)

// Key identifies the callers that may share a session. They have the same source identity, expected
// peers and address, and the same workload at that address.
type Key struct {
	Source   string // SPIFFE ID of the caller
	From     string // UID of the workload to dial from, in its network namespace; empty: this process
	Expected string // SPIFFE IDs accepted from the peer, in a stable order
	Address  string // ip:port dialed, or the authority requested through a gateway
	UID      string // the workload behind Address, or the gateway
	Through  string // the gateway with the stream that carries the session; empty on a connection
	Bulk     bool   // for streams likely to carry bulk, separate from others
}

// Config holds the limits of a pool; zero fields take their defaults.
type Config struct {
	MaxStreams  int           // per session, whatever the peer allows; default 100
	IdleTimeout time.Duration // sessions without streams close after this; default 5 min
	DialTimeout time.Duration // bounds one dial, which callers share; default 15 s
	// ExpiresAt returns when the first of the session's certificates, local and peer's,
	// expires; zero means unknown. Default: the peer's certificate.
	ExpiresAt func(Key, *hbone.Session) time.Time
	// Silent, if set, is called when the peer of a session becomes silent. It must not block.
	Silent func(Key, *hbone.Session)
}

func (c Config) withDefaults() Config {
	if c.MaxStreams == 0 {
		c.MaxStreams = 100
	}
	if c.IdleTimeout == 0 {
		c.IdleTimeout = 5 * time.Minute
	}
	if c.DialTimeout == 0 {
		c.DialTimeout = 15 * time.Second
	}
	if c.ExpiresAt == nil {
		c.ExpiresAt = func(_ Key, s *hbone.Session) time.Time { return s.Peer().NotAfter }
	}
	return c
}

// Dial opens a session for a pool. It must honour ctx.
type Dial = func(ctx context.Context) (*hbone.Session, error)

// Pool shares client sessions. All methods are safe for concurrent use.
type Pool struct {
	cfg Config

	mu     sync.Mutex
	closed bool
	keys   map[Key]*entry
	seq    uint64 // of the last established session
	calls  uint64 // last ticket
	stats  Stats
	offers []offer // scratch of serve
	sweep  *time.Timer

	leaving map[*shared]struct{} // sessions taken out of use and not closed yet
	empty   chan struct{}        // closed when leaving is empty; nil if Wait was not called
}

// Stats counts since the pool was created. The first three lines are current values.
type Stats struct {
	Keys, Sessions, Streams, Waiting, Dialing int
	Held                                      int // bytes; see hbone.Session.Held
	Crowded, Halted                           int // sessions with half of their window, or all, taken by unread streams

	Dials, Dialled, DialErrors uint64 // started, answered, failed
	Adopted                    uint64 // sessions dialed for another key

	Reused    uint64 // calls that found a session without waiting
	Waited    uint64 // calls that waited for a session or for a stream
	Full      uint64 // streams that another caller took first; the call waited
	Refused   uint64 // REFUSED_STREAM on a live session
	Retried   uint64 // requests repeated because their session failed
	Retired   uint64 // sessions taken out of use
	Hedges    uint64 // dials beside a silent session
	HedgesWon uint64 // silent sessions closed because such a dial succeeded

	Failed Failures // calls that got no session
}

// Failures counts calls that got no session, by cause.
type Failures struct {
	Halted uint64 // ErrHalted
	Full   uint64 // ErrExhausted
	Dial   uint64 // all dials in flight failed
	Left   uint64 // the context was done before a dial
}

// New returns an empty pool. The caller must Close it.
func New(cfg Config) *Pool {
	return &Pool{cfg: cfg.withDefaults(), keys: make(map[Key]*entry), leaving: make(map[*shared]struct{})}
}

// Open opens a stream on a pooled session of key. See Use.
func (p *Pool) Open(ctx context.Context, key Key, dial Dial, req *hbone.Request) (st *hbone.Stream, resp *hbone.Response, err error) {
	err = p.Use(ctx, key, dial, func(s *hbone.Session) error {
		st, resp, err = s.Open(ctx, req)
		return err
	})
	return st, resp, err
}

// Use calls open with a session of key that has a free stream. It waits for one, or for a dial, as
// long as ctx allows. A request that was certainly not served (hbone.ErrRetryable) is tried once
// more on a session that was established later. The pooled one may have been dead for a while.
// open may be called several times, sequentially.
func (p *Pool) Use(ctx context.Context, key Key, dial Dial, open func(*hbone.Session) error) error {
	c := call{ctx: ctx, dial: dial}
	for {
		sh, err := p.acquire(key, &c)
		if err != nil {
			return err
		}
		err = open(sh.s)
		if !p.release(sh, &c, err) {
			return err
		}
	}
}

// call is one Use.
type call struct {
	ctx     context.Context
	dial    Dial
	ticket  uint64 // order of calls; 0 until the pool assigns it
	since   uint64 // sessions with a higher seq were established for this call
	after   uint64 // only sessions with a higher seq are used
	retried bool
	waited  bool // has waited once for a better session
	blind   bool // the session was assigned before its peer's limit was known
}

// acquire returns a session for c. Return it with release.
func (p *Pool) acquire(key Key, c *call) (*shared, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, ErrClosed
	}
	if c.ticket == 0 {
		p.calls++
		c.ticket, c.since = p.calls, p.seq
	}
	e := p.keys[key]
	if e == nil {
		e = newEntry(key)
		p.keys[key] = e
	}
	now := time.Now()
	spare := false
	if len(e.waiters) == 0 {
		sh, r := p.choose(e, c.after, now)
		spare = r > rankClear && !c.waited && e.wantsBetter(r, now)
		if sh != nil && !spare {
			p.stats.Reused++
			e.lend(sh, c)
			p.mu.Unlock()
			return sh, nil
		}
	}
	w := e.enqueue(c, spare)
	p.stats.Waited++
	p.serve(e)
	p.mu.Unlock()
	return p.wait(e, w, spare)
}

// wait waits until serve assigns a session to w. Each waiting call serves all of them.
func (p *Pool) wait(e *entry, w *waiter, spare bool) (*shared, error) {
	var patience <-chan time.Time
	if spare {
		timer := time.NewTimer(uncongestedWait)
		defer timer.Stop()
		patience = timer.C
	}
	for {
		select {
		case <-w.done:
			return w.got, w.err
		case <-e.changed:
			p.mu.Lock()
		case <-patience:
			p.mu.Lock()
			w.spare = false
		case <-w.call.ctx.Done():
			return p.leave(e, w)
		}
		p.serve(e)
		p.mu.Unlock()
	}
}

// leave removes w from the queue after its context is done, unless it was served first.
func (p *Pool) leave(e *entry, w *waiter) (*shared, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.got != nil || w.err != nil {
		return w.got, w.err
	}
	e.remove(w)
	err := context.Cause(w.call.ctx)
	if e.isFull() {
		err = errors.Join(ErrExhausted, err)
		p.stats.Failed.Full++
	} else {
		p.stats.Failed.Left++
	}
	p.serve(e)
	return nil, err
}

// release records the result of a request on sh, and reports whether c is to try again.
func (p *Pool) release(sh *shared, c *call, err error) (again bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := sh.e
	if e.opening--; e.opening == 0 {
		e.last = call{}
	}
	if sh.opening--; sh.opening == 0 && sh.out {
		p.end(sh)
	}
	again = err != nil && p.again(sh, c, err)
	p.settle(e)
	return again
}

// again reports whether a failed request is to be tried again.
func (p *Pool) again(sh *shared, c *call, err error) bool {
	if errors.Is(err, hbone.ErrSessionFull) {
		p.stats.Full++
		return true // another caller took the last stream first
	}
	if !errors.Is(err, hbone.ErrRetryable) || errors.Is(err, hbone.ErrSettingsTimeout) {
		return false
	}
	a := sh.s.Availability(time.Now())
	if !a.Retired {
		p.stats.Refused++
		if c.blind || a.Free(p.cfg.MaxStreams) == 0 {
			return true // it was sent before the peer's limit was known
		}
		again := !c.retried
		c.retried, c.after = true, p.seq
		return again
	}
	p.take(sh.e, sh)
	var away *hbone.GoAwayError
	atLimit := errors.As(err, &away) && away.Code == http2.ErrCodeEnhanceYourCalm
	if c.retried || sh.seq > c.since && (!a.SettingsReceived || atLimit) {
		return false // a new session, refused by its peer
	}
	p.stats.Retried++
	c.retried, c.after = true, sh.gone
	return true
}

// Retire stops new streams on the sessions with a matching key. They close after their last stream.
// Calls that already wait are still served.
func (p *Pool) Retire(match func(Key) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, e := range p.keys {
		if match(key) {
			p.retire(e)
		}
	}
}

// Serves reports whether a session of key may take new streams.
func (p *Pool) Serves(key Key) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, now := p.keys[key], time.Now()
	return e != nil && slices.ContainsFunc(e.sessions, func(sh *shared) bool { return !p.past(sh, sh.s.Availability(now), now) })
}

// Sessions lists the sessions with their keys, also those that take no new stream and are not closed
// yet.
func (p *Pool) Sessions() iter.Seq2[Key, *hbone.Session] {
	return func(yield func(Key, *hbone.Session) bool) {
		for _, sh := range p.all() {
			if !yield(sh.e.key, sh.s) {
				return
			}
		}
	}
}

// Silent reports whether key has sessions and all of them are silent ([hbone.Session.Silent]).
func (p *Pool) Silent(key Key) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.keys[key]
	return e != nil && len(e.sessions) > 0 && !e.isFull()
}

// RetireKey is Retire for one key.
func (p *Pool) RetireKey(key Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.keys[key]; e != nil {
		p.retire(e)
	}
}

// retire removes e from the pool and takes its sessions out of use. The caller holds mu.
func (p *Pool) retire(e *entry) {
	delete(p.keys, e.key)
	e.detached = true
	for len(e.sessions) > 0 {
		p.take(e, e.sessions[0])
	}
	p.serve(e)
}

// Close retires all sessions, stops the dials in flight and fails waiting calls with ErrClosed. Open
// streams stay open.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	for _, e := range p.keys {
		e.fail(ErrClosed)
	}
	if p.sweep != nil {
		p.sweep.Stop()
		p.sweep = nil
	}
	p.mu.Unlock()
	p.Retire(func(Key) bool { return true })
}

// Wait returns when every session taken out of use has closed, with all its data written, or when
// ctx is done. A process calls it after Close, before it exits.
func (p *Pool) Wait(ctx context.Context) {
	p.mu.Lock()
	if len(p.leaving) > 0 && p.empty == nil {
		p.empty = make(chan struct{})
	}
	empty := p.empty
	p.mu.Unlock()
	if empty == nil {
		return
	}
	select {
	case <-empty:
	case <-ctx.Done():
	}
}

// left records that sh, which was taken out of use, has closed.
func (p *Pool) left(sh *shared) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if delete(p.leaving, sh); len(p.leaving) == 0 && p.empty != nil {
		close(p.empty)
		p.empty = nil
	}
}

// Stats returns the counters.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	stats := p.stats
	stats.Keys = len(p.keys)
	now := time.Now()
	for _, e := range p.keys {
		stats.Sessions += len(e.sessions)
		stats.Waiting += len(e.waiters)
		stats.Dialing += len(e.dials)
		for _, sh := range e.sessions {
			stats.Streams += sh.s.Streams()
			stats.Held += sh.s.Held()
			switch rankOf(sh.s.Availability(now)) {
			case rankHalted:
				stats.Halted++
			case rankCrowded:
				stats.Crowded++
			}
		}
	}
	return stats
}

func (p *Pool) sweepEvery() time.Duration { return max(p.cfg.IdleTimeout/8, time.Millisecond) }

// sweepNow retires idle, expired and dead sessions, and schedules itself again while keys are left.
func (p *Pool) sweepNow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	for _, e := range p.keys {
		p.serve(e)
	}
	if len(p.keys) == 0 {
		p.sweep = nil
		return
	}
	p.sweep.Reset(p.sweepEvery())
}
