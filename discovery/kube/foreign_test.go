package kube

import (
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// What another cluster exported, whose cache this is, is not exported here, where a service of that
// name has no ServiceExport.
func TestCacheOfAnotherClusterExportsNothing(t *testing.T) {
	gvr := schema.GroupVersionResource{Group: exportsGroup, Version: "v1beta1", Resource: "serviceexports"}
	kinds := []*metav1.APIResourceList{{GroupVersion: exportsGroup + "/v1beta1", APIResources: []metav1.APIResource{{Name: "serviceexports"}}}}
	const web = "web.demo.svc.cluster.local"
	cluster := func(uid string) *world {
		system := runtime.Object(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: typed(uid)}})
		w := prepare(t, append(objects(t, "testdata/service-export.yaml"), system)...)
		w.define(kinds)
		return w
	}
	path := filepath.Join(t.TempDir(), "cache")
	synctest.Test(t, func(t *testing.T) {
		w := cluster("one")
		export := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: exportsGroup + "/v1beta1", Kind: "ServiceExport"}, ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "web"}}
		if err := w.meta.Tracker().Create(gvr, export, "demo"); err != nil {
			t.Fatal(err)
		}
		w.version.Store("200")
		w.saver.path = path
		w.run(t)
		after(time.Minute)
		if svc := w.snapshot().Named(web); svc == nil || !svc.Exported() {
			t.Fatalf("in the cluster of the cache: %+v", svc)
		}
		w.stop()
		x := cluster("two")
		x.version.Store("100") // which is not backwards: it is another cluster's
		x.saver.path = path
		x.run(t)
		after(time.Minute)
		if svc := x.snapshot().Named(web); svc == nil || svc.Exported() || x.Status().Held != "" {
			t.Errorf("no ServiceExport of this cluster names it, and it is exported: %v, held %q", svc.Exported(), x.Status().Held)
		}
		x.stop()
		if !x.guard.rewound.IsZero() {
			t.Error("the API server is said to have gone backwards: it is another one")
		}
	})
}
