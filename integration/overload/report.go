//go:build linux

package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/isthmus-mesh/isthmus/integration/fleet"
)

type report struct {
	Seed   uint64
	Curves []*curve
	Logs   string // folder, if a bound does not hold
}

// curve is what one path does at each level, which is between two closed loops.
type curve struct {
	Path, About string
	Levels      []level
	After       level   // half the capacity, afterwards
	Moved       int     // edges of anybody's health
	Others      float64 // processors that other processes used meanwhile
}

// Bounds.
const (
	judged   = 2           // highest level that is; beyond, this load on this machine is late itself
	least    = 0.8         // share of the capacity that is served
	slowest  = time.Second // 99th percentile of what is served
	tolerant = 0.01        // share that may fail at half the capacity: others use the machine too
)

// capacity is what the closed loops on both sides of the i-th level served.
func (c *curve) capacity(i int) float64 {
	if c.Levels[i].Of == 0 {
		return c.Levels[i].rate()
	}
	return (c.Levels[i-1].rate() + c.Levels[i+1].rate()) / 2
}

// faults says which bounds are broken.
func (c *curve) faults() (all []string) {
	fail := func(format string, args ...any) { all = append(all, c.Path+": "+fmt.Sprintf(format, args...)) }
	for i, l := range c.Levels {
		if l.Of == 0 || l.Of > judged {
			continue
		}
		if served := l.rate() / c.capacity(i); l.Of > 1 && served < least {
			fail("at %.1f times the capacity %.0f/s are served, %.0f %% of it; must be %.0f %%", l.Of, l.rate(), 100*served, 100*least)
		}
		if l.P99 > slowest {
			fail("at %.1f times the capacity the slowest 1 %% of what is served takes over %v; must be within %v", l.Of, l.P99.Round(time.Millisecond), slowest)
		}
	}
	if failed := c.After.Offered - c.After.Served; float64(failed) > tolerant*float64(c.After.Offered) {
		fail("of %d connections after the overload %d were not served", c.After.Offered, failed)
	}
	if c.Moved > 0 {
		fail("health moved %d times, and every pod and gateway was well", c.Moved)
	}
	return all
}

// verdict takes a bound for broken only if the machine was ours while it was measured.
func (r *report) verdict() fleet.Verdict {
	v := fleet.Verdict{Logs: r.Logs}
	var held []string
	for _, c := range r.Curves {
		faults := c.faults()
		held = append(held, c.Path)
		switch {
		case len(faults) == 0:
		case c.Others > fleet.MaxOthers:
			v.Doubts = append(v.Doubts, fmt.Sprintf("%s; but other processes used %.1f processors meanwhile: %s", strings.Join(faults, "; "), c.Others, fleet.Quiet))
		default:
			v.Broken = append(v.Broken, faults...)
		}
	}
	if len(held) == 0 {
		v.Doubts = append(v.Doubts, "no path was measured: --paths matches none")
	}
	v.Held = fmt.Sprintf("every bound on %s: up to %d times the capacity at least %.0f %% of it served, within %v, nobody's health moved, and all was well afterwards",
		strings.Join(held, ", "), judged, 100*least, slowest)
	return v
}

// print writes tables and verdict.
func (r *report) print(w io.Writer, v fleet.Verdict) {
	for _, c := range r.Curves {
		fmt.Fprintf(w, "\n%s: %s\n", c.Path, c.About)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(t, "offered\tserved/s\tof the capacity\trefused\ttimed out\tlost\tp50\tp99\tload late\tprocessors of load\tof proxies\tserved by a processor's second\t")
		show := func(l level, capacity float64) {
			name := fmt.Sprintf("%.1f×", l.Of)
			if l.Of == 0 {
				name = "closed loop"
			}
			fmt.Fprintf(t, "%s\t%.0f\t%.0f %%\t%d\t%d\t%d\t%v\t%v\t%v\t%.2f\t%.2f\t%.0f\t\n", name, l.rate(), 100*l.rate()/capacity, l.Refused, l.TimedOut, l.Lost,
				l.P50.Round(10*time.Microsecond), l.P99.Round(10*time.Microsecond), l.Late.Round(10*time.Microsecond),
				l.Load.Seconds()/l.All.Seconds(), l.Proxies.Seconds()/l.All.Seconds(), float64(l.Served)/(l.Load+l.Proxies).Seconds())
		}
		for i, l := range c.Levels {
			show(l, c.capacity(i))
		}
		show(c.After, c.Levels[len(c.Levels)-1].rate())
		t.Flush()
		fmt.Fprintf(w, "health moved %d times; other processes used %.2f processors\n", c.Moved, c.Others)
	}
	v.Print(w)
}
