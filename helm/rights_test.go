package helm

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	rightsRow = regexp.MustCompile(`(?m)^\| ([^|]+) \| ([a-z, ]+) \|`)
	aside     = regexp.MustCompile(`\([^)]*\)`)
)

// pageRights are the pairs of resource and verb in the first table of docs/rights.md behind
// heading.
func pageRights(t *testing.T, heading string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile("../docs/rights.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, ok := strings.Cut(string(text), heading)
	if !ok {
		t.Fatalf("docs/rights.md has no %q", heading)
	}
	_, table, _ := strings.Cut(after, "|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	out := map[string]bool{}
	for _, row := range rightsRow.FindAllStringSubmatch(table, -1) {
		cell := strings.ReplaceAll(aside.ReplaceAllString(row[1], ""), "`", "")
		cell, _, _ = strings.Cut(cell, ":")
		for _, resource := range strings.FieldsFunc(cell, func(r rune) bool { return r == ',' || r == ';' }) {
			for _, verb := range strings.Split(row[2], ",") {
				out[strings.TrimSpace(resource)+" "+strings.TrimSpace(verb)] = true
			}
		}
	}
	if len(out) < 4 {
		t.Fatalf("docs/rights.md has %v behind %q", out, heading)
	}
	return out
}

// The chart gives the rights that the page lists, and no others.
func TestRightsAreThoseOfThePage(t *testing.T) {
	objects := rendered(t, "everything")
	for _, c := range []struct{ kind, name, heading string }{
		{"ClusterRole", "isthmus-gateway", "**Gateways**"},
		{"ClusterRole", "isthmus-controller", "In all namespaces"},
		{"Role", "isthmus-controller", "In its own namespace"},
	} {
		given := map[string]bool{}
		for _, r := range find(t, objects, c.kind, c.name).Rules {
			for _, resource := range slices.Concat(r.Resources, r.NonResourceURLs) {
				for _, verb := range r.Verbs {
					given[resource+" "+verb] = true
				}
			}
		}
		if want := pageRights(t, c.heading); !maps.Equal(given, want) {
			t.Errorf("%s %s gives\n%q\ndocs/rights.md says\n%q", c.kind, c.name, slices.Sorted(maps.Keys(given)), slices.Sorted(maps.Keys(want)))
		}
	}
}
