package pool

import (
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
)

// entry is what a pool has of one key. Guarded by the pool's mu.
type entry struct {
	key      Key
	sessions []*shared     // in the order in which they were established
	waiters  []*waiter     // in the order of their calls
	changed  chan struct{} // capacity 1: a session has changed; see hbone.Session.Observe
	dials    []*dialing    // in flight
	failed   error         // of a dial, while others are in flight
	opening  int           // calls that have a session and have not given it back
	last     call          // one of those
	limit    int           // streams that the peer last allowed a session; 0: not known
	detached bool          // retired: no new calls

	// alone is when a dial for a better session than there is has failed.
	alone time.Time
}

// shared is a session in an entry.
type shared struct {
	e       *entry
	s       *hbone.Session
	seq     uint64
	expires time.Time
	lent    bool   // some call has had it: one that expires at once serves those who waited for it
	opening int    // calls that have it
	gone    uint64 // the pool's seq when it was taken out
	out     bool
	severed bool // by Sever
}

// waiter is a call that waits for a session.
type waiter struct {
	call  *call
	spare bool // it has a session with bulk, or crowded, to fall back on, and hopes for a better one
	done  chan struct{}
	got   *shared // set, or err, before done is closed
	err   error
}

// A session that carries bulk is passed over while there is another one, so that
// small messages do not wait behind it; if there is none, one more is opened.
const (
	// uncongestedSessions is how many sessions of a key are opened to have one
	// without bulk. uncongestedWait is how long a stream waits for that: two round
	// trips of a long path, once; after that it goes on beside the bulk. After a
	// failure none is tried for uncongestedPause.
	uncongestedSessions = 2
	uncongestedWait     = 300 * time.Millisecond
	uncongestedPause    = 5 * time.Second
)

// A session that is crowded by streams which nobody reads is passed over likewise, before
// they halt it, and one that is halted comes last, and is not used when that lasts: what is
// opened on it is accepted and never answered. Others are opened in their place.
const (
	// haltedAfter is how long a session has to be halted to come last. Who sends all
	// that a long path lets him has no window for a round trip.
	haltedAfter = time.Second
	// haltedForLong is how long until it is not used. A peer that reads slowly, and gives
	// the window back in large parts as stock ones do, half of 16 MiB, halts it for
	// seconds again and again: what is opened on it is answered late.
	haltedForLong = 10 * time.Second
	// haltedSessions is how many sessions of a key are opened because others are crowded or
	// halted. Together they hold 256 MiB (hbone.Config.MaxUnread), as much as a server lets
	// one identity leave unread (limits.identity.unreadBytes). When they are halted for
	// long, and there are no others, calls fail with ErrHalted.
	haltedSessions = 4
)

// rank orders sessions that can serve: the lower the better.
type rank uint8

const (
	rankClear rank = iota
	rankBulk
	rankCrowded
	rankHalted
)

func rankOf(a hbone.Availability) rank {
	switch {
	case a.Halted >= haltedAfter:
		return rankHalted
	case a.Crowded:
		return rankCrowded
	case a.Bulk:
		return rankBulk
	}
	return rankClear
}

// isHalted reports whether no stream of a session has got, or sent, anything for long.
func isHalted(a hbone.Availability) bool { return a.Halted >= haltedForLong && !a.Silent }

func newEntry(key Key) *entry { return &entry{key: key, changed: make(chan struct{}, 1)} }

// wantsBetter reports whether a better session than the best, of rank r, is worth a dial.
func (e *entry) wantsBetter(r rank, now time.Time) bool {
	most := haltedSessions
	beside := len(e.sessions)
	if r == rankBulk { // those that are halted are no better than those with bulk
		most = uncongestedSessions
		for _, sh := range e.sessions {
			if sh.s.Availability(now).Halted >= haltedAfter {
				beside--
			}
		}
	}
	return beside < most && len(e.sessions) < haltedSessions && now.Sub(e.alone) >= uncongestedPause
}

// isHalted reports whether there are as many sessions as may be halted for long, and no
// others. One that is so by the session that carries it can be replaced by one on another.
func (e *entry) isHalted(now time.Time) bool {
	return len(e.sessions) >= haltedSessions && !slices.ContainsFunc(e.sessions, func(sh *shared) bool {
		a := sh.s.Availability(now)
		return a.HaltedHere < haltedForLong || a.Silent
	})
}

// lend notes that c has sh.
func (e *entry) lend(sh *shared, c *call) {
	sh.lent = true
	c.blind = !sh.s.Availability(time.Now()).SettingsReceived
	sh.opening++
	e.opening++
	e.last = *c
}

// enqueue puts c into the queue, behind all calls that came before it.
func (e *entry) enqueue(c *call, spare bool) *waiter {
	w := &waiter{call: c, spare: spare, done: make(chan struct{})}
	c.waited = c.waited || spare
	at := len(e.waiters)
	for at > 0 && e.waiters[at-1].call.ticket > c.ticket {
		at--
	}
	e.waiters = slices.Insert(e.waiters, at, w)
	return w
}

func (e *entry) remove(w *waiter) {
	if i := slices.Index(e.waiters, w); i >= 0 {
		e.waiters = slices.Delete(e.waiters, i, i+1)
	}
}

// fail ends everybody's wait with err.
func (e *entry) fail(err error) {
	for _, w := range e.waiters {
		w.err = err
		close(w.done)
	}
	e.waiters = nil
}

// isFull reports whether e has a session that could serve, had it a free stream.
func (e *entry) isFull() bool {
	return slices.ContainsFunc(e.sessions, func(sh *shared) bool { return !sh.s.Silent() })
}

// hasSilent reports whether a session of e is silent.
func (e *entry) hasSilent() bool {
	return slices.ContainsFunc(e.sessions, func(sh *shared) bool { return sh.s.Silent() })
}

// free is how many streams sh can open.
func (p *Pool) free(sh *shared, a hbone.Availability) int {
	limit := p.cfg.MaxStreams
	switch {
	case a.Silent || isHalted(a):
		return 0
	case a.SettingsReceived:
		sh.e.limit = a.Limit
	case sh.e.limit > 0:
		limit = min(limit, sh.e.limit) // what this peer allowed before
	}
	return a.Free(limit)
}

// past reports whether no new stream may go on sh, ever. One that nobody has had yet is
// not idle while somebody waits: it may have been dialled for longer than idle ones are kept.
func (p *Pool) past(sh *shared, a hbone.Availability, now time.Time) bool {
	idle := a.Streams == 0 && sh.opening == 0
	expired := sh.lent && !sh.expires.IsZero() && !now.Before(sh.expires)
	awaited := !sh.lent && len(sh.e.waiters) > 0
	return a.Retired || expired ||
		idle && (a.Idle >= p.cfg.IdleTimeout && !awaited || a.SettingsReceived && a.Limit == 0)
}

// choose returns a session with a free stream, of the lowest rank that there is, and takes
// out those that are past use.
func (p *Pool) choose(e *entry, after uint64, now time.Time) (found *shared, best rank) {
	for i := 0; i < len(e.sessions); {
		sh := e.sessions[i]
		a := sh.s.Availability(now)
		if p.past(sh, a, now) {
			p.take(e, sh)
			continue
		}
		i++
		if r := rankOf(a); sh.seq > after && (found == nil || r < best) && p.free(sh, a) > 0 {
			found, best = sh, r
		}
	}
	return found, best
}

// take takes sh out of e: it closes when its last stream ends, of calls that have it and
// have not opened theirs yet too.
func (p *Pool) take(e *entry, sh *shared) {
	if sh.out {
		return
	}
	sh.out, sh.gone = true, p.seq
	e.sessions = slices.DeleteFunc(e.sessions, func(x *shared) bool { return x == sh })
	p.stats.Retired++
	p.leaving[sh] = struct{}{}
	if sh.opening == 0 {
		p.end(sh)
	}
}

// end closes sh, which is taken out and which no call has, when its last stream ends.
func (p *Pool) end(sh *shared) {
	go func() {
		sh.s.CloseWhenIdle()
		<-sh.s.Closed()
		p.left(sh)
	}()
}

// offer is a session with free streams.
type offer struct {
	sh   *shared
	free int
	rank rank
}

// serve takes out what is past use, gives free streams to those who wait, and
// dials for those who are left. A stream counts as taken once it is started, so
// one may be given to two calls that have not yet done so: the later one waits again.
func (p *Pool) serve(e *entry) {
	now := time.Now()
	p.offers = p.offers[:0]
	for i := 0; i < len(e.sessions); {
		sh := e.sessions[i]
		a := sh.s.Availability(now)
		if p.past(sh, a, now) {
			p.take(e, sh)
			continue
		}
		i++
		if free := p.free(sh, a); free > 0 {
			p.offers = append(p.offers, offer{sh, free, rankOf(a)})
		}
	}
	if len(e.waiters) > 0 {
		e.waiters = slices.DeleteFunc(e.waiters, p.grant)
		p.dialMore(e, now)
	}
	clear(p.offers)
	p.settle(e)
}

// grant gives w one of the offers, and reports whether there was one for it.
func (p *Pool) grant(w *waiter) bool {
	var best *offer
	for i := range p.offers {
		o := &p.offers[i]
		if o.free > 0 && o.sh.seq > w.call.after && !(w.spare && o.rank > rankClear) && (best == nil || o.rank < best.rank) {
			best = o
		}
	}
	if best == nil {
		return false
	}
	best.free--
	w.got = best.sh
	best.sh.e.lend(best.sh, w.call)
	close(w.done)
	return true
}

// settle ends what nobody needs any more.
func (p *Pool) settle(e *entry) {
	if e.detached && len(e.waiters) == 0 {
		for _, d := range e.dials {
			d.cancel(ErrClosed)
		}
		for i := len(e.sessions) - 1; i >= 0; i-- {
			if sh := e.sessions[i]; sh.opening == 0 {
				p.take(e, sh)
			}
		}
	}
	if len(e.sessions)+len(e.dials)+len(e.waiters) == 0 && p.keys[e.key] == e {
		delete(p.keys, e.key)
	}
}
