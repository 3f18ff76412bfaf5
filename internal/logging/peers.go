package logging

import (
	"maps"
	"sync"
	"time"
)

// Bounds of what PeerLimits remembers: 256 peers with 64 keys each, and one limit
// for all peers beyond.
const (
	maxPeers    = 256
	keysPerPeer = 64
)

// PeerLimits is a [Limit] for each peer, so that one that fails with ever new keys
// silences nobody else's lines. Safe for concurrent use.
type PeerLimits struct {
	Every time.Duration // between two lines of one peer and key

	mu    sync.Mutex
	peers map[string]*peerLimit
	swept time.Time // when idle peers were last removed
}

type peerLimit struct {
	Limit
	asked time.Time
}

// Allow reports whether a line about key of peer may be written at now, and how many
// were not since the last one.
func (l *PeerLimits) Allow(peer, key string, now time.Time) (held int, ok bool) {
	return l.of(peer, now).Allow(key, now)
}

func (l *PeerLimits) of(peer string, now time.Time) *peerLimit {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.peers == nil {
		l.peers = map[string]*peerLimit{}
	}
	if l.peers[peer] == nil && !l.room(now) {
		peer = ""
	}
	p := l.peers[peer]
	if p == nil {
		p = &peerLimit{Limit: Limit{Every: l.Every, Keys: keysPerPeer}}
		l.peers[peer] = p
	}
	p.asked = now
	return p
}

// room reports whether there is room for one more peer. At most once in an interval
// it removes those that had no line for one. The caller holds mu.
func (l *PeerLimits) room(now time.Time) bool {
	if len(l.peers) >= maxPeers && now.Sub(l.swept) >= l.Every {
		l.swept = now
		maps.DeleteFunc(l.peers, func(_ string, p *peerLimit) bool { return now.Sub(p.asked) >= l.Every })
	}
	return len(l.peers) < maxPeers
}
