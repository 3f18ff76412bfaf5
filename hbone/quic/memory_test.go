package quic

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"testing"

	"github.com/quic-go/quic-go/quicvarint"

	"github.com/isthmus-mesh/isthmus/internal/memory"
)

// A claimed length costs nothing before the bytes have arrived.
func TestClaimedLengthIsNotAllocated(t *testing.T) {
	claim := quicvarint.Append(quicvarint.Append(nil, frameHeaders), maxHeaderBlock)
	lost := errors.New("the rest does not arrive")
	const claims = 100
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range claims {
		f := newFrames(io.MultiReader(bytes.NewReader(append(claim, 0, 0)), failingReader{lost}))
		if _, err := f.section(); err != lost {
			t.Fatalf("got %v, want %v", err, lost)
		}
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / claims; each > 8<<10 {
		t.Errorf("a frame of which 2 bytes have arrived takes %d bytes", each)
	}
}

type failingReader struct{ err error }

func (r failingReader) Read([]byte) (int, error) { return 0, r.err }

// One connection never has more of the budget than its part, and each stream has a window that leaves room for others.
func TestWindowsFollowBudget(t *testing.T) {
	for size := int64(0); size < 4<<30; size = size*3/2 + 1<<20 {
		m := Memory{Budget: memory.NewBudget(size)}
		w := m.windows()
		if size > connShare*minConnWindow && w.conn > size/connShare || w.conn < minConnWindow || w.conn > maxConnWindow {
			t.Errorf("budget of %d: %d bytes for a connection", size, w.conn)
		}
		if w.first < 64<<10 || w.first > w.stream || 16*w.stream > w.conn {
			t.Errorf("budget of %d: windows %+v", size, w)
		}
		c := m.config(1)
		if c.MaxConnectionReceiveWindow != uint64(w.conn) || c.MaxStreamReceiveWindow != uint64(w.stream) {
			t.Errorf("budget of %d: configured %d, %d", size, c.MaxConnectionReceiveWindow, c.MaxStreamReceiveWindow)
		}
	}
}
