package wire

import "time"

// Meter counts events within the current second. The zero value is ready.
type Meter struct {
	start time.Time
	n     int
}

// Add counts n events at now and returns how many there were in its second.
func (m *Meter) Add(now time.Time, n int) int {
	if now.Sub(m.start) >= time.Second {
		m.start, m.n = now, 0
	}
	m.n += n
	return m.n
}
