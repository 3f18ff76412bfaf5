package nodeproxy_test

import (
	"context"
	"regexp"
	"testing"

	"github.com/isthmus-mesh/isthmus/federation"
)

// The keys of /state are of one style, endpoints are written as everywhere else, and
// a pod that its own side has ejected is not called usable.
func TestStateIsOfOnePiece(t *testing.T) {
	p := reported(t, 2)
	sick := p.pods[0].App(8080, 8081)
	p.pods[1].App(8080, 8081)
	p.Start()
	if err := sick.Refuse(context.Background(), 8080); err != nil {
		t.Fatal(err)
	}
	id := p.pods[0].Endpoint().String()
	p.untilFirst(t, p.node(2).Log, "known", "network", "west", "port", 80, "exceptions", []any{id}) // west-2 hears of its neighbour
	for _, proc := range []string{"node proxy west-2", "node proxy east-1", "gateway west/gw-1"} {
		keysAre(t, proc, p.Process(proc).State(t))
	}
	if row := p.node(2).Row(t, "ownNetwork", "endpoint", id, "port", 8080); !row.Has("usable", false, "reported", "ejected") {
		t.Errorf("a pod that its own side ejected: %v", row)
	}
	if row := p.node(2).Row(t, "ownNetwork", "endpoint", id, "port", 8081); !row.Has("usable", true, "reported", "healthy") {
		t.Errorf("its other port: %v", row)
	}
	found := false
	for _, r := range p.client().Rows(t, "records") {
		if age, ok := r["ageMs"].(float64); ok && age >= float64(federation.NoEvidence.Milliseconds()) {
			t.Errorf("the age of no evidence is shown as one: %v", r)
		}
		if s, ok := r["summary"].(map[string]any); ok && s["exceptions"] == nil {
			t.Errorf("exceptions are null, not []: %v", r)
		}
		s, _ := r["summary"].(map[string]any)
		found = found || len(asList(s["exceptions"])) == 1 && asList(s["exceptions"])[0] == id
	}
	if !found {
		t.Errorf("no record names the exception %s: %v", id, p.client().Rows(t, "records"))
	}
}

func asList(v any) []any { l, _ := v.([]any); return l }

var camelCase = regexp.MustCompile(`^[a-z][A-Za-z0-9]*$`)

// keysAre checks every key below v, except those that are values: ports.
func keysAre(t *testing.T, where string, v any) {
	t.Helper()
	switch v := v.(type) {
	case []any:
		for _, x := range v {
			keysAre(t, where, x)
		}
	case map[string]any:
		for k, x := range v {
			if !camelCase.MatchString(k) && (k[0] < '0' || k[0] > '9') {
				t.Errorf("%s: key %q is not in camelCase", where, k)
			}
			keysAre(t, where+"."+k, x)
		}
	}
}
