package logging

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
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
	r.close(time.Minute)
}

// The ring is closed just when its writer begins to wait.
func TestTheLastLineBeforeCloseIsWritten(t *testing.T) {
	for i := range 20_000 {
		var out strings.Builder
		r := newRing(&out, 8, func() {})
		r.Write([]byte("the last"))
		r.close(time.Minute)
		if out.String() != "the last" {
			t.Fatalf("ring %d: %q is written before Close; want the last line", i, out.String())
		}
	}
}

// A process whose log nobody reads ends all the same, and what was not written is counted.
func TestCloseEndsThoughTheSinkTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := make(heard) // nobody reads it
		lost := 0
		r := newRing(out, 8, func() { lost++ })
		for range 5 {
			r.Write([]byte("x"))
			synctest.Wait() // the first is being written
		}
		if r.close(time.Second) || lost != 4 {
			t.Errorf("%d lines were lost; want the 4 that the sink was not even given", lost)
		}
		<-out // the one that it was
		<-r.done
	})
}

// The same of a pipe that is full, which Close closes.
func TestASinkWhosePipeIsFullIsClosed(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	log, sink, err := New(Config{Format: "json"}, w)
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		log.Info().Msg(strings.Repeat("x", 200))
	}
	if err := sink.Close(); err == nil || sink.Lost() == 0 {
		t.Errorf("%v, and %d lines lost; want an error that says how many were lost", err, sink.Lost())
	}
}
