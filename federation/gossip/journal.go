package gossip

import (
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/peer"
)

// journal holds what this gateway itself has published: the newest fact of
// each key, and which of them still have to be sent.
type journal struct {
	limit  int
	signal chan struct{} // something is dirty

	mu       sync.Mutex
	network  string
	origin   federation.Origin
	sequence uint64
	own      map[federation.Key]peer.Waiting
	dirty    map[federation.Key]struct{}
	changed  bool // since the last full
}

func newJournal(network string, origin federation.Origin, limit int) *journal {
	return &journal{
		limit: limit, signal: make(chan struct{}, 1),
		network: network, origin: origin,
		own: map[federation.Key]peer.Waiting{}, dirty: map[federation.Key]struct{}{},
	}
}

// put stamps records as this gateway's word and marks them for sending. It
// returns them as stamped, without those that are refused.
func (j *journal) put(records []federation.Record, now time.Time) (stamped []federation.Record, refused int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.sequence++
	for _, r := range records {
		r.Network, r.Origin, r.Sequence, r.Silence = j.network, j.origin, j.sequence, 0
		k := r.Key()
		_, known := j.own[k]
		if r.Validate() != nil || !known && len(j.own) >= j.limit {
			refused++
			continue
		}
		j.own[k] = peer.Waiting{Record: r, Since: now}
		j.dirty[k] = struct{}{}
		j.changed = true
		stamped = append(stamped, r)
	}
	j.wake()
	return stamped, refused
}

// forget stops vouching for the subjects; others' records of them fade.
func (j *journal) forget(subjects []federation.Key) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, k := range subjects {
		k.Network, k.Origin = j.network, j.origin.Name
		delete(j.own, k)
		delete(j.dirty, k)
		j.changed = true
	}
}

// take returns what has to be sent, ages as of now.
func (j *journal) take(now time.Time) []federation.Record {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := make([]federation.Record, 0, len(j.dirty))
	for k := range j.dirty {
		out = append(out, j.own[k].At(now))
	}
	clear(j.dirty)
	return out
}

// untake marks records for sending again, if they are still the newest.
func (j *journal) untake(records []federation.Record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, r := range records {
		if _, ok := j.own[r.Key()]; ok {
			j.dirty[r.Key()] = struct{}{}
		}
	}
	j.wake()
}

// refresh stamps what silence would not say by itself anew and marks it for
// sending. Evidence does not get younger by that. It returns the records.
func (j *journal) refresh(now time.Time) []federation.Record {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := j.restamp(now, func(r federation.Record) bool { return !r.Default() })
	for _, r := range out {
		j.dirty[r.Key()] = struct{}{}
	}
	if len(out) > 0 {
		j.wake()
	}
	return out
}

// full stamps everything anew and returns it: what a signed full state says.
func (j *journal) full(now time.Time) []federation.Record {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.changed = false
	return j.restamp(now, func(federation.Record) bool { return true })
}

// restamp is called with the lock held.
func (j *journal) restamp(now time.Time, which func(federation.Record) bool) []federation.Record {
	j.sequence++
	out := make([]federation.Record, 0, len(j.own))
	for k, w := range j.own {
		if !which(w.Record) {
			continue
		}
		r := w.At(now)
		r.Sequence, r.Silence = j.sequence, 0
		j.own[k] = peer.Waiting{Record: r, Since: now}
		out = append(out, r)
	}
	return out
}

// isChanged says whether facts have changed since the last full.
func (j *journal) isChanged() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.changed
}

// outlive takes note of what others believe that this origin has said. If that
// is ahead of us (a clock went back over a restart), a higher incarnation is
// taken and everything is published again; nobody would believe us otherwise.
func (j *journal) outlive(r federation.Record, now time.Time) (again []federation.Record) {
	j.mu.Lock()
	ours := j.origin.Incarnation
	ahead := r.Origin.Incarnation > ours || r.Origin.Incarnation == ours && r.Sequence > j.sequence
	if !ahead {
		j.mu.Unlock()
		return nil
	}
	j.origin.Incarnation = r.Origin.Incarnation + 1
	for k, w := range j.own {
		w.Record.Origin = j.origin
		j.own[k] = w
		j.dirty[k] = struct{}{}
	}
	j.changed = true
	j.wake()
	j.mu.Unlock()
	return j.full(now)
}

func (j *journal) wake() {
	select {
	case j.signal <- struct{}{}:
	default:
	}
}
