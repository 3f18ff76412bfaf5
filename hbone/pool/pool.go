// Package pool shares client sessions between callers: by key, so that nobody
// rides on a session that was authenticated for another one.
//
// What always holds, when no goroutine is about to run:
//
//   - A call never fails because a session is full: it waits, as long as its
//     context allows, for a stream to end or for another session. It fails at once
//     if haltedSessions sessions, and no others, are halted and none is dialled.
//   - While a call waits no session of its key that it may use has a free stream,
//     and at least one dial of the key is in flight. (One that finds only sessions
//     with bulk, or crowded ones, waits uncongestedWait at most for another one.)
//   - Streams are given out in the order in which calls came. Nothing is reserved:
//     a call that finds the last stream taken goes back to its place.
//   - Of one key at most dialsAtOnce dials are in flight, and no more than the
//     waiting calls need; one if a session of the key is silent. A dial ends with
//     Config.DialTimeout, with Close, and with Retire if nobody waits for it.
//   - If all dials in flight have failed, all who wait get the error.
//   - A session takes no new stream once it has retired, has expired, is idle for
//     too long, or has failed to serve a request. A silent one takes none until it
//     is heard of again; it is given up when another dial is answered meanwhile.
//   - A key without session, dial and waiting call has no entry.
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
	// ErrExhausted is returned, with the cause of the context, to a call whose
	// context ended while every session of its key was full.
	ErrExhausted = errors.New("no session had a free stream in time")

	// ErrHalted is returned to a call while all sessions of its key, as many as are opened
	// for that, are halted: see hbone.Availability.
	ErrHalted = errors.New("all sessions are full of what nobody reads: what applications have asked for on them, or what they have sent; close connections that are not read, or read them")

	errNoStreams = errors.New("peer allows no streams")
)

// Key says who may share a session: nobody with another source identity, other
// expected peers, another address or another workload at that address.
type Key struct {
	Source   string // SPIFFE ID of the caller
	From     string // where it is dialled from, if that matters: the workload in whose network namespace
	Expected string // SPIFFE IDs that may answer, in a stable order
	Address  string // ip:port dialled, or the authority asked for through a gateway
	UID      string // the workload behind Address, or the gateway
	Through  string // the gateway whose stream carries the session; empty on a connection
	Bulk     bool   // for streams that are likely to carry bulk, apart from others
}

// Config holds the limits of a pool; zero fields take their defaults.
type Config struct {
	MaxStreams  int           // per session, whatever the peer allows; default 100
	IdleTimeout time.Duration // sessions without streams live this long; default 5 min
	DialTimeout time.Duration // bounds one dial, which callers share; default 15 s
	// ExpiresAt returns until when the session's certificates, own and peer's,
	// are valid; zero means unknown. Default: the peer's certificate.
	ExpiresAt func(Key, *hbone.Session) time.Time
	// Silent, if set, is called when the peer of a session becomes silent. It must not block.
	Silent func(Key)
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
	seq    uint64 // of the session that was established last
	calls  uint64 // tickets given out
	stats  Stats
	offers []offer // scratch of serve
	sweep  *time.Timer

	leaving map[*shared]struct{} // sessions that were taken out and have not closed yet
	empty   chan struct{}        // of those who wait for the last of them; nil: nobody does
}

// Stats counts since the pool was made; the first line is of now.
type Stats struct {
	Keys, Sessions, Streams, Waiting, Dialing int
	Held                                      int // bytes; see hbone.Session.Held
	Crowded, Halted                           int // sessions of which streams that nobody reads take half of the window, or all

	Dials, Dialled, DialErrors uint64 // started, answered, failed
	Adopted                    uint64 // sessions that were dialled for another key

	Reused    uint64 // calls that found a session at once
	Waited    uint64 // calls that waited for a session or for a stream
	Full      uint64 // streams that somebody else took meanwhile: the call waited
	Refused   uint64 // REFUSED_STREAM on a live session
	Retried   uint64 // requests repeated because their session went
	Retired   uint64 // sessions taken out of use
	Hedges    uint64 // dials beside a silent session
	HedgesWon uint64 // silent sessions that were given up because such a dial was answered

	Failed Failures // calls that got no session
}

// Failures counts calls that got no session, by cause.
type Failures struct {
	Halted uint64 // ErrHalted
	Full   uint64 // ErrExhausted
	Dial   uint64 // all dials that were under way failed
	Left   uint64 // the context ended before a dial did
}

// New returns an empty pool. Close it.
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

// Use has open open a stream on a session of key that has one free. It waits for
// that, or for a dial, as long as ctx allows. A request that was certainly not
// served (hbone.ErrRetryable) is tried once more, on a session that was
// established later: the pooled one may have been dead for a while. open may be
// called several times, one after the other.
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
	ticket  uint64 // the order of calls; 0: not yet known to the pool
	since   uint64 // sessions with a higher seq were established for this call
	after   uint64 // sessions up to this seq are not wanted
	retried bool
	waited  bool // for a better session than there was, once
	blind   bool // the session was lent before its peer's limit was known
}

// acquire returns a session for c, to be given back by release.
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

// wait waits for what serve gives to w. Whoever waits serves everybody.
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

// leave takes w, whose context has ended, out of the queue, unless it has been
// served meanwhile.
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

// release takes in how a request on sh ended, and says whether c is to try again.
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

// again decides about a request that failed.
func (p *Pool) again(sh *shared, c *call, err error) bool {
	if errors.Is(err, hbone.ErrSessionFull) {
		p.stats.Full++
		return true // somebody took the last stream meanwhile
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
		return false // a new one, whose peer has refused it
	}
	p.stats.Retried++
	c.retried, c.after = true, sh.gone
	return true
}

// Retire lets no new stream onto the sessions whose key matches; they close when
// their last stream ends. Calls that wait now are still served.
func (p *Pool) Retire(match func(Key) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, e := range p.keys {
		if match(key) {
			p.retire(e)
		}
	}
}

// Serves reports whether there is a session of key that may take new streams.
func (p *Pool) Serves(key Key) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, now := p.keys[key], time.Now()
	return e != nil && slices.ContainsFunc(e.sessions, func(sh *shared) bool { return !p.past(sh, sh.s.Availability(now), now) })
}

// Sessions lists the sessions, also those that take no new stream and have not ended yet, with their keys.
func (p *Pool) Sessions() iter.Seq2[Key, *hbone.Session] {
	return func(yield func(Key, *hbone.Session) bool) {
		for _, sh := range p.all() {
			if !yield(sh.e.key, sh.s) {
				return
			}
		}
	}
}

// Silent reports whether there are sessions of key, and all of them are silent ([hbone.Session.Silent]).
func (p *Pool) Silent(key Key) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.keys[key]
	return e != nil && len(e.sessions) > 0 && !e.isFull()
}

// RetireKey is Retire of one key.
func (p *Pool) RetireKey(key Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.keys[key]; e != nil {
		p.retire(e)
	}
}

// retire lets nobody find e any more, and has it end; the caller holds mu.
func (p *Pool) retire(e *entry) {
	delete(p.keys, e.key)
	e.detached = true
	for len(e.sessions) > 0 {
		p.take(e, e.sessions[0])
	}
	p.serve(e)
}

// Close retires everything, ends the dials in flight and fails the calls that wait
// with ErrClosed. Open streams live on.
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

// Wait returns when every session that was taken out has closed, all that was
// written through it with it, or ctx has ended. It is called after Close, by a process
// that is about to exit.
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

// left notes that sh, which was taken out, has closed.
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

// sweepNow retires what is idle, expired or dead, and runs again later if
// anything is left.
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
