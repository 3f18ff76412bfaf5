package logging

import (
	"cmp"
	"maps"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// Bounds of what PeerLimits holds: 256 peers with 64 keys each by default. Peers beyond
// share one limit, and so do the keys of one peer.
const (
	maxPeers    = 256
	keysPerPeer = 64
)

// flushEvery is the least time after which suppressed lines are reported on their own.
const flushEvery = 10 * time.Second

// PeerLimits limits the log lines that peers can trigger. Each peer has, for each key, a
// bucket of Burst lines that gains one line per Every. A peer is whatever triggers the
// line: an identity, an address, a pod. A key is the kind of line. A peer that draws ever
// new keys exhausts its own limit only.
//
// No suppressed line goes unreported: the next line about the same peer and key carries
// the number, and without such a line Log does, after Every or 10 s, whichever is longer.
// It has the level of a suppressed line. The timer for that runs only while unreported
// lines exist.
//
// zerolog's BurstSampler has neither keys nor that number. Safe for concurrent use.
type PeerLimits struct {
	Every time.Duration   // in which a bucket gains one line
	Burst int             // most lines in a bucket; zero: 1
	Keys  int             // most keys of one peer; zero: 64
	Log   *zerolog.Logger // reports suppressed lines that no later line reports; nil: none

	mu    sync.Mutex
	peers map[string]*peerLimit
	swept time.Time // when idle peers were last removed
	armed bool      // the timer for flush runs
}

// peerLimit is the limit of one peer.
type peerLimit struct {
	keys  map[string]*bucket
	used  time.Time // last Allow
	swept time.Time // when idle keys were last removed
}

// bucket is the allowance of one peer and key.
type bucket struct {
	level      int       // lines taken and not gained back
	gained     time.Time // up to when lines were gained back
	last       time.Time // last line that was allowed
	suppressed int       // lines since

	report *zerolog.Event // of the first of these, without fields; nil: none, or of Allow
}

// ByPeer returns the limits of lines about failures that a peer can repeat at will, such
// as the access log of refused connections: 20 lines at once, then one per second, for
// each peer and key. That is about 1 kB/s, and enough to find the cause.
func ByPeer(log zerolog.Logger) *PeerLimits {
	return &PeerLimits{Every: time.Second, Burst: 20, Log: &log}
}

// Sample returns e with the number of lines suppressed since the last one about peer and
// key, or nil if this line is suppressed too. Methods of a nil event do nothing. A nil l
// suppresses nothing.
func (l *PeerLimits) Sample(e *zerolog.Event, peer, key string) *zerolog.Event {
	if l == nil || !e.Enabled() {
		return e
	}
	n, ok := l.allow(e, peer, key, time.Now())
	if !ok {
		return nil
	}
	return Suppressed(e, n)
}

// Suppressed adds the number of lines suppressed before e, if there are any.
func Suppressed(e *zerolog.Event, n int) *zerolog.Event {
	if n > 0 {
		e.Int("suppressed", n)
	}
	return e
}

// Allow reports whether a line about peer and key may be written at now, and the number
// of lines suppressed since the last one.
func (l *PeerLimits) Allow(peer, key string, now time.Time) (suppressed int, ok bool) {
	return l.allow(nil, peer, key, now)
}

// allow is Allow for the event e, which it owns if it returns false.
func (l *PeerLimits) allow(e *zerolog.Event, peer, key string, now time.Time) (suppressed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.bucketLocked(peer, key, now)
	if n := now.Sub(b.gained) / l.Every; n > 0 {
		b.level = max(0, b.level-int(n))
		b.gained = b.gained.Add(n * l.Every)
	}
	if b.level >= max(1, l.Burst) {
		b.suppressed++
		if l.Log != nil && b.report == nil { // zerolog does not show the level of an event
			b.report = e
		}
		l.armLocked()
		return 0, false
	}
	if b.level == 0 {
		b.gained = now
	}
	b.level++
	suppressed, b.suppressed, b.last, b.report = b.suppressed, 0, now, nil
	return suppressed, true
}

func (l *PeerLimits) bucketLocked(peer, key string, now time.Time) *bucket {
	if l.peers == nil {
		l.peers = map[string]*peerLimit{}
	}
	if l.peers[peer] == nil && !l.roomLocked(now) {
		peer = ""
	}
	p := l.peers[peer]
	if p == nil {
		p = &peerLimit{keys: map[string]*bucket{}}
		l.peers[peer] = p
	}
	p.used = now
	if most := cmp.Or(l.Keys, keysPerPeer); p.keys[key] == nil && len(p.keys) >= most {
		if now.Sub(p.swept) >= l.Every {
			p.swept = now
			maps.DeleteFunc(p.keys, func(_ string, b *bucket) bool { return b.idle(now, l.Every) && (b.suppressed == 0 || l.Log == nil) })
		}
		if len(p.keys) >= most {
			key = ""
		}
	}
	b := p.keys[key]
	if b == nil {
		b = &bucket{gained: now}
		p.keys[key] = b
	}
	return b
}

// roomLocked reports whether there is room for one more peer. At most once per Every it
// removes the peers without a line since.
func (l *PeerLimits) roomLocked(now time.Time) bool {
	if len(l.peers) >= maxPeers && now.Sub(l.swept) >= l.Every {
		l.swept = now
		maps.DeleteFunc(l.peers, func(_ string, p *peerLimit) bool {
			if now.Sub(p.used) < l.Every {
				return false
			}
			for _, b := range p.keys {
				if b.suppressed > 0 && l.Log != nil {
					return false // not reported yet
				}
			}
			return true
		})
	}
	return len(l.peers) < maxPeers
}

// idle reports whether the bucket has had no line for every.
func (b *bucket) idle(now time.Time, every time.Duration) bool { return now.Sub(b.last) >= every }

// armLocked starts the timer for flush unless it runs.
func (l *PeerLimits) armLocked() {
	if l.Log == nil || l.armed {
		return
	}
	l.armed = true
	time.AfterFunc(max(l.Every, flushEvery), l.flush)
}

// flush reports the suppressed lines of idle buckets. It is called again while others
// have suppressed lines.
func (l *PeerLimits) flush() {
	type report struct {
		peer, key  string
		suppressed int
		event      *zerolog.Event
	}
	var reports []report
	now, again := time.Now(), false
	l.mu.Lock()
	for peer, p := range l.peers {
		for key, b := range p.keys {
			switch {
			case b.suppressed == 0:
			case b.idle(now, l.Every):
				reports = append(reports, report{peer, key, b.suppressed, b.report})
				b.suppressed, b.report = 0, nil
			default:
				again = true
			}
		}
	}
	if l.armed = false; again {
		l.armLocked()
	}
	l.mu.Unlock()
	for _, r := range reports {
		if r.event == nil {
			r.event = l.Log.Info()
		}
		r.event.Str("peer", r.peer).Str("about", r.key).Int("suppressed", r.suppressed).Msg("log lines suppressed")
	}
}
