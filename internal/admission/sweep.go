package admission

import (
	"cmp"
	"slices"
	"time"
)

// SweepEvery is how often the owner of a table calls Sweep.
const SweepEvery = 500 * time.Millisecond

// Shed counts streams that a Sweep has ended.
type Shed struct{ ByIdentity, ByAddress int }

// Sweep looks at the unread bytes of every account that may be above its bound,
// sheds the streams with most of them until it is not, and forgets accounts that
// hold nothing.
func (t *Table) Sweep(now time.Time) Shed {
	var shed Shed
	for _, a := range t.suspects(now) {
		n := t.relieve(a)
		if a.scope == ByIdentity {
			shed.ByIdentity += n
		} else {
			shed.ByAddress += n
		}
	}
	return shed
}

// suspects returns the accounts whose sessions could hold more than they may.
func (t *Table) suspects(now time.Time) []*account {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []*account
	for k, a := range t.accounts {
		a.forgive(now)
		switch {
		case a.sessions == 0 && a.streams == 0 && a.spent == 0:
			delete(t.accounts, k)
		case a.live != nil && (a.over || int64(a.sessions)*t.perSession > a.limits.UnreadBytes):
			out = append(out, a)
		}
	}
	return out
}

// relieve sheds streams of a until its unread bytes are within the bound and
// returns how many. New streams are refused until a Sweep finds it so.
func (t *Table) relieve(a *account) (shed int) {
	type held struct {
		st *Stream
		n  int
	}
	t.mu.Lock()
	streams := make([]held, 0, len(a.live))
	for st := range a.live {
		streams = append(streams, held{st: st})
	}
	t.mu.Unlock()
	var sum int64
	for i := range streams {
		streams[i].n = streams[i].st.unread()
		sum += int64(streams[i].n)
	}
	t.mu.Lock()
	a.over = sum > a.limits.UnreadBytes
	t.mu.Unlock()
	slices.SortFunc(streams, func(x, y held) int { return cmp.Compare(y.n, x.n) })
	for _, h := range streams {
		if sum <= a.limits.UnreadBytes {
			break
		}
		sum -= int64(h.n)
		if t.claim(h.st) {
			h.st.shed()
			shed++
		}
	}
	return shed
}

// claim reports whether st is still to be shed: it is neither released nor shed.
func (t *Table) claim(st *Stream) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	ok := !st.released && !st.claimed
	st.claimed = true
	return ok
}
