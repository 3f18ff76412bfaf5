package overload

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A process that is late lets its own clients wait, and so begins less of theirs at once
// than of others', whom it refuses; neither fills the other's room.
func TestOwnClientsAreBoundSoonerAndBesideOthers(t *testing.T) {
	l := New(prometheus.NewRegistry())
	busy := scheduling{processors: 1, runnable: 600, wait: 50 * time.Millisecond}
	began := map[*gate][]uint64{}
	for range 5 * hanging / tick {
		for _, g := range []*gate{&l.gate, &l.own} {
			for range 60 {
				if g.room() {
					began[g] = append(began[g], g.begin())
				}
			}
			for range min(20, len(began[g])) { // 1000 a second
				g.recent.end(began[g][0], true)
				began[g] = began[g][1:]
			}
		}
		l.step(time.Now(), busy)
	}
	if own, others := l.own.control.window, l.control.window; own < 250 || own > 300 || others < 500 || others > 600 {
		t.Errorf("of 1000 a second each %.0f of the own clients and %.0f of others may be under way, want 250 and 500 of them", own, others)
	}
	l.control.window = 0
	l.own.control.window = 1e6
	if l.Refuse(0) {
		t.Error("an own client is refused when there is no room for others")
	}
	if _, err := l.Admit(t.Context(), time.Now(), "client"); err != nil {
		t.Errorf("others leave no room for an own client: %v", err)
	}
}

// Once it is known how long the work takes without a queue, little more than is done in
// that time is under way, and what is done in 25 ms waits: more is served no sooner, and
// each piece costs more the more there are.
func TestHardlyMoreIsUnderWayThanIsDoneInItsTime(t *testing.T) {
	l := New(prometheus.NewRegistry())
	for range enough {
		l.own.times.add(20*time.Millisecond, false)
	}
	var began []uint64
	for range 5 * hanging / tick {
		for range 160 {
			if l.own.room() {
				began = append(began, l.own.begin())
			}
		}
		for range min(80, len(began)) { // 4000 a second
			l.own.recent.end(began[0], true)
			began = began[1:]
		}
		l.step(time.Now(), scheduling{processors: 1, runnable: 600, wait: 50 * time.Millisecond})
	}
	if n := l.own.control.window; n < 4000*0.03 || n > 4000*0.04 {
		t.Errorf("of 4000 a second that take 20 ms each %.0f may be under way, want what is done in 35 ms", n)
	}
	if n := l.own.mostWaiting(false); n < 90 || n > 110 {
		t.Errorf("and %d may wait, want 100", n)
	}
}

// A process without own clients never says that they are bound.
func TestALimitIsOfThoseThatThereAre(t *testing.T) {
	l := New(prometheus.NewRegistry())
	for range 1000 {
		if _, err := l.TryAdmit("repeats"); err != nil {
			t.Fatal(err)
		}
	}
	l.step(time.Now(), scheduling{processors: 1, runnable: 600, wait: 50 * time.Millisecond})
	if !l.control.bounded || l.own.control.bounded {
		t.Errorf("bounded: others %v, own %v; want only others", l.control.bounded, l.own.control.bounded)
	}
}

// Whoever asks before spending anything is told by those that come before it, too.
func TestRefuseReckonsWithThoseThatCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, under := boundTo(100)
		if l.gate.Refuse(leastWaiting-1) || !l.gate.Refuse(leastWaiting) {
			t.Errorf("with nobody waiting and %d to come: refused %v, and %v with one more", leastWaiting-1, l.gate.Refuse(leastWaiting-1), l.gate.Refuse(leastWaiting))
		}
		for range 30 {
			go l.gate.Admit(t.Context(), time.Now())
		}
		synctest.Wait()
		if l.gate.Refuse(leastWaiting-31) || !l.gate.Refuse(leastWaiting-30) {
			t.Error("those that wait already are not counted once")
		}
		for i := range 40 {
			under[i].Done()
		}
		synctest.Wait() // ten places are free
		if l.gate.Refuse(leastWaiting+9) || !l.gate.Refuse(leastWaiting+10) {
			t.Error("free places are not counted once")
		}
	})
}

// Who has waited elsewhere before waits as much less.
func TestAWaitCountsFromWhenItWasAskedForFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := boundTo(100)
		l.control.window = 0
		answered := make(chan time.Duration)
		started := time.Now()
		go func() {
			l.gate.Admit(t.Context(), started.Add(-maxWait+5*tick))
			answered <- time.Since(started)
		}()
		synctest.Wait()
		for range 2 * maxWait / tick {
			time.Sleep(tick)
			l.mu.Lock()
			l.refuseOverdue(time.Now())
			l.mu.Unlock()
			synctest.Wait()
			select {
			case took := <-answered:
				if took != 5*tick {
					t.Errorf("refused after %v, want %v", took, 5*tick)
				}
				return
			default:
			}
		}
		t.Error("not refused")
	})
}
