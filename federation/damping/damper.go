package damping

import (
	"maps"
	"time"

	"github.com/isthmus-mesh/isthmus/mesh"
)

const (
	// MaxPenalty is the longest time for which a success is held back.
	MaxPenalty = time.Minute
	// Quiet is the shortest spell without an ejection that forgets one.
	Quiet = 10 * time.Second
)

// Penalty returns how long the first success after the n-th ejection within
// memory is held back; n counts from 1. The first costs nothing: a pod that
// restarts once is back with its first answer.
func Penalty(n int) time.Duration {
	if n <= 1 {
		return 0
	}
	return min(time.Second<<min(n-2, 6), MaxPenalty)
}

// maxLevel is the first whose penalty is the longest; memory goes no further.
const maxLevel = 8

// Key is one endpoint on one target port.
type Key struct {
	Endpoint mesh.EndpointID
	Port     uint16
}

// Damper remembers ejections of what K names. The zero value is not usable; see [New].
type Damper[K comparable] struct {
	limit int
	keys  map[K]*memory
}

type memory struct {
	level    int       // ejections within memory
	since    time.Time // of the quiet spell: last change, or when a level was forgotten
	answered time.Time // first success since the last ejection; zero: none
	out      bool
}

// New returns a damper that remembers at most limit keys; of more it damps nothing.
func New[K comparable](limit int) *Damper[K] {
	return &Damper[K]{limit: limit, keys: map[K]*memory{}}
}

// Len returns how many keys are remembered.
func (d *Damper[K]) Len() int { return len(d.keys) }

// Ejected notes that k was ejected.
func (d *Damper[K]) Ejected(k K, now time.Time) {
	m := d.keys[k]
	if m == nil {
		if len(d.keys) >= d.limit {
			return
		}
		m = &memory{}
		d.keys[k] = m
	}
	m.forget(now)
	m.level = min(m.level+1, maxLevel)
	m.since, m.answered, m.out = now, time.Time{}, true
}

// Failed notes that k, which is ejected, failed once more: what it had answered
// before counts no longer.
func (d *Damper[K]) Failed(k K, now time.Time) {
	if m := d.keys[k]; m != nil && m.out {
		m.since, m.answered = now, time.Time{}
	}
}

// Answered notes that a probe of k succeeded, and returns when k may be
// readmitted: at now, or later if it flaps. Until then it is held back, unless
// it fails again.
func (d *Damper[K]) Answered(k K, now time.Time) (readmit time.Time) {
	m := d.keys[k]
	if m == nil || !m.out {
		return now
	}
	if m.answered.IsZero() {
		m.answered = now
	}
	return m.due()
}

func (m *memory) due() time.Time { return m.answered.Add(Penalty(m.level)) }

// Readmitted notes that k is back; its quiet spell begins.
func (d *Damper[K]) Readmitted(k K, now time.Time) {
	if m := d.keys[k]; m != nil {
		m.out, m.since, m.answered = false, now, time.Time{}
	}
}

// Forget drops what is known of k, for what is no more.
func (d *Damper[K]) Forget(k K) { delete(d.keys, k) }

// forget lowers the level by one for each quiet spell. What is out has none.
func (m *memory) forget(now time.Time) {
	for !m.out && m.level > 0 {
		spell := max(Quiet, Penalty(m.level))
		if now.Sub(m.since) < spell {
			return
		}
		m.level--
		m.since = m.since.Add(spell)
	}
}

// Expire forgets keys whose ejections are all forgotten.
func (d *Damper[K]) Expire(now time.Time) {
	for k, m := range d.keys {
		if m.forget(now); m.level == 0 && !m.out {
			delete(d.keys, k)
		}
	}
}

// Level returns how many ejections of k are within memory.
func (d *Damper[K]) Level(k K, now time.Time) int {
	m := d.keys[k]
	if m == nil {
		return 0
	}
	m.forget(now)
	return m.level
}

// Retain drops what is known of those that keep refuses.
func (d *Damper[K]) Retain(keep func(K) bool) {
	maps.DeleteFunc(d.keys, func(k K, _ *memory) bool { return !keep(k) })
}
