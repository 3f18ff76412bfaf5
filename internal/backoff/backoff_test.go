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

func TestWhatFailsForLongIsTriedLessOften(t *testing.T) {
	b := Backoff{First: 250 * time.Millisecond, Limit: 2 * time.Second, Bound: 30 * time.Second}
	for failing, want := range map[time.Duration]time.Duration{0: 2 * time.Second, time.Minute: 2 * time.Second, 5 * time.Minute: 10 * time.Second, time.Hour: 30 * time.Second} {
		if got := b.Lasting(9, failing); got != want {
			t.Errorf("longest pause after %v of failing is %v, want %v", failing, got, want)
		}
	}
	if got := b.Lasting(1, 0); got != b.First {
		t.Errorf("longest first pause is %v, want %v", got, b.First)
	}
	b.Bound = 0
	if got := b.Lasting(9, time.Hour); got != b.Limit {
		t.Errorf("without a bound of its own, the longest pause after an hour is %v, want %v", got, b.Limit)
	}
}
