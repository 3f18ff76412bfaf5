package depcheck

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// ban says what some rooms must not link, whoever imports it for them: our
// packages, the standard library's or those of others.
type ban struct {
	rooms  []string
	never  []string // as matches takes them
	remedy string
}

var bans = []ban{
	{
		rooms:  []string{"nodeproxy", "cmd/nodeproxy", "control/ads", "control/health", "control/wds", "federation/healthstream", "federation/peer", "hbone", "hbone/pool", "identity", "internal/link"},
		never:  []string{"github.com/hashicorp/", module + "/federation/gossip"},
		remedy: "gossip is between gateways: a node proxy learns from its own gateways by federation/healthstream",
	},
	{
		rooms:  []string{"nodeproxy", "cmd/nodeproxy", "control/ads", "control/health", "control/wds", "federation/gossip", "federation/healthstream", "federation/peer", "hbone", "hbone/pool", "identity", "internal/link"},
		never:  []string{"k8s.io/", "sigs.k8s.io/", module + "/discovery/kube", module + "/discovery/kube/"},
		remedy: "the data path never links client-go: discovery/kube alone speaks to Kubernetes",
	},
	{
		rooms:  []string{"mesh", "route", "health", "balance", "discovery", "discovery/ztunnel", "federation", "federation/antientropy", "federation/damping", "federation/ledger", "federation/networkkey", "federation/record", "control/health", "control/wds"},
		never:  []string{"net/http", "net/http/", "golang.org/x/net/", "google.golang.org/grpc", "google.golang.org/grpc/", "crypto/tls"},
		remedy: "rooms that decide have no HTTP or TLS stack below them: let a child folder speak to the world and pass plain values",
	},
}

func TestRoomsDoNotLinkWhatTheyAreNotToKnow(t *testing.T) {
	imports := linked(t)
	for _, b := range bans {
		for _, room := range b.rooms {
			if imports[module+"/"+room] == nil {
				t.Errorf("room %s is not there any more: remove it from bans in internal/depcheck/links_test.go", room)
			}
			if way := shortest(imports, module+"/"+room, b.never); way != nil {
				t.Errorf("room %s links %s (%s): %s", room, way[len(way)-1], strings.Join(way, " → "), b.remedy)
			}
		}
	}
}

// linked returns what every package in the build of this module imports, as the
// go command resolves it for Linux.
func linked(t *testing.T) map[string][]string {
	t.Helper()
	for _, name := range []string{"go.mod", "go.sum"} { // what go test must know that this test depends on
		if _, err := os.ReadFile(filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	c := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...")
	c.Dir = root
	c.Env = append(os.Environ(), "GOOS=linux", "CGO_ENABLED=0")
	var trouble bytes.Buffer
	c.Stderr = &trouble
	out, err := c.Output()
	if err != nil {
		t.Fatal(fmt.Errorf("%s: %w: %s", c, err, trouble.String()))
	}
	imports := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		imports[f[0]] = f[1:]
	}
	return imports
}

// shortest returns the shortest way along imports from a package to one that
// matches, both included, or nil.
func shortest(imports map[string][]string, from string, list []string) []string {
	before := map[string]string{from: ""}
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		if at != from && matches(list, at) {
			var way []string
			for ; at != ""; at = before[at] {
				way = append(way, at)
			}
			slices.Reverse(way)
			return way
		}
		for _, to := range imports[at] {
			if _, seen := before[to]; !seen {
				before[to] = at
				queue = append(queue, to)
			}
		}
	}
	return nil
}
