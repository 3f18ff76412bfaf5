package meshtest

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// checkLabels checks that every metric which the process has now, and every value of
// its labels, is in the tables of docs/observability.md.
func (p *Process) checkLabels(t testing.TB) {
	families, err := p.Metrics.Gather()
	if err != nil {
		t.Errorf("%s: metrics: %v", p.Name, err)
	}
	table := documented()[p.role()]
	for _, f := range families {
		if foreign.MatchString(f.GetName()) {
			continue
		}
		labels, ok := table[f.GetName()]
		if !ok {
			t.Errorf("%s: docs/observability.md does not list %s", p.Name, f.GetName())
			continue
		}
		if f.GetName() == "isthmus_build_info" {
			continue // its labels are of the build: one time series for each process
		}
		for _, m := range f.Metric {
			for _, l := range m.Label {
				values := labels[l.GetName()]
				if named := slices.ContainsFunc(values, func(v string) bool { return strings.HasPrefix(v, "the name of ") }); !named && !slices.Contains(values, l.GetValue()) {
					t.Errorf("%s: %s: docs/observability.md has no %s=%q: it must come from a closed set, and be written there", p.Name, f.GetName(), l.GetName(), l.GetValue())
				}
			}
		}
	}
}

func (p *Process) role() string {
	if strings.HasPrefix(p.Name, "gateway ") {
		return "gateway"
	}
	return "nodeproxy"
}

// foreign are the metrics of the Go runtime and of the process.
var foreign = regexp.MustCompile(`^(go|process)_`)

var (
	metricTable = regexp.MustCompile(`(?s)<!-- metrics of (\w+):.*?<!-- end -->`)
	metricRow   = regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| \\w+ \\| ([^|]*) \\|")
	labelCell   = regexp.MustCompile("`([a-z]+)`: ([^;]+)")
)

// documented is what docs/observability.md lists: process → metric → label → values.
var documented = sync.OnceValue(func() map[string]map[string]map[string][]string {
	_, here, _, _ := runtime.Caller(0)
	page, err := os.ReadFile(filepath.Join(filepath.Dir(here), "../../docs/observability.md"))
	if err != nil {
		panic(err)
	}
	out := map[string]map[string]map[string][]string{}
	for _, table := range metricTable.FindAllStringSubmatch(string(page), -1) {
		out[table[1]] = map[string]map[string][]string{}
		for _, row := range metricRow.FindAllStringSubmatch(table[0], -1) {
			labels := map[string][]string{}
			for _, l := range labelCell.FindAllStringSubmatch(row[2], -1) {
				labels[l[1]] = strings.Split(strings.TrimSpace(l[2]), ", ")
			}
			out[table[1]][row[1]] = labels
		}
	}
	maps.Copy(out["gateway"], out["both"])
	maps.Copy(out["nodeproxy"], out["both"])
	return out
})
