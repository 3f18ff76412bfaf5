package report

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/isthmus-mesh/isthmus/drill/measure"
)

//go:embed report.html
var reportPage string

var reportTemplate = template.Must(template.New("report").Funcs(template.FuncMap{
	"num":   num,
	"mib":   mib,
	"role":  roleOf,
	"upper": func(v measure.Verdict) string { return strings.ToUpper(string(v)) },
	"took":  func(r *measure.Result) string { return fmt.Sprintf("%.0f s", r.Finished.Sub(r.Started).Seconds()) },
	"pct":   func(v float64) string { return strconv.Itoa(int(math.Round(100*v))) + " %" },
	"held":  countHeld,
}).Parse(reportPage))

func countHeld(list []measure.Observation) int {
	n := 0
	for _, o := range list {
		if o.Held {
			n++
		}
	}
	return n
}

// What the page holds of all arms together; drill.json holds everything.
const (
	maxPageBeliefs = 2400
	maxPageEvents  = 900
)

// trimmed returns a copy of r that keeps the page below a megabyte.
func trimmed(r *measure.Result) (page *measure.Result, less bool) {
	c := *r
	c.Arms = slices.Clone(r.Arms)
	for i := range c.Arms {
		a := &c.Arms[i]
		b, e := min(len(a.Beliefs), maxPageBeliefs/len(c.Arms)), min(len(a.Events), maxPageEvents/len(c.Arms))
		less = less || b < len(a.Beliefs) || e < len(a.Events)
		a.EventsLeftOut += len(a.Events) - e
		a.Beliefs, a.Events = a.Beliefs[:b], a.Events[:e]
	}
	return &c, less
}

// HTML returns the one HTML page: verdict, tables and, drawn by its own
// script from the JSON that it carries, the plots. It loads nothing.
func HTML(r *measure.Result) ([]byte, error) {
	r, less := trimmed(r)
	data, err := json.Marshal(struct {
		*measure.Result
		Trimmed bool `json:"trimmed,omitempty"`
	}{r, less}) // escapes <, > and &: safe inside a script element
	if err != nil {
		return nil, fmt.Errorf("render report: %w", err)
	}
	var b bytes.Buffer
	err = reportTemplate.Execute(&b, struct {
		*measure.Result
		Data template.JS
	}{r, template.JS(data)})
	if err != nil {
		return nil, fmt.Errorf("render report: %w", err)
	}
	return b.Bytes(), nil
}
