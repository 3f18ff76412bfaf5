package lab

import (
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/drill/measure"
	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

func TestWhatProcessesBelieveWhileTheyAreEndedIsNoPartOfTheDrill(t *testing.T) {
	base := time.Now().Add(-time.Minute)
	a := &armRun{layout: scenario.NewLayout(&scenario.Scenario{}, 7), base: base, zero: base.Add(10 * time.Second)}
	kinds := []measure.EventKind{measure.Connection, measure.OutlierChanged, measure.Known}
	for _, k := range kinds {
		a.events = append(a.events, measure.Event{At: 20 * time.Second, Kind: k}, measure.Event{At: 40 * time.Second, Kind: k})
	}
	seen := func() map[measure.EventKind]int {
		n := map[measure.EventKind]int{}
		for _, e := range a.record(nil, nil).Events {
			n[e.Kind]++
		}
		return n
	}
	if n := seen(); n[measure.OutlierChanged] != 2 || n[measure.Known] != 2 {
		t.Errorf("of a drill that runs: %v, want all", n)
	}
	a.over = base.Add(30 * time.Second)
	if n := seen(); n[measure.Connection] != 2 || n[measure.OutlierChanged] != 1 || n[measure.Known] != 1 {
		t.Errorf("of one whose processes were ended after 20 s: %v, want both connections and one belief of each kind", n)
	}
}
