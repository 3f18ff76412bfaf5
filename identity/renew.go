package identity

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// Run renews every known SVID at half of its remaining lifetime, and at once
// when the source's files change; after a failure it tries again with backoff
// (see [Manager.Status]). It blocks until ctx is done, ends the fetches in
// flight, waits for them and returns nil. A Manager runs once.
func (m *Manager) Run(ctx context.Context) error {
	m.mu.Lock()
	if m.running || m.stopped {
		m.mu.Unlock()
		return errors.New("identity: run: the manager is running already or has stopped: make a new one")
	}
	m.running = true
	m.mu.Unlock()
	defer m.stop()

	var poll <-chan time.Time
	src, looks := m.src.(fingerprinter)
	if looks || m.bundlePath != "" {
		t := time.NewTicker(pollEvery)
		defer t.Stop()
		poll = t.C
	}
	clock := time.NewTicker(clockEvery)
	defer clock.Stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.wake:
		case <-timer.C:
		case <-clock.C:
		case <-poll:
			m.readBundleFile()
			if looks {
				m.pollSource(src)
			}
		}
		if next, ok := m.renewDue(time.Now()); ok {
			timer.Reset(time.Until(next))
		} else {
			timer.Stop()
		}
	}
}

func (m *Manager) stop() {
	m.mu.Lock()
	m.stopped = true
	m.mu.Unlock()
	m.cancel(ErrStopped)
	m.fetches.Wait()
	if c, ok := m.src.(io.Closer); ok {
		if err := c.Close(); err != nil {
			m.log.Debug().Err(err).Msg("identity source not closed")
		}
	}
}

// renewDue starts what is due and returns when to look again; false if nothing
// waits for time to pass. An identity that has no valid SVID and that nobody
// asked for since the last try is forgotten unless it is required: that bounds
// the map.
func (m *Manager) renewDue(now time.Time) (next time.Time, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, e := range m.entries {
		if m.required[id] && e.svid != nil && e.failures == 0 && !e.valid(now) {
			e.due = now // the wall clock has jumped: due is by the monotonic one
		}
		switch {
		case e.call != nil:
			continue
		case !now.Before(e.due) && !e.asked && !e.valid(now) && !m.required[id]:
			delete(m.entries, id)
			continue
		case !now.Before(e.due):
			m.start(e)
			continue
		}
		if !ok || e.due.Before(next) {
			next, ok = e.due, true
		}
	}
	return next, ok
}

// pollSource makes due whatever the source would now answer differently.
func (m *Manager) pollSource(src fingerprinter) {
	m.mu.Lock()
	seen := make(map[*entry]string, len(m.entries))
	for _, e := range m.entries {
		if e.call == nil {
			seen[e] = e.print
		}
	}
	m.mu.Unlock()
	for e, old := range seen {
		if src.Fingerprint(e.id) == old {
			continue
		}
		m.mu.Lock()
		if e.print == old {
			e.refetch() // new files are worth a try
		}
		m.mu.Unlock()
	}
}

// start begins a fetch for e. The caller holds mu.
func (m *Manager) start(e *entry) {
	if m.stopped {
		return
	}
	c := &call{done: make(chan struct{})}
	e.call, e.asked = c, false
	m.fetches.Go(func() { m.fetch(e, c) })
}

// fetch fills c and takes its result into e.
func (m *Manager) fetch(e *entry, c *call) {
	ctx, cancel := context.WithTimeoutCause(m.base, fetchTimeout, fmt.Errorf("the source did not answer within %s", fetchTimeout))
	defer cancel()
	var fingerprint string
	select {
	case m.slots <- struct{}{}:
		if f, ok := m.src.(fingerprinter); ok {
			fingerprint = f.Fingerprint(e.id) // before the content: a change in between is seen by the next poll
		}
		c.svid, c.err = m.src.Fetch(ctx, e.id)
		<-m.slots
	case <-ctx.Done():
		c.err = context.Cause(ctx)
	}
	now := time.Now()
	if c.err == nil {
		c.err = c.svid.Check(e.id, now)
	}
	if c.err != nil {
		c.svid, c.err = nil, fmt.Errorf("identity: fetch svid of %s: %w", e.id, c.err)
		m.failed.Add(1)
	} else {
		m.fetched.Add(1)
	}
	m.settle(e, c, fingerprint, now)
	close(c.done)
	m.nudge()
}

// settle takes the result of c into e and writes one line if the state changed.
func (m *Manager) settle(e *entry, c *call, fingerprint string, now time.Time) {
	m.mu.Lock()
	stopped, before, failed := m.stopped, e.svid, e.failures
	e.call, e.print, e.err = nil, fingerprint, c.err
	var wait time.Duration
	if c.err == nil {
		wait = max(c.svid.NotAfter().Sub(now)/2, minRenewal)
		e.svid, e.failures = c.svid, 0
	} else {
		e.failures++
		wait = retries.Delay(e.failures, m.jitter())
	}
	e.due = now.Add(wait)
	if e.again {
		e.again, e.asked, e.due = false, true, now
	}
	m.mu.Unlock()

	switch {
	case c.err != nil && stopped:
	case c.err != nil && failed == 0:
		line := m.log.Warn().Err(c.err).Stringer("id", e.id).Stringer("retry_in", wait)
		if before != nil {
			line = line.Time("expires", before.NotAfter())
		}
		line.Msg("svid not renewed")
	case c.err != nil:
		m.log.Debug().Err(c.err).Stringer("id", e.id).Int("try", failed+1).Stringer("retry_in", wait).Msg("svid still not renewed")
	case before == nil:
		m.log.Info().Stringer("id", e.id).Time("expires", c.svid.NotAfter()).Msg("svid fetched")
	case failed > 0 || !c.svid.same(before):
		m.log.Info().Stringer("id", e.id).Time("expires", c.svid.NotAfter()).Msg("svid renewed")
	}
}
