package logging

import (
	"io"
	"sync"
	"time"
)

// ring holds the lines that a slow sink has not taken yet; the newest makes room by
// losing the oldest. Every line comes out without another one behind it, and before
// close returns, if the sink takes it in time. zerolog's diode.Writer does not promise that: a line that is written
// just when its reader begins to wait is left there until the next, and lost if there is
// none.
//
// Write is safe for concurrent use, and never waits for the sink.
type ring struct {
	out  io.Writer
	lost func()        // called for each line that was lost
	done chan struct{} // closed when the last line is written

	mu     sync.Mutex
	filled sync.Cond // there is a line, or the ring is closed
	lines  []*[]byte // n of them from first on, around the end
	first  int
	n      int
	closed bool
}

var lineBufs = sync.Pool{New: func() any { b := make([]byte, 0, 500); return &b }}

// maxPooled is the longest line whose memory is kept for another.
const maxPooled = 64 << 10

// newRing starts the goroutine that writes to out; close ends it.
func newRing(out io.Writer, size int, lost func()) *ring {
	r := &ring{out: out, lost: lost, done: make(chan struct{}), lines: make([]*[]byte, size)}
	r.filled.L = &r.mu
	go r.run()
	return r
}

// Write keeps a copy of one line. What comes after close is dropped.
func (r *ring) Write(line []byte) (int, error) {
	b := lineBufs.Get().(*[]byte)
	*b = append((*b)[:0], line...)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return len(line), nil
	case r.n == len(r.lines):
		recycle(r.take())
		r.lost()
	case r.n == 0:
		r.filled.Signal()
	}
	r.lines[(r.first+r.n)%len(r.lines)] = b
	r.n++
	return len(line), nil
}

// take removes the oldest line. r.mu is held.
func (r *ring) take() *[]byte {
	b := r.lines[r.first]
	r.lines[r.first] = nil
	r.first = (r.first + 1) % len(r.lines)
	r.n--
	return b
}

func (r *ring) run() {
	defer close(r.done)
	for {
		b := r.next()
		if b == nil {
			return
		}
		r.out.Write(*b)
		recycle(b)
	}
}

// next waits for a line; nil if the ring is closed and empty.
func (r *ring) next() *[]byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.n == 0 {
		if r.closed {
			return nil
		}
		r.filled.Wait()
	}
	return r.take()
}

func recycle(b *[]byte) {
	if cap(*b) <= maxPooled {
		lineBufs.Put(b)
	}
}

// close returns true when every line is written, and false when that took longer than
// limit: then what is left is lost, and the sink still has a line that it does not take.
func (r *ring) close(limit time.Duration) bool {
	r.mu.Lock()
	r.closed = true
	r.filled.Signal()
	r.mu.Unlock()
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-r.done:
		return true
	case <-t.C:
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.n > 0 {
		recycle(r.take())
		r.lost()
	}
	return false
}
