//go:build linux

package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
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
		return slices.Concat(byRole("KiB", figIdle), byRole("base MiB", figBase),
			byRole("goroutines", figGoroutines), byRole("heap KiB", figHeap), byRole("stack KiB", figStack))
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

// table is a heading and rows of as many texts.
type table struct {
	Head []string
	Rows [][]string
}

// print writes every load's table, and ours beside stock when it was measured.
func (r *result) print(w io.Writer) error {
	for _, l := range r.Loads {
		fmt.Fprintf(w, "\n%s: %s\n", l.Name, l.About)
		if err := r.tableOf(l).print(w); err != nil {
			return err
		}
	}
	if loud := r.loud(); loud > 0 {
		fmt.Fprintf(w, "\nThe machine was not quiet: in %d of %d cells more than %v processors were busy with something else.\n", loud, len(r.Cells), maxForeign)
	}
	if len(r.Rows) == 0 {
		return nil
	}
	fmt.Fprintln(w, "\nbounds: ratio of the medians, and least and largest ratio of samples of the same run")
	return r.boundsTable().print(w)
}

func (t table) print(w io.Writer) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{t.Head}, t.Rows...) {
		fmt.Fprintln(out, "  "+strings.Join(row, "\t"))
	}
	return out.Flush()
}

func (r *result) tableOf(l load) (t table) {
	used := r.used(l)
	t.Head = append(t.Head, "variant")
	for _, col := range used {
		t.Head = append(t.Head, col.Title)
	}
	t.Head = append(t.Head, "foreign", "errors")
	for _, v := range r.Variants {
		c, ok := r.cell(l.Name, v)
		if !ok {
			continue
		}
		row := []string{v}
		for _, col := range used {
			row = append(row, col.text(c))
		}
		t.Rows = append(t.Rows, append(row, short(c.Foreign), strconv.FormatInt(c.Errors, 10)))
	}
	return t
}

func (r *result) boundsTable() table {
	t := table{Head: []string{"what", "load", "variant", "got", "of", "ratio", "low–high", "bound", ""}}
	for _, b := range r.Rows {
		t.Rows = append(t.Rows, []string{b.What, b.Load, b.Variant, short(b.Got.Median), short(b.Of.Median),
			short(b.Ratio), short(b.Low) + "–" + short(b.High), "≤ " + strconv.FormatFloat(b.AtMost, 'g', -1, 64), b.verdict()})
	}
	return t
}

func (b row) verdict() string {
	if b.Held {
		return "held"
	}
	return "MISSED"
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
