//go:build linux

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/integration/fleet"
)

// flat serves as much at every level as it can.
func flat(others float64) *curve {
	c := &curve{Path: "single", Others: others}
	for _, of := range []float64{0, 1, 0, 2, 0, 4, 0} {
		c.Levels = append(c.Levels, level{Of: of, Offered: 500, Served: 500, Meantime: 500, Time: 5 * time.Second, P99: time.Millisecond})
	}
	c.After = level{Of: 0.5, Offered: 250, Served: 250, Time: 5 * time.Second}
	return c
}

func TestABoundIsBrokenOnlyIfTheMachineWasOurs(t *testing.T) {
	for name, spoil := range map[string]func(*curve){
		"all well":     nil,
		"collapse":     func(c *curve) { c.Levels[3].Meantime = 300 },
		"slow":         func(c *curve) { c.Levels[3].P99 = 2 * time.Second },
		"health moved": func(c *curve) { c.Moved = 1 },
		"ill after":    func(c *curve) { c.After.Served = 200 },
	} {
		for others, code := range map[float64]int{0.1: fleet.ExitBroken, 0.5: fleet.ExitInconclusive} {
			c := flat(others)
			if spoil == nil {
				code = fleet.ExitHeld
			} else {
				spoil(c)
			}
			v := (&report{Curves: []*curve{c}}).verdict()
			if v.Code() != code {
				t.Errorf("%s, %.1f processors used by others: exit code %d, want %d: %+v", name, others, v.Code(), code, v)
			}
			if code == fleet.ExitInconclusive && !strings.Contains(v.Doubts[0], fleet.Quiet) {
				t.Errorf("%s: no remedy in %q", name, v.Doubts[0])
			}
		}
	}
	if v := new(report).verdict(); v.Code() != fleet.ExitInconclusive {
		t.Errorf("no curve at all: exit code %d, want %d", v.Code(), fleet.ExitInconclusive)
	}
}
