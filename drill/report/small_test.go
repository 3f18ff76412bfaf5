package report

import (
	"os"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/drill/measure"
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

// small returns a record of twoNetworks in which the fault ran as planned and
// nothing else happened.
func small(t *testing.T, text string) *measure.Record {
	t.Helper()
	s, err := scenario.Parse("small.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	r := &measure.Record{Layout: scenario.NewLayout(s, 99), Arm: s.Arms[0]}
	for i, f := range s.Faults {
		o := measure.Outage{Fault: f, Victims: r.Layout.VictimsOf(i), Begin: f.At, Effect: f.At + time.Millisecond, Proof: "as planned"}
		if f.Until != 0 {
			o.Heal, o.Healed = f.Until, f.Until+time.Millisecond
		}
		r.Outages = append(r.Outages, o)
	}
	return r
}

func ms(n float64) time.Duration { return time.Duration(n * float64(time.Millisecond)) }
