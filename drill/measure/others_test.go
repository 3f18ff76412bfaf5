package measure

import (
	"strings"
	"testing"
)

// A machine that is in use by others makes nothing inconclusive by itself, and is named
// where something else is.
func TestDoubtSaysWhatOtherProgramsUsed(t *testing.T) {
	for _, c := range []struct {
		others float64
		want   bool
	}{{0.2, false}, {1.3, true}} {
		r := &Record{Others: c.others, Doubts: []string{"something"}}
		if got := strings.Join(r.Doubt(), "; "); strings.Contains(got, "other programs used 1.3 processors") != c.want {
			t.Errorf("%v processors: %q", c.others, got)
		}
	}
}
