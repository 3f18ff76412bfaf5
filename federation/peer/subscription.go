package peer

import (
	"sync"

	"github.com/isthmus-mesh/isthmus/federation"
)

// maxPending is how many changed subjects a Subscription tells apart; beyond
// them it only knows that everything may have changed.
const maxPending = 4096

// change is what became of a subject: its fact, or only its freshness.
type change struct {
	fact, all bool
}

// Subscription collects the subjects that changed since they were last taken.
// A slow reader loses no change and holds bounded memory: changes coalesce.
type Subscription struct {
	ledger  *Ledger
	signal  chan struct{}
	refresh bool // wake for records that only became fresher, too

	mu    sync.Mutex
	facts map[federation.Key]bool // subject → whether its fact changed
	all   bool
}

// OnChange subscribes to changes of facts. Close it after use.
func (l *Ledger) OnChange() *Subscription { return l.subscribe(false) }

// OnRefresh is OnChange that also collects, without waking for them, subjects
// that were only stamped anew.
func (l *Ledger) OnRefresh() *Subscription { return l.subscribe(true) }

func (l *Ledger) subscribe(refresh bool) *Subscription {
	s := &Subscription{ledger: l, signal: make(chan struct{}, 1), refresh: refresh, facts: map[federation.Key]bool{}}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.subs[s] = struct{}{}
	return s
}

// C is signalled when there is something to take. It is never closed.
func (s *Subscription) C() <-chan struct{} { return s.signal }

// Take returns the subjects (see [federation.Key.Subject]) that changed since
// the last Take, in no order; with all, any other may have changed as well.
func (s *Subscription) Take() (subjects []federation.Key, all bool) {
	return s.take(true)
}

// TakeFacts is Take without the subjects that only became fresher: they stay
// for a later Take.
func (s *Subscription) TakeFacts() (subjects []federation.Key, all bool) {
	return s.take(false)
}

func (s *Subscription) take(refreshed bool) (subjects []federation.Key, all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if all = s.all; all {
		s.all = false
		clear(s.facts)
		return nil, true
	}
	for k, fact := range s.facts {
		if fact || refreshed {
			subjects = append(subjects, k)
			delete(s.facts, k)
		}
	}
	return subjects, false
}

// Close ends the subscription.
func (s *Subscription) Close() {
	s.ledger.mu.Lock()
	defer s.ledger.mu.Unlock()
	delete(s.ledger.subs, s)
}

// add is called with the ledger's lock held: it must not wait.
func (s *Subscription) add(subject federation.Key, c change) {
	if !c.fact && !c.all && !s.refresh {
		return
	}
	s.mu.Lock()
	switch {
	case s.all:
	case c.all || len(s.facts) >= maxPending:
		s.all = true
		clear(s.facts)
	default:
		s.facts[subject] = s.facts[subject] || c.fact
	}
	wake := c.fact || s.all
	s.mu.Unlock()
	if wake {
		select {
		case s.signal <- struct{}{}:
		default:
		}
	}
}
