package backoff

import (
	"math"
	"testing"
	"time"
)

func TestDelayDoublesUpToTheLimitAndDrawsFromTheUpperHalf(t *testing.T) {
	b := Backoff{First: 100 * time.Millisecond, Limit: time.Second}
	for n, want := range map[int]time.Duration{-1: 100, 0: 100, 1: 100, 2: 200, 3: 400, 4: 800, 5: 1000, 6: 1000, 64: 1000, math.MaxInt: 1000} {
		want *= time.Millisecond
		if got := b.Delay(n, 0); got != want/2 {
			t.Errorf("shortest delay before retry %d is %v, want %v", n, got, want/2)
		}
		if got := b.Delay(n, math.Nextafter(1, 0)); got > want || got < want-time.Microsecond {
			t.Errorf("longest delay before retry %d is %v, want %v", n, got, want)
		}
		if got := b.Next(n); got < want/2 || got > want {
			t.Errorf("delay before retry %d is %v, want within [%v, %v]", n, got, want/2, want)
		}
	}
}

func TestDelayNeverOverflows(t *testing.T) {
	b := Backoff{First: 3, Limit: math.MaxInt64}
	for n := range 200 {
		if d := b.Delay(n, 0.5); d <= 0 {
			t.Fatalf("delay before retry %d is %v", n, d)
		}
	}
	if d := (Backoff{}).Delay(7, 0.5); d != 0 {
		t.Errorf("the zero backoff waits %v", d)
	}
}
