package peer

import (
	"sync"

	"github.com/rs/zerolog"
)

// maxLogged bounds how many different troubles logOnce remembers.
const maxLogged = 1024

// logOnce logs each trouble one time: a peer that misbehaves for days must not
// fill a disk. What happens again is in the counters.
type logOnce struct {
	log zerolog.Logger

	mu   sync.Mutex
	seen map[string]struct{}
}

func (l *logOnce) warn(key, message string, err error, with func(*zerolog.Event)) {
	l.mu.Lock()
	_, known := l.seen[key]
	if l.seen == nil || len(l.seen) >= maxLogged {
		l.seen = map[string]struct{}{}
	}
	l.seen[key] = struct{}{}
	l.mu.Unlock()
	if known {
		return
	}
	e := l.log.Warn().Err(err)
	with(e)
	e.Msg(message)
}
