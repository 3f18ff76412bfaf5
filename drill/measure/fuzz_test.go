package measure

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

// FuzzParse: no scenario, however strange, may panic: neither when it is read
// nor, if it is accepted, when it is laid out and measured.
func FuzzParse(f *testing.F) {
	f.Add([]byte(twoNetworks))
	f.Add([]byte(asserted))
	files, err := filepath.Glob("../../examples/drills/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := scenario.Parse("fuzz.yaml", data)
		if err != nil {
			return
		}
		r := &Record{Layout: scenario.NewLayout(s, 9), Arm: s.Arms[0]}
		for i, fault := range s.Faults {
			r.Outages = append(r.Outages, Outage{Fault: fault, Victims: r.Layout.VictimsOf(i), Begin: fault.At, Effect: fault.At, Heal: fault.Until, Healed: fault.Until})
		}
		if scenario.Planned(s) < 10_000 {
			for _, a := range scenario.Schedule(s, len(r.Layout.Clients)) {
				r.Attempts = append(r.Attempts, Attempt{Arrival: a, Started: a.At, Done: a.At, Pod: r.Layout.Pods[0].Name})
			}
		}
		r.Result()
		r.Evaluate()
	})
}
