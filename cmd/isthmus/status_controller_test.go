package main

import (
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/answer"
)

func TestStatusOfAController(t *testing.T) {
	now := time.Now()
	s := answer.Status{Process: "controller isthmus-controller-1", Network: "west", Now: now, Problems: []string{"Kubernetes API server: create serviceimports: forbidden"},
		Controller: &answer.Controller{Leader: "isthmus-controller-1", Leading: true, Since: now.Add(-90 * time.Second), Attached: 2, Imports: 3, Own: 2, VIPs: &answer.VIPs{Used: 2, Free: 65000},
			Held:         []answer.HeldWrite{{Write: "create", Namespace: "shop", Why: "no right\x1b[2J", Failures: 4, Until: now.Add(3 * time.Second)}},
			Certificates: map[string]uint64{"issued": 7, "denied": 1},
			Sources:      []answer.Source{{Kind: "pods", Objects: 5}, {Kind: "services", Objects: 2, AgeMS: 61_000, Error: "refused"}, {Kind: "serviceimports", Absent: true}}}}
	got := statusText([]answer.Status{s})
	for _, want := range []string{"controller isthmus-controller-1 on network west", "problem: Kubernetes API server", "leads since 1m30s", "2 gateways tell", "3 imports, 2 of them ours; 2 virtual addresses used, 65000 free",
		"requests for certificates: 1 denied, 7 issued", "create", "shop", "in 3s", `no right\x1b[2J`, "1m1s", "refused", "the API server has no such kind"} {
		if !strings.Contains(got, want) {
			t.Errorf("status lacks %q:\n%s", want, got)
		}
	}
	s.Controller.Leading, s.Controller.VIPs = false, nil
	if got := statusText([]answer.Status{s}); !strings.Contains(got, "isthmus-controller-1 leads, as is known here since 1m30s") || strings.Contains(got, "virtual addresses") {
		t.Errorf("status of one that does not lead:\n%s", got)
	}
	s.Problems = nil
	if s.Well() {
		t.Error("a write is held back, and all is well")
	}
	s.Controller.Held = nil
	if s.Well() {
		t.Error("a source is not followed, and all is well")
	}
	s.Controller.Sources = s.Controller.Sources[:1]
	if !s.Well() {
		t.Error("nothing is wrong, and not all is well")
	}
}

// A cluster without the kind of ServiceImports is a choice: status says so, and finds nothing.
func TestStatusOfAControllerWithoutServiceImports(t *testing.T) {
	s := answer.Status{Process: "controller c-1", Network: "west", Controller: &answer.Controller{Leading: true, Leader: "c-1", Sources: []answer.Source{{Kind: "pods", Objects: 5}, {Kind: "serviceimports", Absent: true}}}}
	got := statusText([]answer.Status{s})
	wantIn(t, got, "the API server has no such kind", "helm/isthmus-crds")
	if n := strings.Count(got, "no such kind"); n != 1 || !s.Well() {
		t.Errorf("it is said %d times, and well: %t; want once, and true:\n%s", n, s.Well(), got)
	}
}
