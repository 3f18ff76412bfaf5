package warmset

import (
	"math"
	"time"
)

const (
	// MinSlots and MaxSlots bound how many slots the demand asks for. Endpoints that
	// may be chosen bound them as well.
	MinSlots = 2
	MaxSlots = 64
	// usesPerSlot is after how many connections a slot is renewed, give or take half.
	usesPerSlot = 32
	// renewAfter is after how long it is renewed if it was used less.
	renewAfter = time.Minute
)

// demand estimates connections a second: their number, of which each counts less
// the longer ago it was (half after 42 s), for the time that they were counted in. So
// the estimate is right from the first second on.
type demand struct {
	began, at time.Time
	count     float64 // as of at
}

const memory = time.Minute

func (d *demand) note(now time.Time) {
	if d.began.IsZero() {
		d.began, d.at = now, now
	}
	d.count = d.decayed(now) + 1
	d.at = now
}

func (d *demand) decayed(now time.Time) float64 {
	return d.count * math.Exp(-now.Sub(d.at).Seconds()/memory.Seconds())
}

// rate is connections a second. Less than a second counts as one.
func (d *demand) rate(now time.Time) float64 {
	if d.began.IsZero() {
		return 0
	}
	age := max(time.Second, now.Sub(d.began))
	return d.decayed(now) / (memory.Seconds() * (1 - math.Exp(-age.Seconds()/memory.Seconds())))
}

// slots is how many slots see each its number of uses before it is renewed for its
// age.
func (d *demand) slots(now time.Time) int {
	want := d.rate(now) * renewAfter.Seconds() / usesPerSlot
	return int(min(max(math.Ceil(want), MinSlots), MaxSlots))
}
