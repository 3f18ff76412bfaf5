package diagnose

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/hbone"
)

func TestConfigReachesSessionsAndTheAdminServer(t *testing.T) {
	if err := (Config{Disable: "bulk,calm"}).Validate(); err == nil || !strings.Contains(err.Error(), "diagnose.disable") {
		t.Errorf("an unknown heuristic gives %v", err)
	}
	d := New(Config{Disable: "bulk, lively", TraceFrames: "10.0.0.7:"})
	cfg := hbone.DefaultConfig()
	d.Apply(&cfg)
	if !cfg.Disable.Bulk || !cfg.Disable.Lively || cfg.Disable.Interactive || cfg.Trace.Match() != "10.0.0.7:" {
		t.Errorf("session has %+v and traces %q", cfg.Disable, cfg.Trace.Match())
	}
	mux := http.NewServeMux()
	for _, e := range d.Endpoints() {
		mux.HandleFunc(e.Pattern, e.Handler)
	}
	ask := func(method, target string) (got struct {
		Match   string
		Dropped *int
		Frames  []string
	}) {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(method, target, nil))
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != 200 {
			t.Fatalf("%s %s: %d %s", method, target, w.Code, w.Body)
		}
		return got
	}
	if got := ask("GET", "/debug/frames"); got.Match != "10.0.0.7:" || got.Frames == nil || got.Dropped == nil {
		t.Errorf("frames: %+v", got)
	}
	if got := ask("POST", "/debug/frames?match=ns/shop"); got.Match != "ns/shop" || cfg.Trace.Match() != "ns/shop" {
		t.Errorf("start: %+v", got)
	}
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest("POST", "/debug/frames?mtch=x", nil))
	if w.Code != 400 || !strings.Contains(w.Body.String(), "mtch") || cfg.Trace.Match() != "ns/shop" {
		t.Errorf("a mistyped parameter: %d %s, traces %q", w.Code, w.Body, cfg.Trace.Match())
	}
	if got := ask("POST", "/debug/frames"); got.Match != "" || cfg.Trace.Match() != "" {
		t.Errorf("stop: %+v", got)
	}
}
