package hbone

import (
	"github.com/isthmus-mesh/isthmus/hbone/wire"
	"github.com/isthmus-mesh/isthmus/internal/memory"
)

// queue is frames in the order in which they go out, and whose they are.
type queue struct {
	buf  []byte
	segs []segment
	pool *[]byte // where buf came from, nil if it is not pooled
	use  *memory.Use
	cost int // bytes of use that pool is charged
}

type segment struct {
	st   *Stream // nil: the session's
	n    int
	data int // bytes of the windows that it has taken: payload
	last int // payload bytes of the last DATA frame, 0 if it is none
	note note
}

// note says what writing a segment means for its stream.
type note uint8

const (
	noteEnd  note = 1 << iota // our half ends
	noteRST                   // the stream is over
	noteKeep                  // must go out even if the stream dies (hpack state)
)

func (q *queue) add(st *Stream, frame []byte, n note) {
	q.buf = append(q.buf, frame...)
	q.mark(st, len(frame), n)
}

func (q *queue) mark(st *Stream, size int, n note) {
	q.segs = append(q.segs, segment{st: st, n: size, note: n})
}

func (q *queue) size() int { return len(q.buf) }

// drop takes the frames of st out of the queue and returns how many bytes of
// payload they carried.
func (q *queue) drop(st *Stream) (data int) {
	out, segs := q.buf[:0], q.segs[:0]
	if q.pool != nil {
		out = q.buf[:min(pendingFront, len(q.buf))]
	}
	r := len(out)
	for _, g := range q.segs {
		if g.st != st || g.note&noteKeep != 0 {
			out = append(out, q.buf[r:r+g.n]...)
			segs = append(segs, g)
		} else {
			data += g.data
		}
		r += g.n
	}
	clear(q.segs[len(segs):])
	q.buf, q.segs = out, segs
	return data
}

func (q *queue) clear() {
	clear(q.segs)
	q.segs = q.segs[:0]
	q.buf = q.buf[:0]
	q.pool = nil
	q.use.Release(q.cost)
	q.cost = 0
}

// addData is add for the data queue.
func (q *queue) addData(st *Stream, frame []byte, n note) {
	q.reserve()
	q.add(st, frame, n)
}

// reserve makes buf a pooled one with pendingFront free bytes at its start.
func (q *queue) reserve() {
	if q.pool != nil || len(q.segs) > 0 {
		return
	}
	q.pool, q.cost = getPending(q.use)
	q.buf = (*q.pool)[:pendingFront]
}

// payload appends p as DATA frames of st.
func (q *queue) payload(st *Stream, p []byte, max int) {
	q.reserve()
	size, data, last := 0, len(p), 0
	for len(p) > 0 {
		last = min(len(p), max)
		q.buf = wire.AppendHeader(q.buf, last, wire.FrameData, 0, st.id)
		q.buf = append(q.buf, p[:last]...)
		size += wire.HeaderLen + last
		p = p[last:]
	}
	q.segs = append(q.segs, segment{st: st, n: size, data: data, last: last})
}
