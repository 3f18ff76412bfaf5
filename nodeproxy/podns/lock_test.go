//go:build linux

package podns

import (
	"testing"
	"time"
)

// Who has locked a namespace holds up others until it unlocks it, and no longer than they wait.
func TestALockedNamespaceHoldsUpOthersForATime(t *testing.T) {
	open := func() *Namespace {
		n, err := Open("/proc/self/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { n.Close() })
		return n
	}
	a, b := open(), open()
	unlock := a.Lock(time.Second)
	began := time.Now()
	b.Lock(50 * time.Millisecond)()
	if waited := time.Since(began); waited < 50*time.Millisecond {
		t.Errorf("another one has waited %v; want 50ms", waited)
	}
	locked := make(chan struct{})
	go func() {
		defer close(locked)
		b.Lock(time.Minute)()
	}()
	select {
	case <-locked:
		t.Error("a namespace is locked by two")
	case <-time.After(20 * time.Millisecond):
	}
	unlock()
	select {
	case <-locked:
	case <-time.After(10 * time.Second):
		t.Error("a namespace that was unlocked is not locked by who waits")
	}
}

// Two that have the same open file of a namespace, as the CNI plugin gives it to each node proxy that it asks, exclude each
// other as well.
func TestALockIsOfWhoeverTookIt(t *testing.T) {
	a, err := Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := a.Clone()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	unlock := a.Lock(time.Second)
	const within = 50 * time.Millisecond
	began := time.Now()
	b.Lock(within)()
	if waited := time.Since(began); waited < within {
		t.Errorf("the other one has waited %v for who has the lock; want %v", waited, within)
	}
	unlock()
	began = time.Now()
	b.Lock(time.Minute)()
	if waited := time.Since(began); waited > 30*time.Second {
		t.Errorf("an unlocked namespace is locked after %v", waited)
	}
}
