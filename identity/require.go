package identity

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// OwnError says that this process has no valid SVID of its own as ID, and so
// could not begin a handshake. It says nothing about any peer.
type OwnError struct {
	ID  spiffeid.ID
	Err error
}

func (e *OwnError) Error() string {
	return fmt.Sprintf("own certificate of %s: %v", e.ID, e.Err)
}

func (e *OwnError) Unwrap() error { return e.Err }

// Require names the identities that this process cannot do without, instead of
// those that it named before, which are forgotten. They are fetched at once,
// renewed without being asked for, and never forgotten when they expire.
func (m *Manager) Require(ids ...spiffeid.ID) {
	required := make(map[spiffeid.ID]bool, len(ids))
	for _, id := range ids {
		required[id] = true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for id := range m.required {
		if !required[id] {
			delete(m.entries, id)
		}
	}
	m.required = required
	if m.stopped {
		return
	}
	for id := range required {
		if m.entries[id] == nil {
			m.entries[id] = &entry{id: id}
			m.start(m.entries[id])
		}
	}
}

// Missing says, for each required identity without a valid SVID, which it is
// and why, sorted. Empty means that none is missing.
func (m *Manager) Missing() []string {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for id := range m.required {
		e := m.entries[id]
		if e != nil && e.valid(now) {
			continue
		}
		why := "not fetched yet"
		if e != nil && e.err != nil {
			why = e.err.Error()
		}
		if e != nil && e.svid != nil {
			why = fmt.Sprintf("expired at %s; %s", stamp(e.svid.NotAfter()), why)
		}
		out = append(out, fmt.Sprintf("certificate of %s: %s", id, why))
	}
	slices.Sort(out)
	return out
}

// Check fetches the SVIDs of ids where they come from files, and joins the errors. A running
// process waits for these files. A source in another process is not asked; the token for it is
// read.
func (m *Manager) Check(ids ...spiffeid.ID) error {
	if s, remote := m.src.(istioSource); remote {
		_, err := s.client.Token()
		return err
	}
	var failed []error
	for _, id := range ids {
		if _, err := m.src.Fetch(context.Background(), id); err != nil {
			failed = append(failed, fmt.Errorf("identity.dir: %w", err))
		}
	}
	return errors.Join(failed...)
}

// CheckTrustDomain refuses a source that is known to sign for another trust
// domain only.
func (m *Manager) CheckTrustDomain(name string) error {
	d, ok := m.src.(caDir)
	if !ok {
		return nil
	}
	if td := d.Current().TrustDomain().Name(); td != name {
		return fmt.Errorf("identity.dir: %s: the ca signs for trust domain %q, this process is in %q: use the ca of that mesh, or correct trustDomain", d.dir, td, name)
	}
	return nil
}

// reloader is a Source that holds something read from files.
type reloader interface{ Reload() error }

// Reload makes the source read its files again and fetches every known SVID
// anew. What is valid serves until the new one is there; if the files are bad it
// goes on serving. It waits for the source's files, not for the fetches.
func (m *Manager) Reload() {
	if r, ok := m.src.(reloader); ok {
		if err := r.Reload(); err != nil {
			m.refused.Add(1)
			m.log.Error().Err(err).Msg("identity source refused, keeping the one in force")
			return
		}
	}
	m.mu.Lock()
	for _, e := range m.entries {
		e.refetch()
	}
	m.mu.Unlock()
	m.nudge()
}

// refetch makes e due now, or as soon as the fetch in flight has ended; the
// caller holds Manager.mu.
func (e *entry) refetch() {
	e.due, e.asked, e.again = time.Time{}, true, e.call != nil
}

// nudge makes Run look at what is due.
func (m *Manager) nudge() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}
