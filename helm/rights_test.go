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
	if len(out) == 0 {
		t.Fatalf("docs/rights.md has %v behind %q", out, heading)
	}
	return out
}

// The chart gives the rights that the page lists, and no others.
func TestRightsAreThoseOfThePage(t *testing.T) {
	sameRights(t, rendered(t, "everything"), [][3]string{
		{"ClusterRole", "isthmus-gateway", "**Gateways**"},
		{"ClusterRole", "isthmus-controller", "**isthmus-controller**"},
		{"Role", "isthmus-controller", "In its own namespace"},
	})
}

// So does the file of roles for those who run isthmus.
func TestRightsOfOperatorsAreThoseOfThePage(t *testing.T) {
	sameRights(t, objectsOf(t, "../docs/kubernetes/operator.yaml"), [][3]string{
		{"ClusterRole", "isthmus-viewer", "(ClusterRole `isthmus-viewer`)"},
		{"Role", "isthmus-viewer", "(Role `isthmus-viewer`)"},
		{"Role", "isthmus-cilium", "(Role `isthmus-cilium`)"},
		{"ClusterRole", "isthmus-operator", "(ClusterRole `isthmus-operator`)"},
		{"Role", "isthmus-operator", "(Role `isthmus-operator`)"},
	})
}

// sameRights compares roles, by their kinds and names, with the tables behind headings of the page.
func sameRights(t *testing.T, objects []object, roles [][3]string) {
	t.Helper()
	for _, r := range roles {
		c := struct{ kind, name, heading string }{r[0], r[1], r[2]}
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
