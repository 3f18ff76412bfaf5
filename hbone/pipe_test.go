package hbone

import (
	"bytes"
	"io"
	"math/rand/v2"
	"runtime"
	"testing"
)

// Pipes without unread bytes hold no buffer.
func TestIdlePipesHoldNoBuffer(t *testing.T) {
	const pipes = 200
	var before, after runtime.MemStats
	heap := func(m *runtime.MemStats) {
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(m)
	}
	heap(&before)
	all := make([]*Pipe, pipes)
	burst, buf := make([]byte, pipeBuffer), make([]byte, pipeBuffer)
	for i := range all {
		outer, inner := NewPipe(PipeInfo{})
		all[i] = outer
		check(t, outer.WriteBurst(burst))
		_, err := io.ReadFull(inner, buf)
		check(t, err)
		check(t, inner.WriteBurst(burst))
		_, err = io.ReadFull(outer, buf)
		check(t, err)
	}
	heap(&after)
	if each := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / pipes; each > 2<<10 {
		t.Errorf("an idle pipe holds %d bytes", each)
	}
	runtime.KeepAlive(all)
}

// What is read is what was written, in order, whatever the sizes of bursts and reads.
func TestPipeKeepsBytesUnderRandomSchedule(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		outer, inner := NewPipe(PipeInfo{})
		var model []byte // unread
		next := byte(0)
		for range 500 {
			if len(model) < pipeBuffer && rng.IntN(2) == 0 {
				b := make([]byte, rng.IntN(1<<rng.IntN(18)))
				for i := range b {
					b[i] = next
					next++
				}
				check(t, outer.WriteBurst(b))
				model = append(model, b...)
			} else if len(model) > 0 {
				b := make([]byte, 1+rng.IntN(1<<rng.IntN(18)))
				n, err := inner.Read(b)
				check(t, err)
				if n == 0 || n > len(model) || !bytes.Equal(b[:n], model[:n]) {
					t.Fatalf("seed %d: read %d other bytes than the next of %d", seed, n, len(model))
				}
				model = model[n:]
			}
			if inner.buffered() != (len(model) > 0) {
				t.Fatalf("seed %d: buffered is %v with %d unread bytes", seed, inner.buffered(), len(model))
			}
		}
		outer.Close()
		rest, err := io.ReadAll(inner)
		if err != nil || !bytes.Equal(rest, model) {
			t.Fatalf("seed %d: %d bytes and %v at the end, want %d", seed, len(rest), err, len(model))
		}
	}
}
