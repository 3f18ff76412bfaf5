package flow

import (
	"fmt"
	"slices"
	"strings"
)

// Disable turns heuristics off, one by one, to find out which of them does what is
// seen. The zero value leaves all of them on. What each does, and how they fit
// together: docs/flow-control.md.
type Disable struct {
	Bulk        bool // nothing counts as bulk: no session is avoided for it
	BulkApart   bool // connections that are likely to carry bulk share sessions with others
	Interactive bool // nothing counts as interactive: windows and queues stay large
	SmallFirst  bool // a small write waits for its turn like a large one
	FirstWindow bool // a stream has its whole window from the start
	LongPath    bool // a new stream has the first window on a long path too
	FewCPUs     bool // the reader never delivers bulk by itself
	Lively      bool // no session is lively: no early data
	Silent      bool // no peer is silent: no session is avoided before its PING times out
}

// switches are the names of the heuristics, in the order of the documentation.
var switches = []struct {
	name string
	of   func(*Disable) *bool
}{
	{"bulk", func(d *Disable) *bool { return &d.Bulk }},
	{"bulk-apart", func(d *Disable) *bool { return &d.BulkApart }},
	{"interactive", func(d *Disable) *bool { return &d.Interactive }},
	{"small-first", func(d *Disable) *bool { return &d.SmallFirst }},
	{"first-window", func(d *Disable) *bool { return &d.FirstWindow }},
	{"long-path", func(d *Disable) *bool { return &d.LongPath }},
	{"few-cpus", func(d *Disable) *bool { return &d.FewCPUs }},
	{"lively", func(d *Disable) *bool { return &d.Lively }},
	{"silent", func(d *Disable) *bool { return &d.Silent }},
}

// Names lists what can be disabled.
func Names() (names []string) {
	for _, s := range switches {
		names = append(names, s.name)
	}
	return names
}

// ParseDisable reads a list of names, separated by commas.
func ParseDisable(list string) (d Disable, err error) {
	for name := range strings.SplitSeq(list, ",") {
		name = strings.TrimSpace(name)
		if name == "" {
			continue
		}
		i := slices.Index(Names(), name)
		if i < 0 {
			return Disable{}, fmt.Errorf("%q cannot be disabled: use some of %s", name, strings.Join(Names(), ", "))
		}
		*switches[i].of(&d) = true
	}
	return d, nil
}
