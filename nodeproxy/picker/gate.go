package picker

import (
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/health/standing"
)

// gate is what is kept of one gateway: its cell, and how long attempts through it
// have been waiting.
type gate struct {
	key  string
	cell *standing.Cell[string]

	mu      sync.Mutex
	silence silence
}

// silence is how long the attempts through one gateway have been waiting.
type silence struct {
	waiting int
	since   time.Time // when one of them started, or the last one got a response
}

// silentAfter is when new connections prefer another way to one whose attempts
// all wait: a line that was cut says nothing, and an attempt on it fails only when
// its time is up.
const silentAfter = time.Second

func (s silence) asked(now time.Time) silence {
	if s.waiting == 0 {
		s.since = now
	}
	s.waiting++
	return s
}

// responded takes in the end of an attempt: whether anything came back through the
// gateway, or the attempt just failed.
func (s silence) responded(something bool, now time.Time) silence {
	if s.waiting--; s.waiting <= 0 {
		return silence{}
	}
	if something {
		s.since = now
	}
	return s
}

func (s silence) long(now time.Time) bool {
	return s.waiting > 0 && now.Sub(s.since) > silentAfter
}

func (g *gate) asked(now time.Time) {
	g.mu.Lock()
	g.silence = g.silence.asked(now)
	g.mu.Unlock()
}

func (g *gate) responded(something bool, now time.Time) {
	g.mu.Lock()
	g.silence = g.silence.responded(something, now)
	g.mu.Unlock()
}

func (g *gate) silent(now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.silence.long(now)
}

func (g *gate) waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.silence.waiting
}

// idle reports whether nobody waits for the gateway or is connected through it.
func (g *gate) idle() bool { return g.waiting() == 0 && g.cell.Open() == 0 }
