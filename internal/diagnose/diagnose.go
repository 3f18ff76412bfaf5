// Package diagnose has the means to diagnose the sessions of a process:
// heuristics that can be turned off, and a record of the frames of chosen sessions.
package diagnose

import (
	"fmt"
	"net/http"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/flow"
	"github.com/isthmus-mesh/isthmus/internal/admin"
)

// Config is the section diagnose of a process's YAML.
type Config struct {
	Disable     string `yaml:"disable" doc:"for diagnosis: flow control heuristics to turn off, separated by commas: bulk, bulk-apart, interactive, small-first, first-window, long-path, few-cpus, lively, silent (docs/flow-control.md)" env:"ISTHMUS_DISABLE"`
	TraceFrames string `yaml:"traceFrames" doc:"for diagnosis: record the latest frames of sessions whose name contains this, such as a peer's address, for GET /debug/frames" env:"ISTHMUS_TRACE_FRAMES"`
}

// Validate names what cannot be disabled.
func (c Config) Validate() error {
	if _, err := flow.ParseDisable(c.Disable); err != nil {
		return fmt.Errorf("diagnose.disable: %w", err)
	}
	return nil
}

// Diagnosis is that of one process. Safe for concurrent use.
type Diagnosis struct {
	disable flow.Disable
	trace   hbone.FrameTrace
}

// New starts what c, which is valid, asks for.
func New(c Config) *Diagnosis {
	d := new(Diagnosis)
	d.disable, _ = flow.ParseDisable(c.Disable)
	d.trace.Start(c.TraceFrames)
	return d
}

// Apply puts it into the configuration of a session.
func (d *Diagnosis) Apply(c *hbone.Config) { c.Disable, c.Trace = d.disable, &d.trace }

// Endpoints are what the admin server answers.
func (d *Diagnosis) Endpoints() []admin.Endpoint {
	return []admin.Endpoint{
		{Pattern: "GET /debug/frames", Doc: "the last frames of the sessions that are traced", Handler: d.frames},
		{Pattern: "POST /debug/frames", Doc: "trace the sessions whose name holds ?match=, an address or identity; none if it is empty", Handler: d.start},
	}
}

func (d *Diagnosis) frames(w http.ResponseWriter, r *http.Request) {
	if err := admin.Parameters(r); err != nil {
		admin.Fail(w, http.StatusBadRequest, err)
		return
	}
	lines, dropped := d.trace.Lines()
	if lines == nil {
		lines = []string{}
	}
	admin.Answer(w, http.StatusOK, map[string]any{"match": d.trace.Match(), "dropped": dropped, "frames": lines})
}

func (d *Diagnosis) start(w http.ResponseWriter, r *http.Request) {
	if err := admin.Parameters(r, "match"); err != nil {
		admin.Fail(w, http.StatusBadRequest, err)
		return
	}
	d.trace.Start(r.URL.Query().Get("match"))
	admin.Answer(w, http.StatusOK, map[string]any{"match": d.trace.Match()})
}
