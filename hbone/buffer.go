package hbone

import (
	"sync"

	"github.com/isthmus-mesh/isthmus/hbone/wire"
	"github.com/isthmus-mesh/isthmus/internal/memory"
)

const (
	// maxPayload makes a frame of four exact TLS records.
	maxPayload = 64<<10 - wire.HeaderLen
	oneRecord  = 16 << 10 // the most that one TLS record holds
	// frameFront is what a frameBuf reserves for headers: a chunk of maxPayload
	// is at most four frames of the smallest MAX_FRAME_SIZE.
	frameFront = 4 * wire.HeaderLen
)

// innerPayload is the same for a session inside a stream: with its headers and
// four record overheads it fills one DATA frame of the session that carries it.
const innerPayload = maxPayload - frameFront - 4*(tlsHeaderLen+tlsOverhead)

// frameBuf holds one chunk of payload with room for its frame headers in front,
// so that frames are laid out in place.
type frameBuf struct {
	b [frameFront + maxPayload]byte
}

// payload is where a chunk goes before it is laid out.
func (f *frameBuf) payload() []byte { return f.b[frameFront:] }

var frameBufs = sync.Pool{New: func() any { return new(frameBuf) }}

func getFrameBuf() *frameBuf  { return frameBufs.Get().(*frameBuf) }
func putFrameBuf(f *frameBuf) { frameBufs.Put(f) }

// layout turns the n payload bytes at b[off:] into frames of at most max bytes
// each, in place, and returns them. It needs frameHeaderLen bytes per frame in
// front of off.
func (f *frameBuf) layout(id uint32, off, n, max int) []byte {
	frames := (n + max - 1) / max
	start := off - frames*wire.HeaderLen
	w := start
	for r := off; n > 0; {
		k := min(n, max)
		wire.PutHeader(f.b[w:], k, wire.FrameData, 0, id)
		w += wire.HeaderLen
		if w != r {
			copy(f.b[w:w+k], f.b[r:r+k])
		}
		w, r, n = w+k, r+k, n-k
	}
	return f.b[start:w]
}

// readBuf is what the reading goroutine of a session holds while there is
// something to read: four TLS records.
type readBuf [64 << 10]byte

var readBufs = sync.Pool{New: func() any { return new(readBuf) }}

// pendingMax bounds the data queue of a session, pendingFront is kept free at
// its start so that control frames can go out in the same burst. controlMax
// bounds the control queue: only a peer that does not read can fill it.
const (
	pendingMax   = 4 * (maxPayload + frameFront) // 256 KiB
	pendingFront = 512
	controlMax   = 256 << 10
)

// pendingSizes are the sizes of buffers for the data queue: for one chunk, and for
// pendingMax. A process with little memory left has queues of one chunk.
var pendingSizes = [...]int{pendingFront + pendingMax/4 + 1024, pendingFront + pendingMax + 1024}

var pendingBufs [len(pendingSizes)]sync.Pool

// getPending returns a buffer for the data queue and its size, which use is charged.
func getPending(use *memory.Use) (b *[]byte, size int) {
	class := 1
	if !use.TryReserve(pendingSizes[class]) {
		class = 0
		use.Add(pendingSizes[class])
	}
	if b, ok := pendingBufs[class].Get().(*[]byte); ok {
		return b, pendingSizes[class]
	}
	s := make([]byte, 0, pendingSizes[class])
	return &s, pendingSizes[class]
}

// putPending gives back a buffer that use was charged size for. One that has grown is
// dropped.
func putPending(b *[]byte, use *memory.Use, size int) {
	use.Release(size)
	for class, n := range pendingSizes {
		if cap(*b) == n {
			pendingBufs[class].Put(b)
			return // it belongs to the next user
		}
	}
}
