package identity

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/internal/backoff"
)

const (
	pollEvery    = time.Second
	fetchTimeout = 10 * time.Second
	clockEvery   = 3 * time.Second        // looks for a wall clock that has jumped
	maxFetches   = 8                      // in flight at once, as ztunnel
	minRenewal   = 500 * time.Millisecond // between two renewals of one identity
)

// retries are the pauses between fetches that fail (the numbers are ztunnel's).
var retries = backoff.Backoff{First: 500 * time.Millisecond, Limit: 150 * time.Second}

// ErrStopped is what Get returns for an identity without a valid SVID once Run
// has returned.
var ErrStopped = errors.New("identity manager has stopped")

// fingerprinter is a Source that can tell cheaply whether what it would return
// for id has changed.
type fingerprinter interface{ Fingerprint(id spiffeid.ID) string }

// Manager keeps the SVIDs of the identities that were asked for. It is safe for
// concurrent use. Get works before Run does; without Run nothing is renewed
// before it has expired.
type Manager struct {
	src    Source
	log    zerolog.Logger
	jitter func() float64

	// base is the parent of every fetch and ends with Run: a fetch belongs to
	// the Manager and not to the caller that happened to come first.
	base    context.Context
	cancel  context.CancelCauseFunc
	fetches sync.WaitGroup
	slots   chan struct{}
	wake    chan struct{} // something is due earlier than Run thinks

	fetched, failed atomic.Int64 // fetches, for Metrics
	refused         atomic.Int64 // sources that Reload did not take, for Metrics

	belief     atomic.Pointer[belief]
	bundlePath string // of further roots of the own trust domain; empty: there is none

	mu          sync.Mutex // never held across a fetch, a log line or a wait
	bundlePrint string     // of the file there, as it was read last
	running     bool
	stopped     bool
	entries     map[spiffeid.ID]*entry
	// required are the identities that must not be missing; their entries are
	// there as long as they are required. Replaced as a whole.
	required map[spiffeid.ID]bool
}

// entry is what the Manager knows about one identity; guarded by Manager.mu.
type entry struct {
	id       spiffeid.ID
	svid     *SVID // last good one, perhaps expired; nil before the first
	call     *call // the fetch in flight
	failures int   // consecutive failures
	err      error // error of the last failure
	due      time.Time
	print    string // fingerprint before the last fetch
	asked    bool   // since the last fetch began
	again    bool   // fetch once more as soon as the call has ended
}

// call is one fetch that any number of callers wait for. svid and err may be
// read once done is closed.
type call struct {
	done chan struct{}
	svid *SVID
	err  error
}

// Option changes a Manager; none is needed.
type Option func(*Manager)

// WithJitter replaces the random source, uniform in [0, 1), of the backoff.
func WithJitter(f func() float64) Option { return func(m *Manager) { m.jitter = f } }

// NewManager starts nothing; see Run.
func NewManager(src Source, log zerolog.Logger, opts ...Option) *Manager {
	m := &Manager{
		src: src, log: log, jitter: rand.Float64,
		slots:   make(chan struct{}, maxFetches),
		wake:    make(chan struct{}, 1),
		entries: map[spiffeid.ID]*entry{},
	}
	m.base, m.cancel = context.WithCancelCause(context.Background())
	for _, o := range opts {
		o(m)
	}
	m.readBundleFile()
	return m
}

// Get returns the SVID of id, valid now. The first call fetches it; concurrent
// callers share that fetch, and it goes on if one of them gives up. After a
// failure the same error is returned at once until the backoff has passed.
func (m *Manager) Get(ctx context.Context, id spiffeid.ID) (*SVID, error) {
	s, c, err := m.lookup(id)
	if c == nil {
		return s, err
	}
	select {
	case <-c.done:
		return c.svid, c.err
	case <-ctx.Done():
		return nil, fmt.Errorf("identity: wait for the svid of %s: %w", id, context.Cause(ctx))
	}
}

// lookup returns exactly one of: a valid SVID, a fetch to wait for, an error.
func (m *Manager) lookup(id spiffeid.ID) (*SVID, *call, error) {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.entries[id]
	if e != nil {
		e.asked = true
		if e.valid(now) {
			return e.svid, nil, nil
		}
		if e.call != nil {
			return nil, e.call, nil
		}
		if e.failures > 0 && now.Before(e.due) {
			return nil, nil, fmt.Errorf("%w (try %d; the next is in %s)", e.err, e.failures, e.due.Sub(now).Round(time.Millisecond))
		}
	}
	if m.stopped {
		return nil, nil, fmt.Errorf("identity: svid of %s: %w", id, ErrStopped)
	}
	if e == nil {
		e = &entry{id: id, asked: true}
		m.entries[id] = e
	}
	m.start(e)
	return nil, e.call, nil
}

func (e *entry) valid(now time.Time) bool {
	return e.svid != nil && now.Before(e.svid.NotAfter())
}

// Forget drops the SVID of id, for example because its last workload has left
// this node. A later Get fetches it anew.
func (m *Manager) Forget(id spiffeid.ID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.entries, id)
}

// Status is what a Manager knows about one identity, for an operator.
type Status struct {
	ID       spiffeid.ID `json:"id"`                // SPIFFE ID of the certificate
	NotAfter time.Time   `json:"notAfter,omitzero"` // expiry of the certificate; absent if there was never one
	Failures int         `json:"failures"`          // consecutive failures
	Error    string      `json:"error,omitempty"`   // error of the last failure
	NextTry  time.Time   `json:"nextTry,omitzero"`  // when the next fetch is due
}

// Status lists the known identities, sorted.
func (m *Manager) Status() []Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]Status, 0, len(m.entries))
	for _, e := range m.entries {
		s := Status{ID: e.id, Failures: e.failures, NextTry: e.due}
		if e.svid != nil {
			s.NotAfter = e.svid.NotAfter()
		}
		if e.err != nil {
			s.Error = e.err.Error()
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b Status) int { return strings.Compare(a.ID.String(), b.ID.String()) })
	return out
}
