package nodeproxy

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/nodeproxy/pods"
)

// An entry that captures nobody is named with its line and the nearest workload; the process starts, for its other pods.
func TestCheckWarnsOfEntriesThatCaptureNobody(t *testing.T) {
	mesh := strings.NewReplacer("EAST", "10.99.1.1", "WEST", "10.99.2.1", "SERVICE", "global: true, vips: [240.240.0.9]").Replace(unroutedMesh)
	for workload, want := range map[string]string{
		"shop":    "",
		"shpo":    `east.yaml:8: capture.namespaces[0].workload: captures no pod: `,
		"hello-1": `captures no pod: "hello-1" is on node "west-1" of network "west"`,
	} {
		got := checked(t, mesh, "capture:\n  scope: vips\n  namespaces:\n    - workload: "+workload+"\n      path: /run/netns/x\n")
		if want == "" && len(got) > 0 || want != "" && (len(got) != 1 || !strings.Contains(got[0], want)) {
			t.Errorf("%s: warnings are %q, want %q", workload, got, want)
		}
		if workload == "shpo" && len(got) == 1 && !strings.Contains(got[0], `did you mean "shop"?`) {
			t.Errorf("%q does not name the nearest", got)
		}
	}
}

// Files of this machine that are missing are named, each with its line.
func TestCheckNamesAbsentFiles(t *testing.T) {
	dir := t.TempDir()
	path, there := filepath.Join(dir, "east.yaml"), filepath.Join(dir, "there")
	if err := os.WriteFile(there, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, missing := range []string{"path", "resolvConf"} {
		at := map[string]string{"path": there, "resolvConf": there, missing: there + "-not"}
		if err := os.WriteFile(path, []byte("capture:\n  namespaces:\n  - workload: shop\n    path: "+at["path"]+"\n    resolvConf: "+at["resolvConf"]+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		c := Config{}
		c.Capture.Scope = pods.ScopeVIPs
		c.Capture.Namespaces = []pods.Namespace{{Workload: "shop", Path: at["path"], ResolvConf: at["resolvConf"]}}
		want := fmt.Sprintf("%s:%d: capture.namespaces[0].%s: ", path, map[string]int{"path": 4, "resolvConf": 5}[missing], missing)
		if got := c.Absent(path); len(got) != 1 || !strings.HasPrefix(got[0], want) || !strings.Contains(got[0], there+"-not: no such file") {
			t.Errorf("%s: %q, want one line that begins with %s", missing, got, want)
		}
	}
}

// Where capture ends, nobody is to be captured.
func TestCheckSaysNothingOfEntriesWhereCaptureEnds(t *testing.T) {
	mesh := strings.NewReplacer("EAST", "10.99.1.1", "WEST", "10.99.2.1", "SERVICE", "global: true").Replace(unroutedMesh)
	if got := checked(t, mesh, "capture: {scope: release, namespaces: [{workload: gone, path: /run/netns/x}]}\n"); len(got) > 0 {
		t.Errorf("warnings are %q", got)
	}
}

// Ranges that hold what somebody of the network has capture nobody at all.
func TestCheckWarnsOfRangesThatPodsAreIn(t *testing.T) {
	mesh := strings.NewReplacer("EAST", "10.99.1.1", "WEST", "10.99.2.1", "SERVICE", "global: true, vips: [10.99.0.1]").Replace(unroutedMesh)
	got := checked(t, mesh, "capture:\n  scope: vips\n  ranges: [10.99.0.0/16]\n")
	if want := "east.yaml:7: capture.ranges: hold 10.99.1.2, which is the address of workload shop: "; len(got) != 1 || !strings.Contains(got[0], want) {
		t.Errorf("warnings are %q, want %q", got, want)
	}
}
