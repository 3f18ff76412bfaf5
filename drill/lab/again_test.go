package lab

import (
	"errors"
	"testing"

	"github.com/isthmus-mesh/isthmus/drill/measure"
)

func TestDisturbedArmRunsOnceMore(t *testing.T) {
	quiet := measure.ArmResult{}
	busy := measure.ArmResult{Inconclusive: []string{"the generator fell behind: use a quieter machine"}}
	other := measure.ArmResult{Inconclusive: []string{"fault f did not take effect: it answers"}}
	for name, x := range map[string]struct {
		results     []measure.ArmResult
		err         error
		runs, again int
		disturbed   bool
	}{
		"quiet":      {[]measure.ArmResult{quiet}, nil, 1, 0, false},
		"busy once":  {[]measure.ArmResult{busy, quiet}, nil, 2, 1, false},
		"busy twice": {[]measure.ArmResult{busy, busy}, nil, 2, 1, true},
		"other":      {[]measure.ArmResult{other}, nil, 1, 0, false},
		"failed":     {[]measure.ArmResult{busy}, errors.New("no port"), 1, 0, true},
	} {
		runs, again := 0, 0
		got, _, err := twiceIfDisturbed(func() (measure.ArmResult, []measure.Observation, error) {
			runs++
			return x.results[runs-1], nil, x.err
		}, func(measure.ArmResult) { again++ })
		if runs != x.runs || again != x.again || got.Disturbed() != x.disturbed || !errors.Is(err, x.err) {
			t.Errorf("%s: %d runs, %d again, disturbed %t, %v; want %d, %d, %t, %v", name, runs, again, got.Disturbed(), err, x.runs, x.again, x.disturbed, x.err)
		}
	}
}
