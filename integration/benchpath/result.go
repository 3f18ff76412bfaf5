//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// result is everything that a measurement found; result.json is this.
type result struct {
	Started  time.Time
	Took     string
	Command  string
	Machine  machine
	Topology string // loopback or hosts
	Entry    entry
	ZTunnel  string `json:",omitempty"` // what it says of its version
	Runs     int
	Loads    []load
	Variants []string
	Cells    []cell
	Rows     []row    `json:",omitempty"` // ours beside stock
	Samples  []sample // everything above is made of these
}

// cell is one load on one variant over all runs.
type cell struct {
	Load, Variant string
	Figures       map[string]spread // by the names in figures.go
	Errors        int64
	Foreign       float64 // the median over runs of sample.Foreign
}

// summarize makes cells and rows of the samples.
func (r *result) summarize() {
	r.Cells, r.Rows = nil, nil
	for _, l := range r.Loads {
		for _, v := range r.Variants {
			if c, ok := r.summary(l, v); ok {
				r.Cells = append(r.Cells, c)
			}
		}
	}
	r.Rows = r.compare()
}

func (r *result) summary(l load, variant string) (c cell, ok bool) {
	values := map[string][]float64{}
	var foreign []float64
	c = cell{Load: l.Name, Variant: variant, Figures: map[string]spread{}}
	for _, s := range r.samplesOf(l.Name, variant) {
		ok = true
		c.Errors += s.Reply.Errors
		foreign = append(foreign, s.Foreign)
		for name, value := range s.figures(l.Unit) {
			values[name] = append(values[name], value)
		}
	}
	for name, v := range values {
		c.Figures[name] = spreadOf(v)
	}
	c.Foreign = spreadOf(foreign).Median
	return c, ok
}

func (r *result) samplesOf(load, variant string) (all []sample) {
	for _, s := range r.Samples {
		if s.Load == load && s.Variant == variant {
			all = append(all, s)
		}
	}
	return all
}

func (r *result) cell(load, variant string) (cell, bool) {
	for _, c := range r.Cells {
		if c.Load == load && c.Variant == variant {
			return c, true
		}
	}
	return cell{}, false
}

// maxForeign is how many processors others may use while a cell is measured that
// means something.
const maxForeign = 0.2

// loud counts the cells that were measured while others worked.
func (r *result) loud() (n int) {
	for _, c := range r.Cells {
		if c.Foreign > maxForeign {
			n++
		}
	}
	return n
}

// err says which operations failed; nil when none did.
func (r *result) err() error {
	var lines []string
	for _, s := range r.Samples {
		if s.Reply.Errors > 0 {
			lines = append(lines, fmt.Sprintf("%s on %s, run %d: %d failed, the first: %s", s.Load, s.Variant, s.Run, s.Reply.Errors, s.Reply.First))
		}
	}
	if lines == nil {
		return nil
	}
	return fmt.Errorf("operations failed, and the figures above are without them:\n%s", strings.Join(lines, "\n"))
}

// save writes result.json and report.html.
func (r *result) save(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "result.json"), text, 0o644); err != nil {
		return err
	}
	page, err := r.report()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "report.html"), page, 0o644)
}
