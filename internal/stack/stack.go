// Package stack spares goroutines that are about to call deep the growing of their stack
// step by step: each step copies all frames, and looks each of them up.
package stack

// frame is what Grow makes room for; the stack is then the next power of two.
const frame = 9 << 10

// Grow makes room for calls of some 8 KiB below its caller. It is to be called first
// thing by a goroutine, while there is next to nothing to copy.
//
//go:noinline
func Grow() byte {
	var b [frame]byte
	return b[keep(&b)]
}

// keep has the compiler believe that all of b is needed.
//
//go:noinline
func keep(b *[frame]byte) int { return len(b) - 1 }
