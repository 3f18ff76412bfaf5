package kube

import (
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/isthmus-mesh/isthmus/discovery"
)

// The age of an export is that of the ServiceExport, or of the Service if a label alone exports it. A restart with the
// API server away keeps it.
func TestExportAgeSurvivesCache(t *testing.T) {
	service := func(name string, at int64, labels map[string]string) Event {
		o := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: name, CreationTimestamp: metav1.Unix(at, 0), Labels: labels},
			Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1", Ports: []corev1.ServicePort{{Port: 80}}}}
		if at == 0 {
			o.CreationTimestamp = metav1.Time{}
		}
		trimmed, _ := trim(o)
		return Event{Services, "demo", name, trimmed}
	}
	export := func(name string, at int64) Event {
		trimmed, _ := trim(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: name, CreationTimestamp: metav1.Unix(at, 0)}})
		return Event{ServiceExports, "demo", name, trimmed}
	}
	global := map[string]string{labelGlobal: "true"}
	events := []Event{
		service("exported", 100, nil), export("exported", 200),
		service("both", 100, global), export("both", 200),
		service("labelled", 100, global),
		service("ageless", 0, global),
		service("older", 100, nil), {ServiceExports, "demo", "older", struct{}{}}, // of a cache of an older version
		service("own", 100, nil),
	}
	want := map[string]int64{"exported": 200, "both": 200, "labelled": 100, "ageless": 0, "older": 0, "own": 100}
	path := filepath.Join(t.TempDir(), "cache")
	check := func(when string, events []Event) *Cluster {
		t.Helper()
		c := NewCluster("west", "istio-system")
		for _, x := range c.Apply(events...) {
			if r, ok := x.Record.(discovery.Service); ok && r.Created != want[r.Name] {
				t.Errorf("%s: the age of %s is %d; want %d", when, r.Name, r.Created, want[r.Name])
			}
		}
		if n := len(c.described); n != len(want) {
			t.Errorf("%s: %d services; want %d", when, n, len(want))
		}
		return c
	}
	check("from the API server", events)
	for range 2 {
		if err := writeCache(path, cacheHeader{Network: "west"}, events, nil); err != nil {
			t.Fatal(err)
		}
		var err error
		if _, events, _, err = readCache(path); err != nil {
			t.Fatal(err)
		}
		events = check("from the cache", events).Objects()
	}
}
