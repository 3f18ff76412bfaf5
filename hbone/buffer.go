package hbone

import (
	"sync"

	"github.com/isthmus-mesh/isthmus/hbone/wire"
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

var pendingBufs = sync.Pool{New: func() any {
	b := make([]byte, 0, pendingFront+pendingMax+1024)
	return &b
}}
