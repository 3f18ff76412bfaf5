package nodeproxy

import (
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/mesh"
)

func TestASourceIsFoundByItsUIDOrElseByItsName(t *testing.T) {
	here := []*mesh.Workload{
		{UID: "u-1", Namespace: "demo", Name: "shop"},
		{UID: "u-2", Namespace: "demo", Name: "twin"}, {UID: "u-3", Namespace: "demo", Name: "twin"}, // of two clusters
		{UID: "east/demo/file", Namespace: "demo", Name: "file"},
		{UID: "demo/odd", Namespace: "demo", Name: "other"}, {UID: "u-4", Namespace: "demo", Name: "odd"},
		{UID: "u-5", Namespace: "demo", Name: "outside", Plain: true},
	}
	for source, want := range map[string]string{"u-1": "u-1", "demo/shop": "u-1", "u-3": "u-3", "east/demo/file": "east/demo/file", "demo/file": "east/demo/file", "demo/odd": "demo/odd", "u-5": "u-5"} {
		if w, err := sourceOf(here, source, "east-1"); err != nil || w.UID != want {
			t.Errorf("%s: %v, %v; want %s", source, w, err, want)
		}
	}
	for source, want := range map[string][]string{
		"demo/twin": {`"demo/twin"`, "2 workloads of node east-1", "u-2 or u-3"},
		"demo/no":   {`"demo/no"`, "node east-1", "demo/shop", "east/demo/file"},
		"/":         {`"/"`, "known are"},
	} {
		_, err := sourceOf(here, source, "east-1")
		if err == nil {
			t.Errorf("%s is taken", source)
			continue
		}
		for _, part := range want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v; want %q in it", source, err, part)
			}
		}
		if strings.Contains(err.Error(), "outside") {
			t.Errorf("%s: %v: names what is not in the mesh", source, err)
		}
	}
}
