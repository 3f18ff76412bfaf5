//go:build linux

package main

import (
	"fmt"
	"html/template"
	"math"
	"strings"
)

// Sizes of plots in pixels.
const (
	plotWidth = 860
	labelLeft = 96  // where bars begin
	textRight = 190 // what is kept free behind the longest bar
	rowHeight = 26
)

// plot is SVG that is being written: one line per variant.
type plot struct {
	b    strings.Builder
	rows int
}

func (p *plot) add(format string, args ...any) { fmt.Fprintf(&p.b, format, args...) }

// row begins the line of a variant and returns its middle.
func (p *plot) row(variant string) (y float64) {
	y = float64(p.rows)*rowHeight + rowHeight/2
	p.rows++
	p.add(`<text class="name" x="%d" y="%.1f">%s</text>`, labelLeft-8, y+4, template.HTMLEscapeString(variant))
	return y
}

func (p *plot) whisker(y, from, to float64) {
	p.add(`<path class="whisker" d="M%.1f %.1fH%.1fM%.1f %.1fv8M%.1f %.1fv8"/>`, from, y, to, from, y-4, to, y-4)
}

func (p *plot) text(x, y float64, text string) {
	p.add(`<text x="%.1f" y="%.1f">%s</text>`, x, y+4, template.HTMLEscapeString(text))
}

func (p *plot) svg(title string) template.HTML {
	height := p.rows * rowHeight
	return template.HTML(fmt.Sprintf(`<svg viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s">%s</svg>`,
		plotWidth, height, plotWidth, height, template.HTMLEscapeString(title), p.b.String()))
}

// stacked draws a bar per variant that is made of its roles' medians, and the
// spread of the whole when there is a figure of it. Empty without figures.
func (r *result) stacked(l load, figure string) template.HTML {
	longest := 0.0
	for _, c := range r.cellsOf(l) {
		longest = max(longest, c.stack(figure), c.Figures[figure].Max)
	}
	if longest == 0 {
		return ""
	}
	scale := (plotWidth - labelLeft - textRight) / longest
	var p plot
	for _, c := range r.cellsOf(l) {
		total := c.stack(figure)
		if total == 0 {
			continue
		}
		y, x := p.row(c.Variant), float64(labelLeft)
		for _, role := range allRoles {
			part := c.Figures[figure+"/"+role].Median * scale
			p.add(`<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="16"><title>%s %s</title></rect>`,
				role, x, y-8, max(0, part), role, short(part/scale))
			x += max(0, part)
		}
		if whole, ok := c.Figures[figure]; ok && whole.N > 1 {
			p.whisker(y, labelLeft+whole.Min*scale, labelLeft+whole.Max*scale)
			x, total = max(x, labelLeft+whole.Max*scale), whole.Median
		}
		p.text(x+8, y, short(total))
	}
	return p.svg(l.About)
}

// stack is the sum of the roles' medians.
func (c cell) stack(figure string) (sum float64) {
	for _, role := range allRoles {
		sum += max(0, c.Figures[figure+"/"+role].Median)
	}
	return sum
}

// latencies draws p50 and p99 of every variant with their spreads, on a
// logarithmic axis. Empty without them.
func (r *result) latencies(l load) template.HTML {
	low, high := math.Inf(1), 0.0
	for _, c := range r.cellsOf(l) {
		if p50 := c.Figures[figP50]; p50.Min > 0 {
			low, high = min(low, p50.Min), max(high, c.Figures[figP99].Max)
		}
	}
	if high == 0 {
		return ""
	}
	x := logScale(low, high)
	var p plot
	for _, c := range r.cellsOf(l) {
		if c.Figures[figP50].Min <= 0 {
			continue
		}
		y := p.row(c.Variant)
		end := 0.0
		for _, figure := range []string{figP50, figP99} {
			f := c.Figures[figure]
			p.whisker(y, x(f.Min), x(f.Max))
			p.add(`<circle class="%s" cx="%.1f" cy="%.1f" r="5"><title>%s %s µs</title></circle>`, figure, x(f.Median), y, figure, short(f.Median))
			end = max(end, x(f.Max))
		}
		p.text(end+10, y, fmt.Sprintf("%s / %s µs", short(c.Figures[figP50].Median), short(c.Figures[figP99].Median)))
	}
	return p.svg(l.About)
}

// logScale maps [low, high] to where a plot draws.
func logScale(low, high float64) func(float64) float64 {
	span := max(math.Log(high/low), 1e-9)
	return func(v float64) float64 {
		return labelLeft + (plotWidth-labelLeft-textRight)*math.Log(max(v, low)/low)/span
	}
}

func (r *result) cellsOf(l load) (all []cell) {
	for _, c := range r.Cells {
		if c.Load == l.Name {
			all = append(all, c)
		}
	}
	return all
}
