//go:build linux

package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
)

// report is what a run saw.
type report struct {
	options
	total         tally
	before, after map[string]footprint // by process
	kept          float64              // sessions that were still there after the traffic
	short         []string             // connection windows that were not whole then
	logs          string               // folder of the logs, if something is wrong
}

// faults says what must not be.
func (r *report) faults() (all []string) {
	all = append(all, r.total.wrong...)
	all = append(all, r.total.failed...)
	all = append(all, r.short...)
	if r.kept == 0 {
		all = append(all, "no session was left after the traffic whose window could be looked at")
	}
	if r.total.complete == 0 || r.abort > 0 && r.total.aborted == 0 {
		all = append(all, fmt.Sprintf("%d connections were complete and %d broken off: nothing was tried", r.total.complete, r.total.aborted))
	}
	for _, p := range slices.Sorted(maps.Keys(r.after)) {
		for _, what := range r.after[p].names() {
			if before, after := r.before[p][what], r.after[p][what]; r.grown(what, before, after) {
				all = append(all, fmt.Sprintf("%s holds %.0f %s, at its start %.0f", p, after, what, before))
			}
		}
	}
	return all
}

// grown reports whether a process kept something. What is not there without
// traffic must not be there afterwards.
func (r *report) grown(what string, before, after float64) bool {
	return after > before*(1+r.slack)
}

// print writes the report: counts, what each process holds, and what is wrong.
func (r *report) print(w io.Writer) {
	fmt.Fprintf(w, "\n%d connections complete (%d MiB), %d broken off, %d failed, %d truncated or corrupt\n\n",
		r.total.complete, r.total.bytes>>20, r.total.aborted, len(r.total.failed), len(r.total.wrong))
	fmt.Fprintf(w, "%.0f sessions kept after the traffic, %d processes whose connection windows are not whole\n\n", r.kept, len(r.short))
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
	bad := r.faults()
	if len(bad) == 0 {
		fmt.Fprintln(w, "\nHELD: nothing failed that was not broken off, and everything is back where it began")
		return
	}
	fmt.Fprintf(w, "\nBROKEN (logs in %s):\n", r.logs)
	for i, b := range bad {
		if i == 20 {
			fmt.Fprintf(w, "  … and %d more\n", len(bad)-i)
			break
		}
		fmt.Fprintln(w, " ", b)
	}
}
