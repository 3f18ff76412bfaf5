package pool

import (
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
)

// entry is the state of one key in a pool. Guarded by the pool's mu.
type entry struct {
	key      Key
	sessions []*shared     // in the order of establishment
	waiters  []*waiter     // in the order of their calls
	changed  chan struct{} // capacity 1: a session has changed; see hbone.Session.Observe
	dials    []*dialing    // in flight
	failed   error         // error of a dial, while others are in flight
	opening  int           // calls with a session that was not released yet
	last     call          // one of these
	limit    int           // streams that the peer last allowed on a session; 0 if unknown
	detached bool          // retired: no new calls

	// alone is when a dial for a better session last failed.
	alone time.Time
}

// shared is a session in an entry.
type shared struct {
	e       *entry
	s       *hbone.Session
	seq     uint64
	expires time.Time
	lent    bool   // a call has had it; a session that expires immediately still serves the calls that waited for it
	opening int    // calls that have the session
	gone    uint64 // the pool's seq when it was taken out
	out     bool
	severed bool // Sever has taken it
}

// waiter is a call waiting for a session.
type waiter struct {
	call  *call
	spare bool // waits for a better session; can fall back on one with bulk or a crowded one
	done  chan struct{}
	got   *shared // got or err is set before done is closed
	err   error
}

// A session that carries bulk is skipped while there is another one, so that small messages do not
// wait behind the bulk. If there is none, one more is opened.
const (
	// uncongestedSessions is how many sessions of a key are opened to have one without bulk.
	// uncongestedWait is how long a stream waits for that, once: two round trips of a long path.
	// Then it uses the session with bulk. After a failed dial there is no other for
	// uncongestedPause.
	uncongestedSessions = 2
	uncongestedWait     = 300 * time.Millisecond
	uncongestedPause    = 5 * time.Second
)

// A session crowded by unread streams is also skipped, before they halt it. A halted session is
// chosen last, and is not used after haltedForLong: streams on it are accepted and never answered.
// Other sessions are opened in their place.
const (
	// haltedAfter is how long a session must be halted to be chosen last. A sender that fills a
	// long path has no window for one round trip.
	haltedAfter = time.Second
	// haltedForLong is how long a session must be halted to be unused. A slow reader that returns
	// window in large parts, as stock peers do (half of 16 MiB), halts it for seconds at a time.
	// Streams opened on it are answered late.
	haltedForLong = 10 * time.Second
	// haltedSessions is how many sessions of a key are opened because others are crowded or
	// halted. Together they hold 256 MiB (hbone.Config.MaxUnread), as much unread data as a
	// server allows one identity (limits.identity.unreadBytes). When they are halted for long,
	// and there are no others, calls fail with ErrHalted.
	haltedSessions = 4
)

// rank orders sessions that can serve; lower is better.
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

// isHalted reports whether a session is halted for haltedForLong or longer, and not silent.
func isHalted(a hbone.Availability) bool { return a.Halted >= haltedForLong && !a.Silent }

func newEntry(key Key) *entry { return &entry{key: key, changed: make(chan struct{}, 1)} }

// wantsBetter reports whether to dial for a better session than the best one, which has rank r.
func (e *entry) wantsBetter(r rank, now time.Time) bool {
	most := haltedSessions
	beside := len(e.sessions)
	if r == rankBulk { // halted sessions are no better than those with bulk
		most = uncongestedSessions
		for _, sh := range e.sessions {
			if sh.s.Availability(now).Halted >= haltedAfter {
				beside--
			}
		}
	}
	return beside < most && len(e.sessions) < haltedSessions && now.Sub(e.alone) >= uncongestedPause
}

// isHalted reports whether haltedSessions sessions, and no others, are halted for long. A session
// that is halted by the session carrying it does not count: another carrier can replace it.
func (e *entry) isHalted(now time.Time) bool {
	return len(e.sessions) >= haltedSessions && !slices.ContainsFunc(e.sessions, func(sh *shared) bool {
		a := sh.s.Availability(now)
		return a.HaltedHere < haltedForLong || a.Silent
	})
}

// lend assigns sh to c.
func (e *entry) lend(sh *shared, c *call) {
	sh.lent = true
	c.blind = !sh.s.Availability(time.Now()).SettingsReceived
	sh.opening++
	e.opening++
	e.last = *c
}

// enqueue adds c to the queue, behind all calls with earlier tickets.
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

// fail fails all waiting calls with err.
func (e *entry) fail(err error) {
	for _, w := range e.waiters {
		w.err = err
		close(w.done)
	}
	e.waiters = nil
}

// isFull reports whether e has a session that is not silent. A waiting call then lacks only a stream.
func (e *entry) isFull() bool {
	return slices.ContainsFunc(e.sessions, func(sh *shared) bool { return !sh.s.Silent() })
}

// hasSilent reports whether a session of e is silent.
func (e *entry) hasSilent() bool {
	return slices.ContainsFunc(e.sessions, func(sh *shared) bool { return sh.s.Silent() })
}

// free returns how many streams sh can open.
func (p *Pool) free(sh *shared, a hbone.Availability) int {
	limit := p.cfg.MaxStreams
	switch {
	case a.Silent || isHalted(a):
		return 0
	case a.SettingsReceived:
		sh.e.limit = a.Limit
	case sh.e.limit > 0:
		limit = min(limit, sh.e.limit) // the limit that this peer sent before
	}
	return a.Free(limit)
}

// past reports whether sh may never take another stream. A session that no call has had yet is not
// idle while calls wait: its dial may have taken longer than the idle timeout.
func (p *Pool) past(sh *shared, a hbone.Availability, now time.Time) bool {
	idle := a.Streams == 0 && sh.opening == 0
	expired := sh.lent && !sh.expires.IsZero() && !now.Before(sh.expires)
	awaited := !sh.lent && len(sh.e.waiters) > 0
	return a.Retired || expired ||
		idle && (a.Idle >= p.cfg.IdleTimeout && !awaited || a.SettingsReceived && a.Limit == 0)
}

// choose returns the session of the lowest rank with a free stream, and takes out those past use.
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

// take takes sh out of e. The session closes after its last stream, including streams that calls
// with sh have not opened yet.
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

// end closes sh after its last stream. It was taken out of e, and no call has it.
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

// serve takes out sessions past use, assigns free streams to waiting calls, and dials for the calls
// that are left. A stream counts as taken only once it is started. So one stream may be assigned to
// two calls; the later one waits again.
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

// grant assigns one of the offers to w, and reports whether there was one.
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

// settle stops dials and takes out sessions of a detached entry without waiting calls, and deletes an
// empty entry.
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
