package nodeproxy

import (
	"encoding/json"
	"net/http/httptest"
	"testing"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/discovery/file"
	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/pods"
)

// The status of a node proxy says of how many captured pods names are not answered, and that one releases.
func TestStatusCountsCapturedPodsWithoutNames(t *testing.T) {
	status := func(scope string) (s answer.Status) {
		p := newTestProxy(t, &mesh.Snapshot{})
		p.watcher = file.Without(p.cfg.Network, "cluster.local", p.store, zerolog.Nop())
		p.cfg.Capture = pods.DefaultConfig()
		if p.cfg.Capture.Scope = scope; p.cfg.Capture.On() {
			p.pods = pods.Fake(p.podOptions(), p.podParent(), map[string]pods.FakePod{"a": {Names: true}, "b": {}, "c": {Lacks: "odd"}})
		}
		w := httptest.NewRecorder()
		p.status(w, httptest.NewRequest("GET", "/status", nil))
		if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	if s := status(pods.ScopeVIPs); s.Captured == nil || *s.Captured != 2 || s.Nameless != 1 || s.Releasing || len(s.Uncaptured) != 1 {
		t.Errorf("with scope vips: %+v, want 2 captured, 1 of these without names, 1 not captured", s)
	}
	if s := status(pods.ScopeRelease); s.Captured != nil || s.Nameless != 0 || !s.Releasing {
		t.Errorf("with scope release: %+v, want that it releases", s)
	}
}
