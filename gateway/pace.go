package gateway

import (
	"context"
	"time"
)

const (
	// paceEvery is how often what is said of a service's port may change in the long
	// run, and paceBurst how many changes are said at once before that.
	paceEvery = 250 * time.Millisecond
	paceBurst = 4
)

// pace says when the next change may be said. The zero value is rested.
type pace struct {
	full time.Time // when it will be rested
}

// next returns from when on a change may be said.
func (p pace) next() time.Time { return p.full.Add(-(paceBurst - 1) * paceEvery) }

// took returns p after a change was said.
func (p pace) took(now time.Time) pace {
	if p.full.Before(now) {
		p.full = now
	}
	return pace{p.full.Add(paceEvery)}
}

// hold puts off a look at k that comes too soon after others. The caller holds mu.
func (d *deliveries) hold(k portKey, old *delivery, now time.Time) (held bool) {
	at := old.pace.next()
	if !now.Before(at) {
		delete(d.late, k)
		return false
	}
	if d.late == nil {
		d.late = map[portKey]time.Time{}
	}
	d.late[k] = at
	select {
	case d.behind <- struct{}{}:
	default:
	}
	return true
}

// keepUp catches up with what is put off until ctx ends.
func (d *deliveries) keepUp(ctx context.Context) {
	due := time.NewTimer(paceEvery)
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.behind:
		case <-due.C:
			d.catchUp(time.Now())
		}
		if at := d.next(); !at.IsZero() {
			due.Reset(time.Until(at))
		}
	}
}

// next returns when the next look is due that was put off; zero: none was.
func (d *deliveries) next() (at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, t := range d.late {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	return at
}

// catchUp says what has changed in those ports whose look was put off and is due.
func (d *deliveries) catchUp(now time.Time) {
	var services []string
	d.mu.Lock()
	for k, at := range d.late {
		if now.Before(at) {
			continue
		}
		delete(d.late, k)
		services = append(services, k.service)
	}
	d.mu.Unlock()
	d.update(services, now)
}
