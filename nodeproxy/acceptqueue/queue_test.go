package acceptqueue

import (
	"testing"
	"time"
)

var epoch = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

const step = 50 * time.Millisecond

// follow looks at a queue each 50 ms until want, and returns when that was. Nobody is
// accepted, and one connection arrives before each look.
func (m *model) follow(t *testing.T, want Verdict, within time.Duration) time.Duration {
	t.Helper()
	began := m.now
	for m.now.Sub(began) <= within {
		m.arrive(0)
		if got := m.look(); got == want {
			return m.now.Sub(began)
		} else if got != Nothing {
			t.Fatalf("verdict %d after %v; want %d", got, m.now.Sub(began), want)
		}
		m.now = m.now.Add(step)
	}
	t.Fatalf("no verdict %d within %v", want, within)
	return 0
}

func TestAQueueThatDoesNotDrainIsStalledAndClearsByDraining(t *testing.T) {
	m := newModel(1, 128)
	if got := m.follow(t, Stalled, time.Second); got < Stall || got > Stall+step {
		t.Errorf("stalled after %v; want %v", got, Stall)
	}
	for range 20 { // connects go on to succeed
		m.arrive(0)
		m.now = m.now.Add(step)
		if got := m.look(); got != Nothing {
			t.Fatalf("verdict %d though nobody was accepted", got)
		}
	}
	for m.acceptOne(0) {
	}
	if got := m.look(); got != Drained {
		t.Errorf("drained, and the verdict is %d", got)
	}
}

func TestAFullQueueIsStalledSooner(t *testing.T) {
	m := newModel(1, 3)
	for range 4 {
		m.arrive(0)
	}
	m.wanted = true
	began := m.now
	for ; m.look() != Stalled; m.now = m.now.Add(10 * time.Millisecond) {
		if m.now.Sub(began) > Stall {
			t.Fatal("not stalled")
		}
	}
	if got := m.now.Sub(began); got > Stall/fullShare {
		t.Errorf("stalled after %v; want at most %v", got, Stall/fullShare)
	}
}

func TestAQueueThatNobodyJoinsIsNotStalled(t *testing.T) {
	m := newModel(1, 128)
	m.arrive(0)
	for range 100 {
		if got := m.look(); got != Nothing {
			t.Fatalf("verdict %d; want nothing: nobody else has come", got)
		}
		m.now = m.now.Add(step)
	}
}

// One that is emptied as fast as it is filled has the same length at each look.
func TestASlowQueueThatDrainsIsNotStalled(t *testing.T) {
	m := newModel(1, 1024)
	for range 500 {
		m.arrive(0)
	}
	for range 200 {
		for range 4 {
			m.arrive(0)
		}
		m.acceptOne(0) // once in 50 ms
		if got := m.look(); got != Nothing {
			t.Fatalf("verdict %d with %d in the queue", got, m.length(0))
		}
		m.now = m.now.Add(step)
	}
}

func TestOneProcessOfSeveralThatAcceptsKeepsAPortFromBeingStalled(t *testing.T) {
	m := newModel(2, 128)
	for range 100 {
		m.arrive(0)
		m.arrive(1)
		m.acceptOne(1)
		if got := m.look(); got != Nothing {
			t.Fatalf("verdict %d", got)
		}
		m.now = m.now.Add(step)
	}
}

// An application that serves one connection after the other stalls now and then.
func TestAStallThatEndedByItselfIsWaitedForLongerTheNextTime(t *testing.T) {
	m := newModel(1, 128)
	m.follow(t, Stalled, time.Second)
	m.now = m.now.Add(100 * time.Millisecond)
	for m.acceptOne(0) {
	}
	m.look()
	again := m.follow(t, Stalled, 3*time.Second)
	if again < 2*Stall {
		t.Errorf("stalled again after %v; want at least %v", again, 2*Stall)
	}
	for m.acceptOne(0) {
	}
	m.look()
	m.now = m.now.Add(Memory)
	if got := m.follow(t, Stalled, time.Second); got > Stall+step {
		t.Errorf("after %v it is stalled after %v; want %v", Memory, got, Stall)
	}
}

func TestAnotherListenerBeginsAnew(t *testing.T) {
	m := newModel(1, 128)
	m.follow(t, Stalled, time.Second)
	m.listeners[0] = &listener{cookie: 99}
	if got := m.look(); got != Replaced {
		t.Errorf("verdict %d; want Replaced", got)
	}
	if m.q.Stalled() || m.q.Patience(m.now, false) != Stall {
		t.Error("the new one has the old one's past")
	}
}

// A census looks at every connection of the machine.
func TestAQueueThatIsSeenShorterNowAndThenIsNotCounted(t *testing.T) {
	m := newModel(1, 128)
	for i := range 100 {
		if m.arrive(0); i%2 == 0 {
			m.arrive(0)
			m.arrive(0)
		} else {
			m.acceptOne(0)
			m.acceptOne(0)
		}
		if v := m.q.Look(m.now, Look{Cookie: 1, Queue: uint32(m.length(0)), Backlog: m.backlog}); v != Nothing {
			t.Fatalf("look %d: verdict %d at length %d", i, v, m.length(0))
		}
		m.now = m.now.Add(step)
	}
}

// An application that serves one after the other, each for a while, and whose queue is short: what it
// has recovered from once is no stall the next time.
func TestPausesOfAFullQueueAreLearnt(t *testing.T) {
	for _, pause := range []time.Duration{60, 100, 150} {
		pause *= time.Millisecond
		m := newModel(1, 1)
		m.wanted = true
		stalls := 0
		for next := pause; m.now.Sub(epoch) < 30*time.Second; m.now = m.now.Add(5 * time.Millisecond) {
			m.arrive(0)
			if m.now.Sub(epoch) >= next {
				m.acceptOne(0)
				m.acceptOne(0)
				next += pause
				m.look() // while they are served
				continue
			}
			if m.look() == Stalled {
				stalls++
			}
		}
		if stalls > 2 {
			t.Errorf("%v between accepts: called stalled %d times in 30 s", pause, stalls)
		}
	}
}
