package flow

import (
	"testing"
	"time"
)

func TestLively(t *testing.T) {
	heard := Liveness{LastAnswer: start}
	waiting := heard
	waiting.Requested(start)
	usual := waiting
	usual.Observe(200 * time.Millisecond)
	lost := waiting
	lost.Lost()
	answered := lost
	answered.Requested(start)
	answered.Responded(start)
	silent := heard
	silent.SilentSince = start
	for _, c := range []struct {
		name      string
		own, base Liveness
		until     time.Duration // lively before, not from then on
	}{
		{"heard of", heard, heard, FreshFor},
		{"a question waits, nothing is usual", waiting, waiting, lateAtFirst + 1},
		{"a question waits, answers take 200 ms", usual, usual, 300*time.Millisecond + 1},
		{"a question was lost", lost, heard, 0},
		{"a question was lost, the next one answered", answered, heard, FreshFor},
		{"the connection's waits", heard, usual, 300*time.Millisecond + 1},
		{"siblings have no answer", heard, silent, lateAtFirst + 1},
	} {
		for _, d := range []time.Duration{0, c.until - 1, c.until, time.Hour} {
			if d < 0 {
				continue
			}
			if got, want := Lively(start.Add(d), c.own, c.base), d < c.until; got != want {
				t.Errorf("%s, after %v: lively %v, want %v", c.name, d, got, want)
			}
		}
	}
	if PingPause(10*time.Second, ActiveFor) != 10*time.Second || PingPause(10*time.Second, 0) != PingActive || PingPause(time.Millisecond, 0) != time.Millisecond {
		t.Error("PINGs are more frequent on a connection in use, and never less")
	}
}
