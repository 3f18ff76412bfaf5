//go:build linux

package fleet

import (
	"strings"
	"testing"
)

func TestVerdictIsOneLastLineWithItsCause(t *testing.T) {
	for _, c := range []struct {
		v    Verdict
		code int
		last string
	}{
		{Verdict{Held: "all"}, ExitHeld, "HELD: all"},
		{Verdict{Held: "all", Broken: []string{"a leak"}, Logs: "/tmp/x"}, ExitBroken, "BROKEN: a leak"},
		{Verdict{Doubts: []string{"others were busy"}}, ExitInconclusive, "INCONCLUSIVE: others were busy"},
		{Verdict{Broken: []string{"a leak"}, Doubts: []string{"others were busy"}}, ExitBroken, "BROKEN: a leak (the first of 2 causes, listed above)"},
	} {
		var out strings.Builder
		c.v.Print(&out)
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if got := lines[len(lines)-1]; got != c.last || c.v.Code() != c.code {
			t.Errorf("%+v: exit code %d, last line %q; want %d, %q", c.v, c.v.Code(), got, c.code, c.last)
		}
		for _, cause := range append(c.v.Broken, c.v.Doubts...) {
			if !strings.Contains(out.String(), cause) {
				t.Errorf("%+v: %q is not told in\n%s", c.v, cause, &out)
			}
		}
	}
}
