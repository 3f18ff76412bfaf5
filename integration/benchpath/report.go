//go:build linux

package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
)

//go:embed report.html
var reportPage string

var reportTemplate = template.Must(template.New("report").Parse(reportPage))

// section is what the page shows of one load.
type section struct {
	load
	Plots []figurePlot
	Table table
}

type figurePlot struct {
	Title string
	SVG   template.HTML
}

// report returns the page: one file that loads nothing.
func (r *result) report() ([]byte, error) {
	page := struct {
		*result
		Roles    []string
		Bounds   table
		Sections []section
	}{r, allRoles, r.boundsTable(), nil}
	for _, l := range r.Loads {
		page.Sections = append(page.Sections, r.section(l))
	}
	var b bytes.Buffer
	if err := reportTemplate.Execute(&b, page); err != nil {
		return nil, fmt.Errorf("render the report: %w", err)
	}
	return b.Bytes(), nil
}

func (r *result) section(l load) section {
	s := section{load: l, Table: r.tableOf(l)}
	cpu := "CPU µs per " + string(l.Unit) + ", by role"
	if l.Unit == perGiB {
		cpu = "CPU seconds per GiB, by role"
	}
	for _, p := range []figurePlot{
		{cpu, r.stacked(l, figCPU)},
		{"p50 and p99, logarithmic", r.latencies(l)},
		{"KiB resident per idle connection, by role", r.stacked(l, figIdle)},
		{"MiB resident without load, by role", r.stacked(l, figBase)},
	} {
		if p.SVG != "" {
			s.Plots = append(s.Plots, p)
		}
	}
	return s
}
