package flow

import "time"

// Bulk tells whether large pieces of data, in either direction, follow each other
// closely on a session: then small messages wait behind them, in the buffers of two
// kernels and in the windows. The zero value has seen none. Not safe for concurrent
// use.
type Bulk struct {
	n     int       // bytes since start
	start time.Time // of the step under way
	seen  time.Time // when a step was last made in time
}

const (
	// BulkPiece is the size from which on a piece of data counts as bulk, in bytes.
	BulkPiece = 8 << 10
	bulkStep  = 256 << 10 // this much
	bulkTime  = 250 * time.Millisecond
	// bulkHold is how long a session counts as congested after the last step: a
	// pause in a transfer is not its end.
	bulkHold = time.Second
)

// Add counts a piece of n bytes. When it returns true Step is to be called.
func (b *Bulk) Add(n int) bool {
	if n < BulkPiece {
		return false
	}
	b.n += n
	return b.n >= bulkStep
}

// Step ends one step and starts the next one.
func (b *Bulk) Step(now time.Time) {
	if now.Sub(b.start) <= bulkTime {
		b.seen = now
	}
	b.n, b.start = 0, now
}

// Congested reports whether bulk passed lately.
func (b *Bulk) Congested(now time.Time) bool { return now.Sub(b.seen) < bulkHold }

const (
	// interactiveFrames is how many small frames in a row make a stream one of
	// small messages: the remainders of a transfer come one by one.
	interactiveFrames = 8
	// InteractiveHold is how long a session has small messages after the last one.
	InteractiveHold = time.Second
)

// SmallFrames counts the DATA frames of a stream that were small, in a row.
type SmallFrames int

// Add counts a frame of n bytes and reports whether its stream carries small
// messages.
func (c *SmallFrames) Add(n int) bool {
	if n >= BulkPiece {
		*c = 0
		return false
	}
	*c++
	return *c >= interactiveFrames
}

// Interactive reports whether small messages passed lately, the last at the given
// time.
func Interactive(now, last time.Time) bool { return now.Sub(last) <= InteractiveHold }
