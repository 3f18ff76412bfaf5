package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What the chart renders of values is read by the programs, as in a pod; what was checked and
// what was not is said.
func TestCheckOfValuesReadsWhatIsRendered(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.Mkdir("c", 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	// The programs and helm are not in this test: helm's own tests render the chart for them.
	write("gateway", "#!/bin/sh\n[ \"$1 $3\" = '--config --check-config' ] && [ -n \"$ISTHMUS_GATEWAY_NAME\" ] || exit 9\ngrep -q 'inCluster\\|/var/lib\\|/host' \"$2\" && exit 8\ngrep -q netwrok \"$2\" || exit 0\necho \"gateway: $2:2: netwrok: no such key: network?\" >&2; exit 2\n")
	rendered := func(config string) string {
		return "---\nkind: Service\nspec: {ports: [{port: 1}]}\n---\nkind: Secret\ndata: {gateway.yaml: eHg=}\n---\nkind: ConfigMap\ndata:\n  gateway.yaml: |\n    discovery: {kube: {inCluster: true, cache: /var/lib/isthmus/cluster}}\n    capture: {proc: /host/proc}\n" + config + "  controller.yaml: |\n    network: a\n  networks.yaml: |\n    networks: []\n"
	}
	values := write("values.yaml", "")
	for name, x := range map[string]struct {
		config string
		code   int
		says   []string
		not    string
	}{
		"well": {"    network: a\n", exitOK, []string{"✓ ISTH-002", "checked: values.schema.json and the templates of c, gateway.yaml", "not checked: whether controller takes its configuration: install controller", "✓ ISTH-001", "not checked: what only a cluster knows"}, "✗"},
		"odd":  {"    netwrok: a\n", exitFinding, []string{"✓ ISTH-002", "gateway.yaml of values " + values + "\n  ✗ ISTH-001", "gateway: gateway.yaml as rendered:2: netwrok"}, dir},
	} {
		helm := write("helm", fmt.Sprintf("#!/bin/sh\ncat <<'EOT'\n%sEOT\n", rendered(x.config)))
		code, out, errs := isthmus(t, "check", "--helm", helm, "--chart", "c", "--values", values)
		if code != x.code {
			t.Errorf("%s: exit %d, want %d: %s", name, code, x.code, errs)
		}
		wantIn(t, out, x.says...)
		if text, _, _ := strings.Cut(out, " ✓, "); strings.Contains(strings.ReplaceAll(text, values, ""), x.not) {
			t.Errorf("%s: it says %q:\n%s", name, x.not, out)
		}
	}
	write("helm", "#!/bin/sh\necho 'a: [' \n")
	if code, _, errs := isthmus(t, "check", "--chart", "c", "--values", values); code != exitStart || !strings.Contains(errs, "template prints") {
		t.Errorf("no YAML: %d, %s", code, errs)
	}
}
