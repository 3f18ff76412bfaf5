package antientropy

import (
	"maps"
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/record"
)

const (
	// retryEvery is the time between two attempts to say what there was no room for:
	// an attempt goes through all of it.
	retryEvery = time.Second
	// networkRoom is what other records leave of the limit in bytes for the network
	// record, which says that this instance drains. Of a small limit it is a sixteenth.
	networkRoom = 4 << 10
)

// networkKey is the key of what an instance says of itself.
var networkKey = record.EncodeKey(record.Key{Kind: record.KindNetwork})

// Unsaid is a record that is not published as it is.
type Unsaid struct {
	Key record.Key
	Err error // a [*record.InvalidError], or [record.ErrTooLarge]
}

// unsaid is the same, with what is to be said when there is room. A nil entry is
// nothing that could ever be said.
type unsaid struct {
	key   record.Key
	entry *record.Entry
	err   error
}

// Unsaid returns what is not published, because there is no room for it or because it
// is no record, sorted by key. The first is said as soon as there is room.
func (p *Publisher) Unsaid() []Unsaid {
	out := make([]Unsaid, 0, len(p.unsaid))
	for _, key := range slices.Sorted(maps.Keys(p.unsaid)) {
		out = append(out, Unsaid{p.unsaid[key].key, p.unsaid[key].err})
	}
	return out
}

// UnsaidLen is the length of what Unsaid returns.
func (p *Publisher) UnsaidLen() int { return len(p.unsaid) }

// unable keeps what could not be said. Health that is no longer true is withdrawn:
// each statement vouches for all that stands, and unknown is usable. Exports, and what
// the instance says of itself, stay as they were said.
func (p *Publisher) unable(key string, e *record.Entry, err error, now time.Time) {
	k, _ := record.DecodeKey(key)
	p.unsaid[key] = unsaid{k, e, err}
	if k.Kind == record.KindHealth {
		p.remove(key, now)
	}
}

// full is why a record of size bytes may not be said beside what is said already: the
// last of the room is for the network record.
func (p *Publisher) full(key string, size int) error {
	if key == networkKey {
		return nil
	}
	old, there := p.set.Get(key)
	records, bytes := p.set.Len(), p.set.Bytes()+size
	if there {
		bytes -= old.Size()
	}
	_, introduced := p.set.Get(networkKey)
	switch {
	case !there && !introduced && p.limit.records > 0 && records >= p.limit.records-1:
		return record.ErrTooLarge
	case p.limit.bytes > 0 && bytes > p.limit.bytes-min(networkRoom, p.limit.bytes/16) && (!there || size > old.Size()):
		return record.ErrTooLarge
	}
	return nil
}

// retry says what there was no room for, as far as there is some now.
func (p *Publisher) retry(now time.Time) {
	if at := p.retryAt(); at.IsZero() || now.Before(at) {
		return
	}
	p.room, p.retried = false, now
	for _, key := range slices.Sorted(maps.Keys(p.unsaid)) {
		if u := p.unsaid[key]; u.entry != nil {
			if p.put(*u.entry, now) == nil {
				delete(p.unsaid, key)
			}
		}
	}
}

// retryAt is when retry has something to do; zero: nothing has gone that could have
// made room.
func (p *Publisher) retryAt() time.Time {
	if !p.room || len(p.unsaid) == 0 {
		return time.Time{}
	}
	return p.retried.Add(retryEvery)
}
