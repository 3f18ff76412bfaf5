package measure

import (
	"os"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

// twoNetworks is a scenario with a refusing fault from 4 s to 8 s of 12 s.
var twoNetworks = func() string {
	b, err := os.ReadFile("../scenario/testdata/small.yaml")
	if err != nil {
		panic(err)
	}
	return string(b)
}()

func mustParse(t *testing.T, text string) *scenario.Scenario {
	t.Helper()
	s, err := scenario.Parse("small.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// small returns a record of twoNetworks in which the fault ran as planned and
// nothing else happened.
func small(t *testing.T, text string) *Record {
	t.Helper()
	s := mustParse(t, text)
	r := &Record{Layout: scenario.NewLayout(s, 99), Arm: s.Arms[0]}
	for i, f := range s.Faults {
		o := Outage{Fault: f, Victims: r.Layout.VictimsOf(i), Begin: f.At, Effect: f.At + time.Millisecond, Proof: "as planned"}
		if f.Until != 0 {
			o.Heal, o.Healed = f.Until, f.Until+time.Millisecond
		}
		r.Outages = append(r.Outages, o)
	}
	return r
}

func ms(n float64) time.Duration { return time.Duration(n * float64(time.Millisecond)) }

// answer adds an attempt at t that pod answered after 10 ms.
func (r *Record) answer(at time.Duration, pod string, port int) {
	r.Attempts = append(r.Attempts, Attempt{Arrival: scenario.Arrival{At: at, Port: port}, Started: at, Done: at + ms(10), Pod: pod})
}

func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("%s differs; if the change is meant: UPDATE_GOLDEN=1 go test ./drill/measure\ngot:\n%s", path, got)
	}
}
