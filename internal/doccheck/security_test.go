package doccheck

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var heldBy = regexp.MustCompile("`([a-z/]+)`\\s+`((?:Test|Fuzz)\\w+)`")

// Every line of the page on security names a test that is there.
func TestSecurityPageNamesTestsThatExist(t *testing.T) {
	data, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	named := heldBy.FindAllStringSubmatch(string(data), -1)
	if len(named) < 30 {
		t.Fatalf("%d tests are named", len(named))
	}
	for _, m := range named {
		files, _ := filepath.Glob("../../" + m[1] + "/*_test.go")
		found := false
		for _, f := range files {
			b, err := os.ReadFile(f)
			found = found || err == nil && strings.Contains(string(b), "func "+m[2]+"(")
		}
		if !found {
			t.Errorf("docs/security.md: %s has no %s", m[1], m[2])
		}
	}
	for n, line := range strings.Split(string(data), "\n") {
		row := strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "|---") && !strings.Contains(line, "| held by |")
		if row && !heldBy.MatchString(line) {
			t.Errorf("docs/security.md:%d: no test holds this", n+1)
		}
	}
}
