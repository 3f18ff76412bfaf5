package helm

import (
	"encoding/json"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/controller"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// target are labels that Prometheus gives to what it scrapes, as the PodMonitor has it.
var target = []string{"namespace", "pod"}

var (
	described  = regexp.MustCompile(`fqName: "([^"]+)".*constLabels: \{([^}]*)\}, variableLabels: \{([^}]*)\}`)
	constLabel = regexp.MustCompile(`(\w+)=`)
	inQuery    = regexp.MustCompile(`\b((?:isthmus|istio|go|process)_[a-z0-9_]+)(\{[^}]*\})?`)
	matcher    = regexp.MustCompile(`([a-z_]+)\s*(=~|!~|!=|=)\s*"([^"]*)"`)
	grouping   = regexp.MustCompile(`by \(([^)]*)\)`)
)

// labelsOf is what the processes register: name → labels.
func labelsOf(t *testing.T, registries ...*prometheus.Registry) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for _, r := range registries {
		descs := make(chan *prometheus.Desc)
		go func() { r.Describe(descs); close(descs) }()
		for d := range descs {
			m := described.FindStringSubmatch(d.String())
			if m == nil {
				t.Fatalf("cannot read %s", d)
			}
			for _, l := range constLabel.FindAllStringSubmatch(m[2], -1) {
				out[m[1]] = append(out[m[1]], l[1])
			}
			out[m[1]] = append(out[m[1]], strings.FieldsFunc(m[3], func(r rune) bool { return r == ',' })...)
		}
	}
	return out
}

// controllerOf is a controller that never runs.
func controllerOf(t *testing.T, s *meshtest.Mesh) *controller.Controller {
	t.Helper()
	c := controller.DefaultConfig()
	c.Name, c.Network = "controller-1", "west"
	c.Discovery.Kube.Kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	text := `{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}], clusters: [{name: a, cluster: {server: "https://127.0.0.1:1"}}], users: [{name: a, user: {}}]}`
	if err := os.WriteFile(c.Discovery.Kube.Kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Identity = identity.Config{Source: "ca", Dir: filepath.Join(s.Dir(), "ca"), TTL: time.Hour}
	c.Admin.Address = netip.AddrPortFrom(s.Addr(), 15000)
	out, err := controller.New(c, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Every query of the dashboard names metrics that a gateway, a node proxy or a controller
// registers, and labels that these have.
func TestDashboardAsksForWhatThereIs(t *testing.T) {
	s := meshtest.New(t)
	s.Networks("west")
	s.Gateway("west", "gw-1")
	s.Pod("west", "west-1", "hello-1")
	s.Start()
	known := labelsOf(t, s.Process("gateway west/gw-1").Metrics, s.Process("node proxy west-1").Metrics, controllerOf(t, s).Registry())
	text, err := os.ReadFile("isthmus/dashboards/isthmus.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			Title   string
			Type    string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	queries, lines := 0, maps.Clone(known)
	maps.DeleteFunc(lines, func(name string, _ []string) bool { return !strings.HasPrefix(name, "isthmus_line_") })
	for _, p := range board.Panels {
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("%s asks for nothing", p.Title)
		}
		for _, q := range p.Targets {
			queries++
			maps.DeleteFunc(lines, func(name string, _ []string) bool { return strings.Contains(q.Expr, name+"{") })
			for _, complaint := range judge(q.Expr, q.LegendFormat, known) {
				t.Errorf("%s: %s: %s", p.Title, q.Expr, complaint)
			}
		}
	}
	if queries < 20 {
		t.Errorf("%d queries; want those of a dashboard", queries)
	}
	if len(lines) > 0 {
		t.Errorf("the dashboard has no panel with %q", slices.Sorted(maps.Keys(lines)))
	}
	for query, want := range map[string]string{ // that judge finds what is wrong
		`sum(rate(isthmus_tunnels_total[1m]))`:                             "isthmus_tunnels_total",
		`sum by (result) (isthmus_tunnels_opened_total)`:                   "result",
		`isthmus_tunnels_closed_total{reason="ended"}`:                     "reason",
		`sum by (le) (rate(isthmus_tunnels_opened_total[1m]))`:             "le",
		`sum by (le) (rate(isthmus_connect_duration_seconds_buckt[1m]))`:   "buckt",
		`istio_tcp_connections_opened_total{namespace="isthmus-system"}`:   "istio_tcp",
		`max by (cause) (isthmus_endpoints_out{cause="x", cluster="own"})`: "cluster",
	} {
		if got := judge(query, "", known); len(got) == 0 || !strings.Contains(strings.Join(got, " "), want) {
			t.Errorf("%s: %q; want a complaint about %s", query, got, want)
		}
	}
}

// judge says what is wrong with a query and its legend.
func judge(expr, legend string, known map[string][]string) (complaints []string) {
	var allowed []string // in groupings and the legend
	for _, m := range inQuery.FindAllStringSubmatch(expr, -1) {
		name, labels := m[1], slices.Clone(target)
		if base, isBucket := strings.CutSuffix(name, "_bucket"); isBucket && known[name] == nil {
			if _, ok := known[base]; ok && strings.HasSuffix(base, "_duration_seconds") {
				name, labels = base, append(labels, "le")
			}
		}
		own, ok := known[name]
		if !ok {
			complaints = append(complaints, "no process registers "+name)
			continue
		}
		labels = append(labels, own...)
		allowed = append(allowed, labels...)
		for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(labels, l[1]) {
				complaints = append(complaints, name+" has no label "+l[1])
			}
		}
	}
	var used []string
	for _, g := range grouping.FindAllStringSubmatch(expr, -1) {
		used = append(used, strings.Split(strings.ReplaceAll(g[1], " ", ""), ",")...)
	}
	for _, l := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(legend, -1) {
		used = append(used, l[1])
	}
	for _, l := range used {
		if !slices.Contains(allowed, l) {
			complaints = append(complaints, "no metric in it has the label "+l)
		}
	}
	return complaints
}
