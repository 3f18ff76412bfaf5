package file

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A file that a process starts with may have problems all the same, which --check tells of.
func TestProblemsOfAFileThatIsUsed(t *testing.T) {
	const well = "networks: [{name: west, nodes: [west-1]}]\ngateways: [{name: gw-1, network: west, address: 127.0.0.1:15008}]\n"
	policy := func(action string) string {
		return "policies: [{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: p, namespace: demo}, spec: {action: " + action + "}}]\n"
	}
	path := filepath.Join(t.TempDir(), "mesh.yaml")
	for name, x := range map[string]struct {
		text string
		want []string // nil: no problem
	}{
		"well":      {well + policy("DENY"), nil},
		"a policy":  {well + policy("deny"), []string{path + ":3: policies[0].spec.action: ", `"deny"`, "DENY"}},
		"a service": {well + "services: [{name: Hello, namespace: demo}]\n", []string{path + ":3: services[0].name: ", `"Hello"`}},
		"a key":     {well + "polices: []\n", []string{`unknown key "polices": did you mean "policies"?`}},
	} {
		if err := os.WriteFile(path, []byte(x.text), 0o600); err != nil {
			t.Fatal(err)
		}
		err := Config{File: path}.Problems()
		if (err == nil) != (x.want == nil) {
			t.Errorf("%s: %v, want %q", name, err, x.want)
			continue
		}
		for _, w := range x.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v, want it to say %q", name, err, w)
			}
		}
	}
	if err := (Config{}).Problems(); err != nil {
		t.Errorf("without a file: %v", err)
	}
}
