package hbone

import (
	"sync"

	"github.com/isthmus-mesh/isthmus/internal/memory"
)

// recvQueue holds received bytes that the application has not read, in pooled
// chunks. The zero value is empty. Not safe for concurrent use.
type recvQueue struct {
	head, tail *chunk
	n          int
	use        *memory.Use // charged for whole chunks
}

type chunk struct {
	next  *chunk
	b     []byte // the whole chunk
	r, w  int    // unread bytes are b[r:w]
	class int
}

// chunkSizes are the sizes of chunks: a stream with a few bytes waiting must not
// hold 64 KiB, a bulk stream must not be read in crumbs.
var chunkSizes = [...]int{1 << 10, 4 << 10, 16 << 10, 64 << 10}

var chunkPools [len(chunkSizes)]sync.Pool

func getChunk(class int) *chunk {
	if c, ok := chunkPools[class].Get().(*chunk); ok {
		return c
	}
	return &chunk{b: make([]byte, chunkSizes[class]), class: class}
}

func putChunk(c *chunk) {
	c.next, c.r, c.w = nil, 0, 0
	chunkPools[c.class].Put(c)
}

// room is how many bytes the last chunk has room for.
func (q *recvQueue) room() int {
	if q.tail == nil {
		return 0
	}
	return len(q.tail.b) - q.tail.w
}

// push copies p to the end of the queue. If there is no room for all of it the next
// chunk is one of class, which the caller has reserved; p fits into it.
func (q *recvQueue) push(p []byte, class int) (grown bool) {
	q.n += len(p)
	if q.tail != nil {
		p = p[q.fill(p):]
	}
	if len(p) == 0 {
		return false
	}
	c := getChunk(class)
	if q.tail == nil {
		q.head = c
	} else {
		q.tail.next = c
	}
	q.tail = c
	q.fill(p)
	return true
}

// fill copies what the last chunk has room for.
func (q *recvQueue) fill(p []byte) int {
	n := copy(q.tail.b[q.tail.w:], p)
	q.tail.w += n
	return n
}

// class is that of the chunk for n more bytes, at most the largest size. A long queue
// has larger chunks, so that it is not read in crumbs.
func (q *recvQueue) class(n int) int {
	n = max(n, q.n/4)
	for i, size := range chunkSizes {
		if n <= size {
			return i
		}
	}
	return len(chunkSizes) - 1
}

// peek returns the unread bytes of the first chunk, nil when empty.
func (q *recvQueue) peek() []byte {
	if q.head == nil {
		return nil
	}
	return q.head.b[q.head.r:q.head.w]
}

// skip drops the first n bytes; n is at most len(peek()).
func (q *recvQueue) skip(n int) {
	c := q.head
	c.r += n
	q.n -= n
	if c.r == c.w {
		q.pop()
	}
}

func (q *recvQueue) pop() {
	c := q.head
	q.head = c.next
	if q.head == nil {
		q.tail = nil
	}
	q.free(c)
}

// free gives back a chunk that was taken out of the queue.
func (q *recvQueue) free(c *chunk) {
	q.use.Release(len(c.b))
	putChunk(c)
}

// read moves as many bytes as fit into p.
func (q *recvQueue) read(p []byte) int {
	total := 0
	for len(p) > 0 && q.head != nil {
		n := copy(p, q.peek())
		q.skip(n)
		p, total = p[n:], total+n
	}
	return total
}

// copy fills p with the first bytes and leaves them in the queue; there are at
// least len(p).
func (q *recvQueue) copy(p []byte) {
	for c := q.head; len(p) > 0; c = c.next {
		p = p[copy(p, c.b[c.r:c.w]):]
	}
}

// takeHead hands the first chunk to the caller, which gives it back with free.
func (q *recvQueue) takeHead() *chunk {
	c := q.head
	if c == nil {
		return nil
	}
	q.head = c.next
	if q.head == nil {
		q.tail = nil
	}
	c.next = nil
	q.n -= c.w - c.r
	return c
}

// drop empties the queue and returns how many bytes were unread.
func (q *recvQueue) drop() int {
	n := q.n
	for q.head != nil {
		q.pop()
	}
	q.n = 0
	return n
}
