package nodeproxy_test

import (
	"context"
	"regexp"
	"testing"
)

// The keys of /state are of one style, endpoints are written as everywhere else, and
// a pod that its own side has ejected is not called usable.
func TestStateIsOfOnePiece(t *testing.T) {
	p := reported(t, 2)
	sick := p.pods[0].App(8080, 8081)
	p.pods[1].App(8080, 8081)
	p.pods[1].Outbound(hello)
	p.Start()
	if err := sick.Refuse(context.Background(), 8080); err != nil {
		t.Fatal(err)
	}
	id := p.pods[0].Endpoint().String()
	p.untilFirst(t, p.node(2).Log, "known", "network", "west", "port", 80, "exceptions", []any{id}) // its pod is a client of the service too
	for _, proc := range []string{"node proxy west-1", "node proxy east-1", "gateway west/gw-1"} {
		keysAre(t, proc, p.Process(proc).State(t))
	}
	if row := p.node(2).Row(t, "ownNetwork", "endpoint", id, "port", 8080); !row.Has("usable", false, "reported", "ejected") {
		t.Errorf("a pod that its own side ejected: %v", row)
	}
	if row := p.node(2).Row(t, "ownNetwork", "endpoint", id, "port", 8081); !row.Has("usable", true, "reported", "healthy") {
		t.Errorf("its other port: %v", row)
	}
	p.client().Log.Await(t, "known", "network", "west", "port", 80, "exceptions", []any{id})
	found := false
	for _, f := range p.client().Rows(t, "followedServices") {
		for _, n := range asList(f["networks"]) {
			for _, port := range asList(n.(map[string]any)["ports"]) {
				out, ok := port.(map[string]any)["exceptions"].([]any)
				if !ok {
					t.Errorf("exceptions are null, not []: %v", port)
				}
				found = found || len(out) == 1 && out[0] == id
			}
		}
	}
	if !found {
		t.Errorf("nothing that is followed names the exception %s: %v", id, p.client().Rows(t, "followedServices"))
	}
	said := false
	for _, r := range p.Process("gateway west/gw-1").Rows(t, "reports") {
		f, _ := r["fact"].(map[string]any)
		said = said || f["endpoint"] == id && r["node"] == "west-1" && r["believed"] == true && r["attached"] == true
	}
	if !said {
		t.Errorf("the gateway does not show what the node has reported: %v", p.Process("gateway west/gw-1").Rows(t, "reports"))
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
