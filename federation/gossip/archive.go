package gossip

import (
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/federationpb"
)

// Limits of what is kept for relaying, per origin. Beyond them the oldest
// envelope is not relayed any more; the ledger keeps what it said.
const (
	maxArchived      = 2048    // envelopes
	maxArchivedBytes = 8 << 20 // of all envelopes
)

// archive keeps the envelopes of other origins for as long as they hold the
// newest record of some key, so that a push/pull can pass on what their
// origins have signed.
type archive struct {
	mu      sync.Mutex
	origins map[string]*shelf
}

// shelf is what one incarnation of one origin has said.
type shelf struct {
	incarnation uint64
	newest      map[federation.Key]*held
	held        map[digest]*held
	bytes       int
}

type held struct {
	envelope *federationpb.Envelope
	digest   digest
	received time.Time
	size     int
	live     int // keys whose newest record is in here
}

func newArchive() *archive { return &archive{origins: map[string]*shelf{}} }

// knows says whether the very same envelope is held already.
func (a *archive) knows(d digest) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.origins {
		if s.held[d] != nil {
			return true
		}
	}
	return false
}

// keep files e, which was received at that instant; outcomes are those of its
// records.
func (a *archive) keep(e *federationpb.Envelope, d digest, received time.Time, records []federation.Record, outcomes []federation.Outcome) {
	a.mu.Lock()
	defer a.mu.Unlock()
	h := &held{envelope: e, digest: d, received: received, size: proto.Size(e)}
	var s *shelf
	for i, r := range records {
		if !outcomes[i].Accepted() {
			continue
		}
		if s == nil {
			s = a.shelf(r.Origin)
		}
		k := r.Key()
		s.release(k)
		s.newest[k] = h
		h.live++
	}
	if h.live == 0 {
		return
	}
	s.held[d] = h
	s.bytes += h.size
	for len(s.held) > maxArchived || s.bytes > maxArchivedBytes {
		s.dropOldest()
	}
}

func (a *archive) shelf(o federation.Origin) *shelf {
	s := a.origins[o.Name]
	if s == nil || s.incarnation < o.Incarnation {
		s = &shelf{incarnation: o.Incarnation, newest: map[federation.Key]*held{}, held: map[digest]*held{}}
		a.origins[o.Name] = s
	}
	return s
}

// release takes k away from the envelope that held its newest record.
func (s *shelf) release(k federation.Key) {
	old := s.newest[k]
	if old == nil {
		return
	}
	delete(s.newest, k)
	if old.live--; old.live == 0 {
		s.drop(old)
	}
}

func (s *shelf) drop(h *held) {
	if s.held[h.digest] == h {
		delete(s.held, h.digest)
		s.bytes -= h.size
	}
}

func (s *shelf) dropOldest() {
	var oldest *held
	for _, h := range s.held {
		if oldest == nil || h.received.Before(oldest.received) {
			oldest = h
		}
	}
	s.drop(oldest)
}

// current returns every held envelope with its relay age as of now. Envelopes
// that no receiver would believe any more are dropped instead.
func (a *archive) current(now time.Time, ttl time.Duration) []*federationpb.Envelope {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []*federationpb.Envelope
	for name, s := range a.origins {
		for _, h := range s.held {
			e := aged(h.envelope, now.Sub(h.received))
			if e.RelayMs > uint64(ttl/time.Millisecond) {
				s.drop(h)
				continue
			}
			out = append(out, e)
		}
		if len(s.held) == 0 {
			delete(a.origins, name)
		}
	}
	return out
}
