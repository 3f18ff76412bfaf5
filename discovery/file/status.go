package file

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/isthmus-mesh/isthmus/discovery"
)

// Status is what an operator should know about a file that is followed.
type Status struct {
	File        string    `json:"file"`        // path; empty without a file
	Revision    uint64    `json:"revision"`    // revision in force
	LastSuccess time.Time `json:"lastSuccess"` // when the file was last valid and in force
	Failing     bool      `json:"failing"`     // the current file is not in force
	// LastError is why the file is not in force now, or was not the last time. Empty if it always was,
	// and after a held change was confirmed.
	LastError       string         `json:"lastError,omitempty"`
	LastErrorTime   time.Time      `json:"lastErrorTime,omitzero"`    // start of lastError
	Held            string         `json:"held,omitempty"`            // ID of the content that is pending confirmation; empty if none is
	Problems        []Problem      `json:"problems,omitempty"`        // first hundred reasons why parts of the content in force are not used
	ProblemsByCause map[string]int `json:"problemsByCause,omitempty"` // number of problems, listed or not
}

// namedProblems is how many problems of a file [Status.Findings] says each for itself.
const namedProblems = 3

// Findings says, a line each, what of the file is not in force or not used: nil if it is
// all as it should be.
func (s Status) Findings() (list []string) {
	why := strings.ReplaceAll(s.LastError, "\n", "; ")
	switch {
	case s.Held != "":
		list = append(list, fmt.Sprintf("discovery file %s: a change is %s: if it is meant, write confirm: %q into the file, or POST /discovery/confirm?id=%[3]s to the admin address", s.File, why, s.Held))
	case s.Failing:
		list = append(list, fmt.Sprintf("discovery file %s is not in force as it is now: %s", s.File, why))
	}
	total := 0
	for _, n := range s.ProblemsByCause {
		total += n
	}
	named := s.Problems[:min(len(s.Problems), namedProblems)]
	for _, p := range named {
		list = append(list, s.of()+": "+p.sentence())
	}
	if more := total - len(named); more > 0 {
		what := "problems"
		if more == 1 {
			what = "problem"
		}
		list = append(list, fmt.Sprintf("%s: %d further %s: GET /discovery of the admin address lists them", s.of(), more, what))
	}
	return list
}

// of is what the problems are of.
func (s Status) of() string {
	if s.File == "" {
		return "discovery"
	}
	return "discovery file " + s.File
}

// Status tells how it stands. Safe for concurrent use.
func (w *Watcher) Status() Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status
}

// confirmation is a question to Run.
type confirmation struct {
	id     string
	answer chan error // one slot
}

// Confirm takes the held content into force if id names it and the file still says
// it. It waits for Run to do so, until ctx ends.
func (w *Watcher) Confirm(ctx context.Context, id string) error {
	c := confirmation{id: id, answer: make(chan error, 1)}
	select {
	case w.confirm <- c:
	case <-ctx.Done():
		return fmt.Errorf("confirm discovery: %w", context.Cause(ctx))
	}
	select {
	case err := <-c.answer:
		return err
	case <-ctx.Done():
		return fmt.Errorf("confirm discovery: %w", context.Cause(ctx))
	}
}

// ErrNotHeld is what Confirm returns when no content of that name is held.
var ErrNotHeld = errors.New("no content of this name is held")

func (w *Watcher) confirmed(id string) error {
	w.stamp = stamp{} // whatever the stamp says, read it
	settled := w.look(time.Now())
	h := w.held
	if !settled || h == nil || h.id != id {
		name := "nothing is held"
		switch {
		case !settled:
			name = "the file is being written to, try again"
		case w.unread != "":
			name = "the file cannot be read: " + w.unread
		case h != nil:
			name = "held is " + h.id
		}
		return fmt.Errorf("confirm discovery: %q: %w: %s", id, ErrNotHeld, name)
	}
	next, _ := w.list(h.config)
	w.accept(h.sum, h.doc, h.config, next, "discovery changed, as confirmed")
	w.note(time.Now())
	return nil
}

// Collector is what an operator's alert needs of a Watcher: it collects when it
// is scraped.
type Collector struct {
	w                                       *Watcher
	revision, success, failing, held, reads *prometheus.Desc
	problems                                *prometheus.Desc
}

// NewCollector makes the collector of w; the process registers it.
func NewCollector(w *Watcher) *Collector {
	return &Collector{
		w:        w,
		revision: prometheus.NewDesc("isthmus_discovery_revision", "Revision of the mesh description in force.", nil, nil),
		success:  prometheus.NewDesc("isthmus_discovery_last_success_timestamp_seconds", "When the discovery file was last valid and in force.", nil, nil),
		failing:  prometheus.NewDesc("isthmus_discovery_failing", "1 while the current discovery file is not in force.", nil, nil),
		held:     prometheus.NewDesc("isthmus_discovery_held", "1 while a change of the discovery file is pending confirmation.", nil, nil),
		reads:    prometheus.NewDesc("isthmus_discovery_changes_total", "Changes of the discovery file, by result (held: pending confirmation).", []string{"result"}, nil),
		problems: prometheus.NewDesc("isthmus_discovery_problems", "Objects, or single fields, in the mesh description in force that are not used, by kind of problem.", []string{"kind"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.revision, c.success, c.failing, c.held, c.reads, c.problems} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	s := c.w.Status()
	gauge := func(d *prometheus.Desc, v float64) { out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	gauge(c.revision, float64(s.Revision))
	gauge(c.success, float64(s.LastSuccess.UnixMilli())/1000)
	gauge(c.failing, truth(s.Failing))
	gauge(c.held, truth(s.Held != ""))
	for _, cause := range discovery.Causes() {
		out <- prometheus.MustNewConstMetric(c.problems, prometheus.GaugeValue, float64(s.ProblemsByCause[cause.String()]), cause.String())
	}
	for result, n := range map[string]uint64{"accepted": c.w.accepted.Load(), "refused": c.w.rejected.Load(), "held": c.w.holds.Load()} {
		out <- prometheus.MustNewConstMetric(c.reads, prometheus.CounterValue, float64(n), result)
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
