package overload

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// However many destinations there are: gates are kept of so many at most, those that
// nobody uses have no turns, and in time there are none.
func TestTheGatesOfDestinationsAreBoundedAndEnd(t *testing.T) {
	d := NewDestinations(New(prometheus.NewRegistry()))
	admit := func(key string) Toward {
		w, err := d.Admit(t.Context(), key, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	turns := func(long time.Duration) {
		for range int(long / tick) {
			d.step(time.Time{}, 1)
		}
	}
	used := admit("used")
	for i := range 3 * mostGates {
		w := admit(fmt.Sprint(i))
		w.Opened()
		w.Done()
	}
	if n := len(d.gates); n != mostGates {
		t.Errorf("%d gates are kept, want %d", n, mostGates)
	}
	turns(resting)
	if n := len(d.busy); n != 1 {
		t.Errorf("%d gates have turns, want the one that is used", n)
	}
	for key, g := range d.gates {
		if key != "used" && g.recent.ticks != nil {
			t.Fatalf("%s counts still though nobody uses it", key)
		}
	}
	turns(keptIdle + time.Second)
	if n := len(d.gates); n != 1 {
		t.Errorf("%d gates are kept after %v, want the one that is used", n, keptIdle)
	}
	used.Done()
	turns(resting + keptIdle + time.Second)
	if len(d.gates) != 0 || len(d.busy) != 0 {
		t.Errorf("%d gates are kept, %d have turns, when nobody uses any", len(d.gates), len(d.busy))
	}
}

// A gate that is used again after a rest has turns again, and one that is bounded has
// them until it is not.
func TestAGateThatIsUsedOrBoundedHasTurns(t *testing.T) {
	d := NewDestinations(New(prometheus.NewRegistry()))
	for range 2 {
		w, _ := d.Admit(t.Context(), "a", time.Now())
		w.Done()
		if len(d.busy) != 1 {
			t.Fatal("it has no turns")
		}
		g := d.gates["a"]
		g.control.bounded, g.control.window = true, 1
		for range 10 * int(time.Second/tick) {
			if d.step(time.Time{}, 1); g.control.bounded && !g.busy {
				t.Fatal("bounded, and without turns")
			}
			if len(d.busy) == 0 {
				break
			}
		}
		if g.control.bounded || len(d.busy) != 0 || d.gates["a"] != g {
			t.Fatalf("bounded %v; %d gates have turns", g.control.bounded, len(d.busy))
		}
	}
}
