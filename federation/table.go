package federation

import (
	"time"
)

// DefaultTTL is how long a record is believed after its origin last stamped it.
const DefaultTTL = 60 * time.Second

// Outcome is what a Merge did.
type Outcome uint8

const (
	Newer     Outcome = iota + 1 // a fact that was not known before, or that differs from the one before
	Refreshed                    // newer, and says the same as before
	Duplicate                    // known already
	Older                        // overtaken by a newer record, or by a newer incarnation
	Expired                      // nobody has vouched for it within the TTL
	Rejected                     // breaks a rule of form
	Full                         // would exceed a limit; not kept
)

func (o Outcome) String() string {
	return [...]string{"none", "newer", "refreshed", "duplicate", "older", "expired", "rejected", "full"}[min(int(o), 7)]
}

// Accepted says whether the table now holds the record because of this merge.
func (o Outcome) Accepted() bool { return o == Newer || o == Refreshed }

// Limits bounds what a Table keeps; zero fields are unlimited.
type Limits struct {
	PerOrigin  int
	PerNetwork int
	Origins    int
}

// DefaultLimits holds 2 000 services of ten ports per origin, three gateways
// and their node proxies' endpoints per network.
var DefaultLimits = Limits{PerOrigin: 20_000, PerNetwork: 100_000, Origins: 4_096}

// Table holds the newest record of every key. The order is (incarnation,
// sequence) of the origin; the time of arrival means nothing. As long as no
// limit is reached, its content depends only on the set of records merged.
//
// It is not safe for concurrent use. Create one with [NewTable].
type Table struct {
	ttl      time.Duration
	limits   Limits
	origins  map[string]*originState
	subjects map[Key][]*entry // by subject: one entry per origin that speaks of it
	networks map[string]int   // records per network
	size     int
}

type originState struct {
	incarnation uint64
	// floor is the highest sequence that has expired here. An origin's
	// sequences grow with time, so whatever is at or below floor is as old:
	// a replay of it must not come back to life.
	floor   uint64
	records map[Key]*entry
}

// entry keeps instants of the local clock instead of ages.
type entry struct {
	key     Key
	record  Record
	seen    time.Time // when the evidence was young
	stamped time.Time // when the origin stamped the sequence
}

// NewTable returns an empty table. A ttl of zero or less means [DefaultTTL].
func NewTable(ttl time.Duration) *Table {
	if ttl <= 0 {
		ttl = DefaultTTL
	}
	return &Table{
		ttl:      ttl,
		limits:   DefaultLimits,
		origins:  map[string]*originState{},
		subjects: map[Key][]*entry{},
		networks: map[string]int{},
	}
}

// SetLimits replaces the limits; what is held already stays.
func (t *Table) SetLimits(l Limits) { t.limits = l }

// TTL returns how long a record is believed.
func (t *Table) TTL() time.Duration { return t.ttl }

// Len returns how many records are held.
func (t *Table) Len() int { return t.size }

// Incarnation returns the newest incarnation known of an origin, or zero.
func (t *Table) Incarnation(origin string) uint64 {
	if o := t.origins[origin]; o != nil {
		return o.incarnation
	}
	return 0
}

// Merge takes r, whose ages are as of now. The table keeps r's facts by
// reference. Of two copies of one record the older ages are believed: a relay
// can only have forgotten time, not invented it.
func (t *Table) Merge(r Record, now time.Time) Outcome {
	if r.Validate() != nil {
		return Rejected
	}
	if r.Silence > t.ttl {
		return Expired
	}
	o := t.origins[r.Origin.Name]
	if o == nil {
		if t.limits.Origins > 0 && len(t.origins) >= t.limits.Origins && !t.forgetSilent() {
			return Full
		}
		o = &originState{incarnation: r.Origin.Incarnation, records: map[Key]*entry{}}
		t.origins[r.Origin.Name] = o
	}
	switch {
	case r.Origin.Incarnation < o.incarnation:
		return Older
	case r.Origin.Incarnation > o.incarnation:
		t.clear(o)
		o.incarnation, o.floor = r.Origin.Incarnation, 0
	}
	return t.mergeInto(o, r, now)
}

func (t *Table) mergeInto(o *originState, r Record, now time.Time) Outcome {
	seen, stamped := now.Add(-r.Age), now.Add(-r.Silence)
	key := r.Key()
	e := o.records[key]
	if e == nil {
		if r.Sequence <= o.floor {
			return Older
		}
		if t.full(o, r.Network) {
			return Full
		}
		t.add(o, &entry{key: key, record: r, seen: seen, stamped: stamped})
		return Newer
	}
	switch {
	case r.Sequence < e.record.Sequence:
		return Older
	case r.Sequence == e.record.Sequence:
		if seen.Before(e.seen) {
			e.seen = seen
		}
		if stamped.Before(e.stamped) {
			e.stamped = stamped
		}
		return Duplicate
	}
	same := SameFact(e.record, r)
	e.record, e.seen, e.stamped = r, seen, stamped
	if same {
		return Refreshed
	}
	return Newer
}

// forgetSilent makes room for a new origin: one that has nothing left to say.
func (t *Table) forgetSilent() bool {
	for name, o := range t.origins {
		if len(o.records) == 0 {
			delete(t.origins, name)
			return true
		}
	}
	return false
}

func (t *Table) full(o *originState, network string) bool {
	return t.limits.PerOrigin > 0 && len(o.records) >= t.limits.PerOrigin ||
		t.limits.PerNetwork > 0 && t.networks[network] >= t.limits.PerNetwork
}

func (t *Table) add(o *originState, e *entry) {
	o.records[e.key] = e
	subject := e.key.Subject()
	t.subjects[subject] = append(t.subjects[subject], e)
	t.networks[e.key.Network]++
	t.size++
}

func (t *Table) remove(o *originState, e *entry) {
	delete(o.records, e.key)
	subject := e.key.Subject()
	kept := t.subjects[subject][:0:0]
	for _, other := range t.subjects[subject] {
		if other != e {
			kept = append(kept, other)
		}
	}
	if len(kept) == 0 {
		delete(t.subjects, subject)
	} else {
		t.subjects[subject] = kept
	}
	if t.networks[e.key.Network]--; t.networks[e.key.Network] == 0 {
		delete(t.networks, e.key.Network)
	}
	t.size--
}

func (t *Table) clear(o *originState) []Key {
	keys := make([]Key, 0, len(o.records))
	for key, e := range o.records {
		keys = append(keys, key)
		t.remove(o, e)
	}
	return keys
}

// Expire removes every record that nobody has vouched for within the TTL, and
// returns their keys. Reads do not depend on it: it bounds memory.
func (t *Table) Expire(now time.Time) []Key {
	var gone []Key
	for _, o := range t.origins {
		for key, e := range o.records {
			if now.Sub(e.stamped) > t.ttl {
				o.floor = max(o.floor, e.record.Sequence)
				gone = append(gone, key)
				t.remove(o, e)
			}
		}
	}
	return gone
}

// Drop removes all records of an origin, for one that discovery no longer
// knows, and returns their keys. Its incarnation is forgotten too.
func (t *Table) Drop(origin string) []Key {
	o := t.origins[origin]
	if o == nil {
		return nil
	}
	delete(t.origins, origin)
	return t.clear(o)
}
