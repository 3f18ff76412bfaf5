package peer

import (
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// Ledger owns a [federation.Table] and is safe for concurrent use. Reads take
// a shared lock for the time of a map lookup; nothing waits while holding it.
type Ledger struct {
	now func() time.Time

	mu    sync.RWMutex
	table *federation.Table
	subs  map[*Subscription]struct{}
}

// NewLedger returns an empty ledger whose records are believed for ttl after
// their origin last stamped them; zero means [federation.DefaultTTL].
func NewLedger(ttl time.Duration) *Ledger {
	return &Ledger{now: time.Now, table: federation.NewTable(ttl), subs: map[*Subscription]struct{}{}}
}

// Merge takes r, whose ages are as of now.
func (l *Ledger) Merge(r federation.Record) federation.Outcome {
	return l.merge(r)[0]
}

// MergeAll takes several records and returns what became of each, in order.
// Subscribers are woken once.
func (l *Ledger) MergeAll(records []federation.Record) []federation.Outcome {
	return l.merge(records...)
}

func (l *Ledger) merge(records ...federation.Record) []federation.Outcome {
	outcomes := make([]federation.Outcome, len(records))
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, r := range records {
		before := l.table.Incarnation(r.Origin.Name)
		if before != 0 && r.Origin.Incarnation > before {
			// Everything an older incarnation said is about to go.
			l.note(federation.Key{}, change{all: true})
		}
		outcomes[i] = l.table.Merge(r, now)
		if outcomes[i].Accepted() {
			l.note(r.Key().Subject(), change{fact: outcomes[i] == federation.Newer})
		}
	}
	return outcomes
}

// note tells the subscribers; the caller holds mu.
func (l *Ledger) note(subject federation.Key, c change) {
	for s := range l.subs {
		s.add(subject, c)
	}
}

// Summary returns what is known of a network service on a service port; see
// [federation.Table.Summary].
func (l *Ledger) Summary(network, service string, port uint16) (federation.SummaryFact, time.Duration, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.table.Summary(network, service, port, l.now())
}

// Endpoint returns the newest evidence about an endpoint's target port; see
// [federation.Table.Endpoint].
func (l *Ledger) Endpoint(network string, id mesh.EndpointID, port uint16) (federation.EndpointFact, time.Duration, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.table.Endpoint(network, id, port, l.now())
}

// Best returns the record that Summary or Endpoint would answer from.
func (l *Ledger) Best(subject federation.Key) (federation.Record, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.table.Best(subject, l.now())
}

// Records returns every record, ages brought up to now, sorted by key.
func (l *Ledger) Records() []federation.Record {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.table.Records(l.now())
}

// Subject returns what each origin says about one subject.
func (l *Ledger) Subject(subject federation.Key) []federation.Record {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.table.Subject(subject, l.now())
}

// Incarnation returns the newest incarnation known of an origin, or zero.
func (l *Ledger) Incarnation(origin string) uint64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.table.Incarnation(origin)
}

// Len returns how many records are held.
func (l *Ledger) Len() int {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.table.Len()
}

// Drop forgets an origin and all that it said.
func (l *Ledger) Drop(origin string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.noteAll(l.table.Drop(origin))
}

// Expire removes what nobody has vouched for within the TTL and returns how
// many records that were. Gossip and the clients of health streams call it every
// second; reads are right without it.
func (l *Ledger) Expire() int {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	gone := l.table.Expire(now)
	l.noteAll(gone)
	return len(gone)
}

func (l *Ledger) noteAll(keys []federation.Key) {
	for _, k := range keys {
		l.note(k.Subject(), change{fact: true})
	}
}

// View is one belief of a ledger, in a form for JSON.
type View struct {
	Network   string                   `json:"network"`            // of the endpoint or the network service
	Origin    string                   `json:"origin"`             // who published it: network/name of a gateway, or a node
	Sequence  uint64                   `json:"sequence"`           // grows with every record of the origin
	AgeMS     *int64                   `json:"ageMs,omitempty"`    // how old the evidence is; absent if there is none (federation.NoEvidence)
	SilenceMS int64                    `json:"silenceMs"`          // how long nobody has vouched for it
	Endpoint  *federation.EndpointFact `json:"endpoint,omitempty"` // the health of one endpoint on one target port; a record has this or summary
	Summary   *federation.SummaryFact  `json:"summary,omitempty"`  // the health of one network service on one service port
}

// Snapshot returns everything that is held, for people: one View per record,
// sorted by key.
func (l *Ledger) Snapshot() []View {
	records := l.Records()
	views := make([]View, len(records))
	for i, r := range records {
		views[i] = View{
			Network: r.Network, Origin: r.Origin.Name, Sequence: r.Sequence,
			SilenceMS: r.Silence.Milliseconds(),
			Endpoint:  r.Endpoint, Summary: r.Summary,
		}
		if r.Age < federation.NoEvidence {
			age := r.Age.Milliseconds()
			views[i].AgeMS = &age
		}
		if r.Summary != nil && r.Summary.Exceptions == nil { // [] in JSON, as everywhere else
			s := *r.Summary
			s.Exceptions = []mesh.EndpointID{}
			views[i].Summary = &s
		}
	}
	return views
}

// TTL returns for how long records are believed.
func (l *Ledger) TTL() time.Duration {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.table.TTL()
}
