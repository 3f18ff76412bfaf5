package doccheck

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestRunbookNamesWhatThereIs looks up what docs/operations.md names: metrics and reasons
// in the tables of docs/observability.md, which are written from the code, and keys in
// those of docs/configuration.md.
func TestRunbookNamesWhatThereIs(t *testing.T) {
	read := func(path string) string {
		b, err := os.ReadFile("../../docs/" + path)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	runbook, written, keys := read("operations.md"), read("observability.md"), read("configuration.md")
	for _, c := range []struct {
		what  string
		names *regexp.Regexp // with the name as its group
		in    string
		also  []string
	}{
		{"metric", regexp.MustCompile("`((?:isthmus|istio)_[a-z_]+)[`{]"), written, nil},
		// A row that begins with … goes on about a reason; flapping and stalled are of health alone.
		{"reason", regexp.MustCompile("(?m)^\\| … `([a-z_]+)`"), written, []string{"flapping", "stalled"}},
		{"reason", regexp.MustCompile("the reason: `([a-z_]+)`"), written, nil},
		{"key", regexp.MustCompile("`((?:gateways|services|shares|workloads|discovery|federation|timeouts|limits|retry|admin|log|identity|outbound|socks)(?:\\[\\])?\\.[A-Za-z.\\[\\]]+)`"), keys, nil},
	} {
		found := c.names.FindAllStringSubmatch(runbook, -1)
		if len(found) == 0 {
			t.Errorf("operations.md names no %s: correct what this test looks for", c.what)
		}
		for _, m := range found {
			known := strings.Contains(c.in, "| `"+m[1]+"` |")
			for _, a := range c.also {
				known = known || a == m[1]
			}
			if !known {
				t.Errorf("operations.md names the %s %s, and no table has it", c.what, m[1])
			}
		}
	}
}
