package logging

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// heard is a sink that tells what it is given.
type heard chan string

func (h heard) Write(b []byte) (int, error) {
	h <- string(b)
	return len(b), nil
}

// Each line comes just when the one before has been taken, so the writer is about to
// wait.
func TestNoLineWaitsForTheNext(t *testing.T) {
	out := make(heard)
	r := newRing(out, 8, func() {})
	for i := range 50_000 {
		want := fmt.Sprint(i)
		r.Write([]byte(want))
		select {
		case got := <-out:
			if got != want {
				t.Fatalf("line %q; want %q", got, want)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("line %s is written, and never came out", want)
		}
	}
	r.close()
}

// The ring is closed just when its writer begins to wait.
func TestTheLastLineBeforeCloseIsWritten(t *testing.T) {
	for i := range 20_000 {
		var out strings.Builder
		r := newRing(&out, 8, func() {})
		r.Write([]byte("the last"))
		r.close()
		if out.String() != "the last" {
			t.Fatalf("ring %d: %q is written before Close; want the last line", i, out.String())
		}
	}
}
