package standing

import "time"

// Alarms are the times at which things change by themselves. The zero value has
// none. Not safe for concurrent use.
type Alarms[T comparable] struct {
	at   map[T]time.Time
	wake time.Time // not after the first of them; zero: there is none
}

// Set sets the alarm of x, or takes it away if at is zero.
func (a *Alarms[T]) Set(x T, at time.Time) {
	if at.IsZero() {
		delete(a.at, x)
		return
	}
	if a.at == nil {
		a.at = map[T]time.Time{}
	}
	if a.at[x] = at; a.wake.IsZero() || at.Before(a.wake) {
		a.wake = at
	}
}

// Due returns those whose time has come, without alarms now.
func (a *Alarms[T]) Due(now time.Time) (due []T) {
	if a.wake.IsZero() || now.Before(a.wake) {
		return nil
	}
	a.wake = time.Time{}
	for x, at := range a.at {
		switch {
		case !now.Before(at):
			due = append(due, x)
			delete(a.at, x)
		case a.wake.IsZero() || at.Before(a.wake):
			a.wake = at
		}
	}
	return due
}

// Clear takes all alarms away.
func (a *Alarms[T]) Clear() {
	clear(a.at)
	a.wake = time.Time{}
}
