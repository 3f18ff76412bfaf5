package measure

import (
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

var asserted = twoNetworks + `
assertions:
  - {arm: isthmus, name: none fails, metric: failed, bound: "== 0"}
  - {arm: isthmus, metric: known_ms, bound: "< 1000"}
  - {metric: "latency_ms(phase=baseline)", bound: "< 1000"}
`

func TestWhatWasNotMeasuredIsNotHeld(t *testing.T) {
	r := small(t, asserted)
	r.answer(ms(5000), "west-1", 0)
	seen := r.Evaluate()
	if len(seen) != 4 {
		t.Fatalf("got %d observations, want 3 and the one of every arm", len(seen))
	}
	for i, want := range []bool{true, false, false, true} {
		if seen[i].Held != want {
			t.Errorf("%s: held %v (%s), want %v", seen[i].Metric, seen[i].Held, seen[i].Note, want)
		}
	}
	if seen[1].Observed != nil {
		t.Errorf("known_ms observed %v, want null", *seen[1].Observed)
	}
}

func TestAProcessThatEndsByItselfBreaksTheDrill(t *testing.T) {
	r := small(t, twoNetworks)
	r.Exits = []Exit{{At: ms(2000), Process: "west-gw-1", Status: "exit status 2"}}
	seen := r.Evaluate()
	if o := seen[len(seen)-1]; o.Held || !strings.Contains(o.Note, "west-gw-1 at 2.00 s: exit status 2") {
		t.Errorf("got %+v, want broken with the process's name", o)
	}
}

func TestCompactNumbers(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 7: "7", 1160.4: "1160", 0.02384: "0.0238", 12.345: "12.3", 99.96: "100", 123.4: "123", 1e7: "10000000"} {
		if got := Compact(v); got != want {
			t.Errorf("%v: got %s, want %s", v, got, want)
		}
	}
}

func TestServicePortsAreToldByTheirNames(t *testing.T) {
	s := mustParse(t, strings.Replace(twoNetworks, "{name: A, port: 8080}", "{name: A, port: 80, targetPort: 8080}", 1))
	r := &Record{Layout: scenario.NewLayout(s, 9)}
	if got := r.portName(80); got != "A" {
		t.Errorf("port 80 is called %q, want A", got)
	}
}

func TestEveryMetricOfTheClosedListIsMeasured(t *testing.T) {
	names := scenario.MetricNames()
	for _, n := range names {
		if evals[n] == nil {
			t.Errorf("nothing measures %s", n)
		}
	}
	if len(evals) != len(names) {
		t.Errorf("%d metrics are measured, %d are on the list", len(evals), len(names))
	}
}
