package hbone

import "time"

// bulkMeter tells whether large pieces of data, in either direction, follow each
// other closely on a session: then small messages wait behind them, in the
// buffers of two kernels and in the windows. Guarded by the session's mu.
type bulkMeter struct {
	n     int       // bytes since start
	start time.Time // of the step under way
	seen  time.Time // when a step was last made in time
}

const (
	bulkPiece = 8 << 10   // what is smaller does not count
	bulkStep  = 256 << 10 // this much
	bulkTime  = 250 * time.Millisecond
	// bulkHold is how long a session counts as busy after the last step: a pause
	// in a transfer is not its end.
	bulkHold = time.Second
)

// add counts a piece of n bytes.
func (m *bulkMeter) add(n int) {
	if n < bulkPiece {
		return
	}
	if m.n += n; m.n < bulkStep {
		return
	}
	now := time.Now()
	if now.Sub(m.start) <= bulkTime {
		m.seen = now
	}
	m.n, m.start = 0, now
}
