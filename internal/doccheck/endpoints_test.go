package doccheck

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/discovery/file"
	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/admin"
	"github.com/isthmus-mesh/isthmus/internal/diagnose"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

func TestOperationsPageHasEveryEndpoint(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for _, m := range regexp.MustCompile("(?m)^\\| `((?:GET|POST) [^`]+)` \\|").FindAllStringSubmatch(string(text), -1) {
		listed = append(listed, m[1])
	}
	s := &admin.Server{Registry: admin.NewRegistry(), More: slices.Concat((&file.Watcher{}).Endpoints(), diagnose.New(diagnose.Config{}).Endpoints(), (&gateway.Gateway{}).Endpoints())}
	if g, n := patterns((&gateway.Gateway{}).Endpoints()), patterns((&nodeproxy.Proxy{}).Endpoints()); !slices.Equal(without(g, "GET /reach"), n) {
		t.Errorf("a gateway serves %q, a node proxy %q", g, n)
	}
	var served []string
	for _, e := range s.Endpoints() {
		if strings.HasSuffix(e.Pattern, "{$}") {
			continue // the list of the others
		}
		served = append(served, e.Pattern)
		if e.Doc == "" {
			t.Errorf("%s has no doc", e.Pattern)
		}
	}
	slices.Sort(listed)
	slices.Sort(served)
	if !slices.Equal(listed, served) {
		t.Errorf("docs/operations.md lists\n%q, served are\n%q", listed, served)
	}
}

// without is list but for what gateways alone serve.
func without(list []string, pattern string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(p string) bool { return p == pattern })
}

func patterns(list []admin.Endpoint) (out []string) {
	for _, e := range list {
		out = append(out, e.Pattern)
	}
	return out
}
