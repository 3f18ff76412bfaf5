package stack_test

import (
	"testing"

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

func TestThereIsRoomForDeepCalls(t *testing.T) {
	done := make(chan int)
	go func() {
		stack.Grow()
		done <- deep(20)
	}()
	if <-done != 0 {
		t.Error("what was called on the stack was not zero")
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
