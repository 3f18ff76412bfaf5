//go:build linux

package main

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"text/tabwriter"
)

// allRoles in the order of the way; cells have some of them.
var allRoles = []string{"client", "gateway", "server", "relay"}

// column is one column of a load's table.
type column struct {
	Title  string
	Figure string
	Spread bool // with the smallest and the largest value
}

// columns of the table of a load.
func columns(u unit, beside bool) []column {
	switch {
	case u == perIdle:
		return append(byRole("KiB", figIdle), byRole("base MiB", figBase)...)
	case u == perGiB:
		return append([]column{{"GiB/s", figRate, false}}, cpuColumns("CPU-s/GiB")...)
	case beside:
		return []column{{"echoes/s", figRate, false}, {"p50 µs", figP50, true}, {"p99 µs", figP99, true}, {"bulk GiB/s", figBulk, false}}
	}
	return append([]column{{"per s", figRate, false}, {"p50 µs", figP50, true}, {"p99 µs", figP99, true}}, cpuColumns("CPU µs")...)
}

func cpuColumns(title string) []column {
	c := append([]column{{title, figCPU, true}}, byRole("", figCPU)...)
	return append(c, column{"app", figCPU + "/app", false}, column{"load", figCPU + "/load", false})
}

func byRole(title, figure string) (all []column) {
	for _, r := range allRoles {
		name := r
		if title != "" {
			name = r + " " + title
		}
		all = append(all, column{name, figure + "/" + r, title != ""})
	}
	return all
}

// print writes every load's table, and ours beside stock when it was measured.
func (r *result) print(w io.Writer) error {
	for _, l := range r.Loads {
		fmt.Fprintf(w, "\n%s: %s\n", l.Name, l.About)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		r.printLoad(t, l)
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if len(r.Rows) == 0 {
		return nil
	}
	fmt.Fprintln(w, "\nbounds (ratio of medians, and of samples of the same run)")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "what\tload\tvariant\tgot\tof\tratio\tlow–high\tbound\t")
	for _, b := range r.Rows {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%.2f\t%.2f–%.2f\t≤ %s\t%s\n", b.What, b.Load, b.Variant, short(b.Got.Median), short(b.Of.Median),
			b.Ratio, b.Low, b.High, strconv.FormatFloat(b.AtMost, 'g', -1, 64), b.verdict())
	}
	return t.Flush()
}

func (b row) verdict() string {
	if b.Held {
		return "held"
	}
	return "MISSED"
}

func (r *result) printLoad(w io.Writer, l load) {
	used := r.used(l)
	fmt.Fprint(w, "  variant")
	for _, c := range used {
		fmt.Fprint(w, "\t", c.Title)
	}
	fmt.Fprint(w, "\tforeign\terrors\n")
	for _, v := range r.Variants {
		c, ok := r.cell(l.Name, v)
		if !ok {
			continue
		}
		fmt.Fprint(w, "  ", v)
		for _, col := range used {
			fmt.Fprint(w, "\t", col.text(c))
		}
		fmt.Fprintf(w, "\t%.2f\t%d\n", c.Foreign, c.Errors)
	}
}

// used are the columns of a load that some variant has a figure for.
func (r *result) used(l load) (all []column) {
	for _, col := range columns(l.Unit, l.Request.Beside) {
		for _, c := range r.Cells {
			if _, ok := c.Figures[col.Figure]; ok && c.Load == l.Name {
				all = append(all, col)
				break
			}
		}
	}
	return all
}

func (col column) text(c cell) string {
	s, ok := c.Figures[col.Figure]
	if !ok {
		return "–"
	}
	if !col.Spread || s.N < 2 {
		return short(s.Median)
	}
	return fmt.Sprintf("%s (%s–%s)", short(s.Median), short(s.Min), short(s.Max))
}

// short writes three digits, more only before the point.
func short(x float64) string {
	a := math.Abs(x)
	switch {
	case a >= 100:
		return strconv.FormatFloat(x, 'f', 0, 64)
	case a >= 10:
		return strconv.FormatFloat(x, 'f', 1, 64)
	}
	return strconv.FormatFloat(x, 'f', 2, 64)
}
