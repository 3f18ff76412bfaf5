// Package resolve keeps the addresses of host names, by the time to live that DNS gives
// them. What a name has led to once stays until it leads elsewhere: that it is not found,
// or nobody answers, takes nothing away. An address that an answer does not have has been left, and
// goes at once; only where addresses come back, as a server gives a part of them each time, do those that
// the last answers did not have stay for a while. A name is also resolved again when all of
// its addresses fail.
package resolve

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/backoff"
)

const (
	// A name is asked for again when its time to live is over, and at once after that: what
	// has changed is known within the time to live and the time that two questions take.
	shortest = time.Second // a record that must not be kept is kept for so long
	longest  = 5 * time.Minute

	maxNames     = 256 // that are followed
	maxAddresses = 32  // of one name, those of the last answer first

	// An address is given up when missedAnswers in a row, or all that came in missedFor, did not have it. One
	// that comes before has the name count, for inTurns answers, as one that gives its addresses by turns.
	missedAnswers = 6
	missedFor     = 5 * time.Minute
	inTurns       = 2 * missedAnswers
	// attempt bounds all questions for one name: of each server, search domain and attempt; one server
	// that is gone costs a second of it.
	attempt = 15 * time.Second
)

// leastBetween is the minimum time between an answer and a lookup that Unreachable causes.
// A network that is down costs one lookup in that time.
const leastBetween = 5 * time.Second

// failures are the pauses while a name is not found, or nobody answers.
var failures = backoff.Backoff{First: 500 * time.Millisecond, Limit: 5 * time.Second}

// ErrNotFound is a name without addresses.
var ErrNotFound = errors.New("the name has no addresses")

// Lookup returns the addresses of a name and how long they may be kept.
type Lookup func(ctx context.Context, name string) ([]netip.Addr, time.Duration, error)

// Resolver follows names. Safe for concurrent use.
type Resolver struct {
	lookup  Lookup
	changed func()

	mu    sync.Mutex
	names map[string]*name
	wake  chan struct{}
}

type name struct {
	addresses   []netip.Addr            // sorted
	missed      map[netip.Addr]missed   // that it has led to, and the last answer did not have
	turns       int                     // for how many answers it counts as one that gives them by turns
	err         error                   // of the last question
	unreachable map[netip.Addr]struct{} // of addresses: those that failed since the last answer
	asked       time.Time               // when the last question ended
	due         time.Time
	failed      int
	asking      bool
}

// missed is since when answers have not had an address.
type missed struct {
	answers int
	since   time.Time
}

// New returns a resolver that has changed called, and not under any lock, when a name leads elsewhere, or the
// first lookup of it fails. Run it.
func New(lookup Lookup, changed func()) *Resolver {
	return &Resolver{lookup: lookup, changed: changed, names: map[string]*name{}, wake: make(chan struct{}, 1)}
}

// Follow replaces the names that are followed; of more than 256 the first ones are.
func (r *Resolver) Follow(names ...string) {
	names = names[:min(len(names), maxNames)]
	r.mu.Lock()
	defer r.mu.Unlock()
	for n := range r.names {
		if !slices.Contains(names, n) {
			delete(r.names, n)
		}
	}
	for _, n := range names {
		if r.names[n] == nil {
			r.names[n] = &name{}
		}
	}
	r.hurry()
}

func (r *Resolver) hurry() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Addresses returns what a name led to last, sorted, and why nothing newer is known; it
// is not to be changed.
func (r *Resolver) Addresses(host string) ([]netip.Addr, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.names[host]
	if n == nil {
		return nil, nil
	}
	return n.addresses, n.err
}

// Unreachable records a failed connection to a. If all addresses of a name have failed
// since its last answer, the name is resolved again, but not within 5 s of that answer: the
// name may have moved before its time to live expired. A nil r does nothing.
func (r *Resolver) Unreachable(a netip.Addr) {
	if r == nil {
		return
	}
	a = a.Unmap()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.names {
		if n.asking || !slices.Contains(n.addresses, a) {
			continue
		}
		if n.unreachable == nil {
			n.unreachable = map[netip.Addr]struct{}{}
		}
		if n.unreachable[a] = struct{}{}; len(n.unreachable) < len(n.addresses) {
			continue
		}
		if at := n.asked.Add(leastBetween); at.Before(n.due) {
			n.due = at
			r.hurry()
		}
	}
}

// Run asks for what is due until ctx ends, and waits for what it has started.
func (r *Resolver) Run(ctx context.Context) {
	var asking sync.WaitGroup
	defer asking.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-r.wake:
		}
		now := time.Now()
		next := now.Add(time.Hour)
		r.mu.Lock()
		for host, n := range r.names {
			switch {
			case n.asking:
			case !n.due.After(now):
				n.asking = true
				asking.Go(func() { r.ask(ctx, host, n) })
			case n.due.Before(next):
				next = n.due
			}
		}
		r.mu.Unlock()
		timer.Reset(time.Until(next))
	}
}

// ask asks for one name.
func (r *Resolver) ask(ctx context.Context, host string, n *name) {
	actx, cancel := context.WithTimeout(ctx, attempt)
	found, ttl, err := r.lookup(actx, host)
	cancel()
	if ctx.Err() != nil {
		return
	}
	found = tidy(found)
	if err == nil && len(found) == 0 {
		err = ErrNotFound
	}
	r.mu.Lock()
	n.asking, n.err, n.asked, n.unreachable = false, err, time.Now(), nil
	news := false
	if err != nil {
		n.failed++
		news = n.failed == 1 && len(n.addresses) == 0
		n.due = time.Now().Add(failures.Next(n.failed))
	} else {
		now := time.Now()
		n.failed, n.due = 0, now.Add(min(max(ttl, shortest), longest))
		if all := n.with(found, now); !slices.Equal(all, n.addresses) {
			news, n.addresses = true, all
		}
	}
	news = news && r.names[host] == n
	r.hurry()
	r.mu.Unlock()
	if news {
		r.changed()
	}
}

// with returns found, which an answer had, sorted; and those before it that are not given up yet, of
// a name that gives its addresses by turns.
func (n *name) with(found []netip.Addr, now time.Time) []netip.Addr {
	if n.turns > 0 {
		n.turns--
	}
	left := map[netip.Addr]missed{}
	for a, m := range n.missed {
		if slices.Contains(found, a) {
			n.turns = inTurns
		} else if m.answers++; m.answers < missedAnswers && now.Sub(m.since) < missedFor {
			left[a] = m
		}
	}
	for _, a := range n.addresses {
		if _, before := n.missed[a]; !before && !slices.Contains(found, a) {
			left[a] = missed{answers: 1, since: now}
		}
	}
	for len(left) > maxAddresses {
		delete(left, oldest(left))
	}
	n.missed = left
	out := slices.Clone(found)
	for _, a := range slices.SortedFunc(maps.Keys(left), func(a, b netip.Addr) int { return cmp.Or(left[a].answers-left[b].answers, a.Compare(b)) }) {
		if n.turns > 0 && len(out) < maxAddresses {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// oldest is what answers have not had for longest.
func oldest(all map[netip.Addr]missed) netip.Addr {
	return slices.MaxFunc(slices.Collect(maps.Keys(all)), func(a, b netip.Addr) int { return cmp.Or(all[a].answers-all[b].answers, a.Compare(b)) })
}

// tidy sorts what was found, once each.
func tidy(found []netip.Addr) []netip.Addr {
	out := make([]netip.Addr, 0, len(found))
	for _, a := range found {
		if a = a.Unmap(); a.IsValid() && a.Zone() == "" {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	out = slices.Compact(out)
	return out[:min(len(out), maxAddresses)]
}
