package logging

import (
	"sync"

	"github.com/rs/zerolog"
)

// maxTroubles bounds how many different troubles a Once remembers.
const maxTroubles = 1024

// Once logs each trouble one time: a peer that misbehaves for days must not
// fill a disk. What happens again is in the counters. Safe for concurrent use.
type Once struct {
	Log zerolog.Logger

	mu   sync.Mutex
	seen map[string]struct{}
}

// Warn writes message with err and what with adds, if key is new.
func (l *Once) Warn(key, message string, err error, with func(*zerolog.Event)) {
	l.mu.Lock()
	_, known := l.seen[key]
	if l.seen == nil || len(l.seen) >= maxTroubles {
		l.seen = map[string]struct{}{}
	}
	l.seen[key] = struct{}{}
	l.mu.Unlock()
	if known {
		return
	}
	e := l.Log.Warn().Err(err)
	with(e)
	e.Msg(message)
}
