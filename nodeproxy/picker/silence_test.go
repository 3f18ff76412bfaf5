package picker

import (
	"testing"
	"time"
)

func TestAGatewayIsSilentWhenEverybodyWaits(t *testing.T) {
	g := &gate{}
	at := func(d time.Duration) time.Time { return time.Unix(1000, 0).Add(d) }
	ask := func(d time.Duration) { g.asked(at(d)) }
	silent := func(d time.Duration) bool { return g.silent(at(d)) }
	if silent(time.Hour) {
		t.Error("silent, and nobody asked")
	}
	ask(0)
	ask(500 * time.Millisecond)
	if silent(silentAfter) {
		t.Error("silent too early")
	}
	if !silent(silentAfter + 1) {
		t.Error("not silent though the first attempt waits for so long")
	}
	g.responded(true, at(1500*time.Millisecond))
	if silent(2 * time.Second) {
		t.Error("silent right after an answer")
	}
	if !silent(3 * time.Second) {
		t.Error("not silent though the second attempt waits")
	}
	g.responded(false, at(4*time.Second))
	if silent(time.Hour) || g.waiting() != 0 {
		t.Error("silent, and nobody waits")
	}
}
