package stack_test

import (
	"runtime/debug"
	"testing"
	"unsafe"

	"github.com/isthmus-mesh/isthmus/internal/stack"
)

// deep calls as deep as it takes to open a connection, some 6 KiB.
//
//go:noinline
func deep(n int) int {
	var b [256]byte
	if n == 0 {
		return int(b[3])
	}
	return deep(n-1) + int(b[n])
}

// moves reports whether the stack of a new goroutine is copied by deep calls after first.
func moves(first func()) bool {
	moved := make(chan bool)
	go func() {
		first()
		var here byte
		before := uintptr(unsafe.Pointer(&here))
		deep(20)
		moved <- before != uintptr(unsafe.Pointer(&here))
	}()
	return <-moved
}

func TestDeepCallsDoNotCopyTheStack(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collection may shrink it in between
	if moves(func() { stack.Grow() }) {
		t.Error("the stack was copied although there should be room")
	}
	if !moves(func() {}) {
		t.Error("the stack was not copied without Grow either: calls are not deep enough to tell")
	}
}

func BenchmarkDeepCalls(b *testing.B) {
	for name, first := range map[string]func(){"grown": func() { stack.Grow() }, "as it is": func() {}} {
		b.Run(name, func(b *testing.B) {
			done := make(chan int)
			for b.Loop() {
				go func() {
					first()
					done <- deep(20)
				}()
				<-done
			}
		})
	}
}
