package logging

import (
	"sync"
	"time"
)

// maxKeys is what a Limit remembers by default. Keys beyond share one allowance.
const maxKeys = 1024

// Limit lets one line per key and interval through, so that a peer that fails
// again and again does not fill the log. Safe for concurrent use.
type Limit struct {
	Every time.Duration // between two lines of one key
	Keys  int           // remembered at most; zero means 1024

	mu    sync.Mutex
	keys  map[string]*allowance
	swept time.Time // when old keys were last removed
}

type allowance struct {
	last time.Time // line that was let through
	held int       // lines since
}

// Allow reports whether a line about key may be written at now, and how many
// were not since the last one.
func (l *Limit) Allow(key string, now time.Time) (held int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.keys[key]
	if a == nil {
		a = l.add(key, now)
	}
	if !a.last.IsZero() && now.Sub(a.last) < l.Every {
		a.held++
		return 0, false
	}
	held, a.last, a.held = a.held, now, 0
	return held, true
}

// add makes room for key; the caller holds mu.
func (l *Limit) add(key string, now time.Time) *allowance {
	if l.keys == nil {
		l.keys = map[string]*allowance{}
	}
	most := l.Keys
	if most == 0 {
		most = maxKeys
	}
	if len(l.keys) >= most && now.Sub(l.swept) >= l.Every {
		l.swept = now
		for k, a := range l.keys {
			if now.Sub(a.last) >= l.Every {
				delete(l.keys, k)
			}
		}
	}
	if len(l.keys) >= most {
		key = ""
	}
	if l.keys[key] == nil {
		l.keys[key] = &allowance{}
	}
	return l.keys[key]
}
