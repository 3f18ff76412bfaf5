//go:build linux

package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"

	"github.com/isthmus-mesh/isthmus/integration/fleet"
)

// report is what a run saw.
type report struct {
	options
	total         tally
	before, after map[string]footprint // by process; the most and the least that was seen
	others        float64              // processors that other processes used during the traffic
	kept          float64              // sessions that were still there after the traffic
	short         []string             // connection windows that were not whole then
	logs          string               // folder of the logs, if something is wrong
}

// verdict says what must not be, and what nothing can be said of.
func (r *report) verdict() fleet.Verdict {
	v := fleet.Verdict{Logs: r.logs, Held: fmt.Sprintf("of %d connections none failed that was not broken off, and every process is back where it began", r.total.complete+r.total.aborted)}
	v.Broken = append(v.Broken, r.total.wrong...)
	v.Broken = append(v.Broken, r.short...)
	for _, p := range slices.Sorted(maps.Keys(r.after)) {
		for _, what := range r.after[p].names() {
			if before, after := r.before[p][what], r.after[p][what]; r.grown(what, before, after) {
				v.Broken = append(v.Broken, fmt.Sprintf("%s holds %.0f %s, at its start %.0f", p, after, what, before))
			}
		}
	}
	switch failed := len(r.total.failed); {
	case failed == 0:
	case r.others > fleet.MaxOthers:
		v.Doubts = append(v.Doubts, fmt.Sprintf("%d connections failed, the first: %s; but other processes used %.1f processors meanwhile: %s", failed, r.total.failed[0], r.others, fleet.Quiet))
	default:
		v.Broken = append(v.Broken, r.total.failed...)
	}
	if r.kept == 0 {
		v.Doubts = append(v.Doubts, "no session was left after the traffic whose window could be looked at: run longer or at a higher --rate")
	}
	if r.total.complete == 0 || r.abort > 0 && r.total.aborted == 0 {
		v.Doubts = append(v.Doubts, fmt.Sprintf("%d connections were complete and %d broken off: run longer or at a higher --rate", r.total.complete, r.total.aborted))
	}
	return v
}

// heapFloor is how many bytes of heap a process may hold more whatever it held. All of
// a process is about 1 MB, so that 2 % are 20 KB, and what profiles of every
// allocation (GODEBUG=memprofilerate=1, or 512) show after two minutes are 17 to 62 KB
// of things that do not grow with connections: the runtime's descriptors of goroutines
// (480 bytes each) and of threads (5 KB each), which it keeps for ever and which grow
// with the most that there were at once (see peak), likewise the room of maps, tables of protobuf
// types at their first use, the snapshot in force, buffers of gossip. It is 3 bytes for
// each connection that the least used process carries in ten minutes.
const heapFloor = 64 << 10

// grown reports whether a process kept something. What is not there without
// traffic must not be there afterwards.
func (r *report) grown(what string, before, after float64) bool {
	if what == heapBytes && after-before <= heapFloor {
		return false
	}
	return after > before*(1+r.slack)
}

// print writes the report: counts, what each process holds, and the verdict.
func (r *report) print(w io.Writer, v fleet.Verdict) {
	fmt.Fprintf(w, "\n%d connections complete (%d MiB), %d broken off, %d failed, %d truncated or corrupt\n\n",
		r.total.complete, r.total.bytes>>20, r.total.aborted, len(r.total.failed), len(r.total.wrong))
	fmt.Fprintf(w, "%.0f sessions kept after the traffic, %d processes whose connection windows are not whole; other processes used %.2f processors\n\n", r.kept, len(r.short), r.others)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	header := false
	for _, p := range slices.Sorted(maps.Keys(r.after)) {
		names := r.after[p].names()
		if !header {
			header = true
			fmt.Fprint(t, "before → after")
			for _, n := range names {
				fmt.Fprintf(t, "\t%s", n)
			}
			fmt.Fprintln(t)
		}
		fmt.Fprint(t, p)
		for _, n := range names {
			fmt.Fprintf(t, "\t%.0f → %.0f", r.before[p][n], r.after[p][n])
		}
		fmt.Fprintln(t)
	}
	t.Flush()
	v.Print(w)
}
