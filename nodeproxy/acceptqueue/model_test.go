package acceptqueue

import (
	"math/rand/v2"
	"testing"
	"time"
)

// model is a port as it is: each connection in its queue, and when one was accepted.
type model struct {
	now       time.Time
	q         Queue
	listeners []*listener
	backlog   uint32
	wanted    bool
	next      uint64

	accepted []time.Time // when
	died     []time.Time // when one ended in the queue
}

type listener struct {
	cookie  uint64
	waiting []connection
}

type connection struct {
	cookie uint64
	dead   bool // reset by its client: in the queue, and in no table
}

func newModel(listeners int, backlog uint32) *model {
	m := &model{now: epoch, backlog: backlog}
	for i := range listeners {
		m.listeners = append(m.listeners, &listener{cookie: uint64(i + 1)})
	}
	return m
}

func (m *model) length(i int) int { return len(m.listeners[i].waiting) }

func (m *model) arrive(i int) {
	if l := m.listeners[i]; len(l.waiting) <= int(m.backlog) {
		m.next++
		l.waiting = append(l.waiting, connection{cookie: m.next})
	}
}

func (m *model) acceptOne(i int) bool {
	l := m.listeners[i]
	if len(l.waiting) == 0 {
		return false
	}
	l.waiting = l.waiting[1:]
	m.accepted = append(m.accepted, m.now)
	return true
}

func (m *model) die(i, at int) {
	if l := m.listeners[i]; len(l.waiting) > 0 {
		l.waiting[at%len(l.waiting)].dead = true
		m.died = append(m.died, m.now)
	}
}

func (m *model) look() Verdict {
	v := m.q.Look(m.now, Look{Cookie: m.listeners[0].cookie, Queue: uint32(m.length(0)), Backlog: m.backlog, Wanted: m.wanted})
	if v != Count {
		return v
	}
	return m.q.Census(m.now, m.census(nil))
}

// census takes one; meanwhile things happen.
func (m *model) census(happen func()) Census {
	lengths := func() map[uint64]uint32 {
		n := map[uint64]uint32{}
		for _, l := range m.listeners {
			n[l.cookie] = uint32(len(l.waiting))
		}
		return n
	}
	c := Census{Before: lengths(), Waiting: map[uint64]struct{}{}}
	if happen != nil {
		happen()
	}
	for _, l := range m.listeners {
		for _, w := range l.waiting {
			if !w.dead {
				c.Waiting[w.cookie] = struct{}{}
			}
		}
	}
	if happen != nil {
		happen()
	}
	c.After = lengths()
	return c
}

func since(times []time.Time, start time.Time) (n int) {
	for _, t := range times {
		if !t.Before(start) {
			n++
		}
	}
	return n
}

// TestWhatIsCalledStalledIs has clients come, reset and wait while applications accept,
// pause and are replaced. Whoever is called stalled has accepted nobody since the first
// census, or no more than clients have reset; it stays so until the queue has drained;
// and one that accepts nobody while others come is found.
func TestWhatIsCalledStalledIs(t *testing.T) {
	stalls := 0
	for seed := range uint64(4000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		m := newModel(1+rng.IntN(2)*rng.IntN(3), uint32(1+rng.IntN(200)))
		rates := []float64{rng.Float64() * 4, rng.Float64() * 4} // arrivals and accepts in 10 ms
		deaths := rng.IntN(3) == 0
		paused, since0 := false, m.now
		first := time.Time{}
		happen := func() {
			for i := range m.listeners {
				for range int(rates[0] * 2 * rng.Float64()) {
					m.arrive(i)
				}
				for range int(rates[1] * 2 * rng.Float64()) {
					if !paused {
						m.acceptOne(i)
					}
				}
				if deaths && rng.IntN(3) == 0 {
					m.die(i, rng.Int())
				}
			}
		}
		for range 400 {
			m.now = m.now.Add(10 * time.Millisecond)
			happen()
			switch rng.IntN(60) {
			case 0:
				paused, since0 = !paused, m.now
			case 1:
				rates = []float64{rng.Float64() * 4, rng.Float64() * 4}
				since0 = m.now
			}
			if m.now.Sub(epoch)%step != 0 {
				continue
			}
			m.wanted = m.length(0) > int(m.backlog) && rng.IntN(2) == 0
			was := m.q.Stalled()
			v := m.q.Look(m.now, Look{Cookie: m.listeners[0].cookie, Queue: uint32(m.length(0)), Backlog: m.backlog, Wanted: m.wanted})
			if v == Count {
				taken, had := m.q.taken, m.q.first != nil
				if v = m.q.Census(m.now, m.census(happen)); had {
					first = taken
				}
			}
			switch {
			case v == Stalled:
				stalls++
				// what happens at the very instant of a census may come before it
				if n := since(m.accepted, first.Add(time.Nanosecond)) - since(m.accepted, m.now); n > since(m.died, first) {
					t.Fatalf("seed %d, %v: called stalled, and %d were accepted since %v", seed, m.now.Sub(epoch), n, first.Sub(epoch))
				}
				if m.now.Sub(first) < Stall/fullShare*2/5 {
					t.Fatalf("seed %d: %v between censuses", seed, m.now.Sub(first))
				}
			case was && !m.q.Stalled() && since(m.accepted, first) == 0:
				t.Fatalf("seed %d, %v: stalled no more (%d), and nobody was accepted", seed, m.now.Sub(epoch), v)
			case !deaths && paused && len(m.listeners) == 1 && rates[0] > 1 && m.now.Sub(since0) > 2*LongestStall+4*step && !m.q.Stalled() && m.length(0) <= int(m.backlog):
				t.Fatalf("seed %d, %v: nobody was accepted since %v, %d wait, and it is not called stalled", seed, m.now.Sub(epoch), since0.Sub(epoch), m.length(0))
			}
		}
	}
	if stalls < 100 {
		t.Errorf("%d stalls: the schedules do not cause them", stalls)
	}
	t.Logf("%d stalls", stalls)
}
