package demoapp

import (
	"testing"
	"time"
)

func TestSlowPortTakesNewConnectionsLate(t *testing.T) {
	a, addr := start(t, Request)
	old, err := dial(t, addr, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hello(old, "1", 10*time.Second); err != nil {
		t.Fatal(err)
	}
	const delay = 200 * time.Millisecond
	if err := a.Slow(t.Context(), addr.Port(), delay); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	late, err := dial(t, addr, 20*time.Second) // the kernel accepts
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hello(late, "2", 20*time.Second); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < delay {
		t.Errorf("a new connection was answered after %v, want at least %v", took, delay)
	}
	if _, err := hello(old, "3", 10*time.Second); err != nil {
		t.Errorf("a connection made before: %v", err)
	}
	if err := a.Slow(t.Context(), addr.Port(), time.Hour); err != nil { // and healing wakes who waits
		t.Fatal(err)
	}
	waits, err := dial(t, addr, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, func() { a.Heal(t.Context(), addr.Port()) })
	if _, err := hello(waits, "4", 20*time.Second); err != nil {
		t.Errorf("a connection that waited when the port healed: %v", err)
	}
	if err := a.Slow(t.Context(), addr.Port(), 0); err == nil {
		t.Error("a delay of 0 was taken")
	}
	if err := a.Slow(t.Context(), addr.Port(), time.Hour); err != nil { // Close, after the test, must not wait an hour
		t.Fatal(err)
	}
	if _, err := dial(t, addr, 20*time.Second); err != nil {
		t.Fatal(err)
	}
}
