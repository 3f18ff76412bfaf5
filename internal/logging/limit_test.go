package logging

import (
	"strconv"
	"testing"
	"time"
)

func TestLimitLetsOneLinePerKeyAndIntervalThrough(t *testing.T) {
	l := Limit{Every: time.Minute}
	now := time.Unix(1000, 0)
	if held, ok := l.Allow("a", now); !ok || held != 0 {
		t.Errorf("the first line: %d, %t", held, ok)
	}
	for range 5 {
		if _, ok := l.Allow("a", now.Add(59*time.Second)); ok {
			t.Error("a second line within the interval")
		}
	}
	if _, ok := l.Allow("b", now); !ok {
		t.Error("another key has to wait")
	}
	if held, ok := l.Allow("a", now.Add(time.Minute)); !ok || held != 5 {
		t.Errorf("after the interval: %d held back, %t; want 5, true", held, ok)
	}
}

func TestLimitIsBounded(t *testing.T) {
	l := Limit{Every: time.Minute}
	now := time.Unix(1000, 0)
	through := 0
	for i := range 100_000 {
		if _, ok := l.Allow(strconv.Itoa(i), now); ok {
			through++
		}
	}
	if through != maxKeys+1 || len(l.keys) != maxKeys+1 {
		t.Errorf("%d lines through, %d keys; want %d", through, len(l.keys), maxKeys+1)
	}
	if _, ok := l.Allow("later", now.Add(time.Hour)); !ok || len(l.keys) != 1 {
		t.Errorf("%d keys after an hour; want the old ones gone", len(l.keys))
	}
}
