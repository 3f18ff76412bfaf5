package health

import "time"

// Forget drops everything known of k: its workload is gone.
func (t *Tracker[K]) Forget(k K) { delete(t.entries, k) }

// Ejected returns, in no order, the keys that are out and not readmitted yet:
// those in phase Ejected and those in phase Probing.
func (t *Tracker[K]) Ejected(now time.Time) []K {
	var out []K
	for k := range t.entries {
		if e := t.entry(k, now); e != nil && e.phase != Healthy {
			out = append(out, k)
		}
	}
	return out
}

// Len returns how many keys cost memory: those not in the default state.
func (t *Tracker[K]) Len() int { return len(t.entries) }

// Prune drops the keys that keep rejects, and those that are back in the
// default state.
func (t *Tracker[K]) Prune(now time.Time, keep func(K) bool) {
	for k := range t.entries {
		if !keep(k) {
			delete(t.entries, k)
		} else {
			t.entry(k, now)
		}
	}
}

// dropDefault lets e go if it says nothing any more, and reports whether.
func (t *Tracker[K]) dropDefault(k K, e *entry) bool {
	drop := e.phase == Healthy && e.health == 1 && e.consecutive == 0 && e.ejections == 0
	if drop {
		delete(t.entries, k)
	}
	return drop
}

// Next returns when Usable may change for k by the passing of time alone; zero if
// it will not.
func (t *Tracker[K]) Next(k K, now time.Time) time.Time {
	switch e := t.entry(k, now); {
	case e == nil:
		return time.Time{}
	case e.phase == Ejected:
		return e.until
	case e.token != 0:
		return e.leased.Add(tokenLease)
	}
	return time.Time{}
}
