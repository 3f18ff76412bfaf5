package nodeproxy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/discovery/file"
)

// Where another network may export a destination, one that is near a service is a warning, and any
// other is none.
func TestMistypedTargetIsAWarning(t *testing.T) {
	list := strings.NewReplacer("EAST", "10.99.1.1", "WEST", "10.99.2.1", "SERVICE", "global: true").Replace(unroutedMesh)
	for host, want := range map[string]string{
		"hello.demo.svc.cluster.local": "",
		"helo.demo.svc.cluster.local":  `east.yaml:7: outbound[0].to: `,
		"helo.demo.mesh.internal":      `did you mean "hello.demo.mesh.internal"? If another network exports it, ignore this`,
		"cart.demo.svc.cluster.local":  "",
		"own.shop.svc.cluster.local":   "",
	} {
		got := checked(t, list, "federation: {networks: links.yaml}\noutbound:\n  - {workload: shop, listen: 127.0.0.1:8000, to: \""+host+":80\"}\n")
		if want == "" && len(got) > 0 || want != "" && (len(got) != 1 || !strings.Contains(got[0], want)) {
			t.Errorf("%s: warnings are %q, want %q", host, got, want)
		}
	}
}

// isthmus status has the nearest name beside a destination that no service has.
func TestStatusSuggestsTheNearestTarget(t *testing.T) {
	path, store := filepath.Join(t.TempDir(), "mesh.yaml"), new(discovery.Store)
	list := strings.NewReplacer("EAST", "10.99.1.1", "WEST", "10.99.2.1", "SERVICE", "global: true").Replace(unroutedMesh)
	if err := os.WriteFile(path, []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := file.OpenFor("east", path, store); err != nil {
		t.Fatal(err)
	}
	snap := store.Current()
	p := newTestProxy(t, snap)
	for host, want := range map[string]string{"helo": `: did you mean "hello.demo.svc.cluster.local"?`, "cart": ": no service has this hostname or alias"} {
		p.cfg.Outbound = []Outbound{{Workload: "shop", To: host + ".demo.svc.cluster.local:80"}}
		if rows := p.leadNowhere(snap); len(rows) != 1 || !strings.HasSuffix(rows[0].Why, want) {
			t.Errorf("%s: rows are %+v, want one that ends with %q", host, rows, want)
		}
	}
}
