package scenario

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
)

const readme = "../../examples/drills/README.md"

// metricsTable is the README's table, made from the closed list.
func metricsTable() string {
	var b strings.Builder
	for _, m := range Metrics() {
		takes := make([]string, len(m.Takes))
		for i, t := range m.Takes {
			takes[i] = "`" + t + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", m.Name, strings.Join(takes, ", "), m.Doc)
	}
	return b.String()
}

func TestReadmeNamesEveryMetricKindAndKey(t *testing.T) {
	data, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	if want := metricsTable(); !strings.Contains(text, want) {
		t.Errorf("%s: the table of metrics should be:\n%s", readme, want)
	}
	for _, k := range kinds {
		if !strings.Contains(text, "| `"+string(k.Kind)+"` |") {
			t.Errorf("%s does not explain the fault %s (%s)", readme, k.Kind, k.Doc)
		}
	}
	for _, k := range strictyaml.Keys(Scenario{}) {
		name := k.Name[strings.LastIndexByte(k.Name, '.')+1:]
		if !strings.Contains(text, name+":") && !strings.Contains(text, "`"+name+"`") {
			t.Errorf("%s does not mention the key %s", readme, k.Name)
		}
		if k.Doc == "" {
			t.Errorf("the key %s has no doc tag", k.Name)
		}
	}
	for _, name := range windowNames {
		if !strings.Contains(text, "`"+name+"`") {
			t.Errorf("%s does not mention the phase %s", readme, name)
		}
	}
}

func TestReadmeExampleIsAValidScenario(t *testing.T) {
	data, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), "```yaml\n")
	example, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("no example found")
	}
	if _, err := Parse("example.yaml", []byte(example)); err != nil {
		t.Error(err)
	}
}
