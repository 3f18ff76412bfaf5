package kubernetes

import (
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// declare creates a ServiceExport.
func (s *side) declare(t *testing.T, namespace, name string) {
	t.Helper()
	e := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "multicluster.x-k8s.io/v1alpha1", "kind": "ServiceExport", "metadata": map[string]any{"name": name, "namespace": namespace}}}
	_, err := s.imports.Resource(mcs("serviceexports")).Namespace(namespace).Create(t.Context(), e, metav1.CreateOptions{})
	s.world.must(err)
}

// condition is one of a ServiceExport: status, reason and message.
func (s *side) condition(t *testing.T, namespace, name, kind string) string {
	t.Helper()
	e, err := s.imports.Resource(mcs("serviceexports")).Namespace(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	list, _, _ := unstructured.NestedSlice(e.Object, "status", "conditions")
	for _, x := range list {
		if c := x.(map[string]any); c["type"] == kind {
			return fmt.Sprintf("%s %s: %s", c["status"], c["reason"], c["message"])
		}
	}
	return "none"
}

// imported describes the ServiceImport of a service of demo: which object it is, its version, type, addresses and ports.
func (s *side) imported(t *testing.T, name string) string {
	i, err := s.imports.Resource(mcs("serviceimports")).Namespace("demo").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		return ""
	}
	kind, _, _ := unstructured.NestedString(i.Object, "spec", "type")
	ports, _, _ := unstructured.NestedSlice(i.Object, "spec", "ports")
	text := fmt.Sprint(i.GetUID(), " ", kind, " ", addressesOf(i))
	for _, p := range ports {
		text += fmt.Sprint(" ", p.(map[string]any)["name"], " ", p.(map[string]any)["port"])
	}
	return text
}

// A Service of west is exported by a ServiceExport. Its only pod restarts again and again, is replaced and is gone for a
// while: the ServiceImport of east stays the same object with its addresses, and connections are refused for want of an
// endpoint until a pod is ready. The import goes with the ServiceExport.
func TestServiceImportOutlivesPods(t *testing.T) {
	w := newWorld(t, 2, "east", "west")
	east, west := w.side("east"), w.side("west")
	client := east.run(t, "shop", "shop-1", east.nodes[0])
	client.say(t, corev1.ConditionTrue)
	for _, s := range w.sides {
		s.imports = s.definitions(t)
	}
	w.startGateways(2, "")
	west.expose(t, "hello", nil, 8080)
	west.declare(t, "demo", "hello")
	server := west.run(t, "hello", "hello-0", west.nodes[0], 8080)
	server.say(t, corev1.ConditionTrue)
	for _, s := range w.sides {
		s.startController(s.imports)
	}
	w.startNodes()
	w.started()
	eventually(t, 30*time.Second, "hello is imported with addresses", func() bool { return len(east.vips(t, "hello")) == 2 })
	before := east.imported(t, "hello")
	names := []string{"hello.demo.svc.clusterset.local:8080", "hello.demo.mesh.internal:8080"}
	for _, a := range east.vips(t, "hello") {
		names = append(names, net.JoinHostPort(a, "8080"))
	}
	answered := func(when string, pod *demoPod) {
		t.Helper()
		for _, name := range names {
			took := eventually(t, 30*time.Second, when+": "+name+" is answered", func() bool { return client.call(name).pod == pod.name })
			t.Logf("%s: %s after %v", when, name, took.Round(time.Millisecond))
		}
	}
	stays := func(when string) {
		t.Helper()
		if now := east.imported(t, "hello"); now != before {
			t.Fatalf("%s: the import is %q; want %q", when, now, before)
		}
	}
	refused := func(when string) {
		t.Helper()
		for _, name := range names {
			eventually(t, 10*time.Second, when+": "+name+" is refused", func() bool { return client.call(name).err != nil })
		}
		time.Sleep(time.Second) // what an API server and two controllers would make of it is made by then
		for _, name := range names {
			began, why := time.Now(), ""
			if a := client.call(name); a.err == nil {
				t.Errorf("%s: %s is answered by %s", when, name, a.pod)
			}
			eventually(t, 5*time.Second, when+": the reason is logged", func() bool { why = w.refused(t, client.node, began); return why != "" })
			if !strings.HasPrefix(why, "no_endpoint") {
				t.Errorf("%s: a connection to %s fails with %q; want no_endpoint", when, name, why)
			}
		}
		stays(when)
	}
	answered("at first", server)
	for round := range 3 {
		server.say(t, corev1.ConditionFalse)
		stays("just not ready")
		if round == 0 {
			refused("not ready")
		}
		server.say(t, corev1.ConditionTrue)
		answered("ready again", server)
		stays("ready again")
	}
	<-server.delete(t, 100*time.Millisecond)
	refused("without a pod")
	if c := west.condition(t, "demo", "hello", "Ready"); !strings.HasPrefix(c, "True Exported") || !strings.Contains(c, "without an endpoint") {
		t.Errorf("without a pod Ready of the ServiceExport is %q", c)
	}
	server = west.run(t, "hello", "hello-1", west.nodes[1], 8080)
	server.say(t, corev1.ConditionTrue)
	answered("replaced", server)
	stays("replaced")

	w.must(west.imports.Resource(mcs("serviceexports")).Namespace("demo").Delete(t.Context(), "hello", metav1.DeleteOptions{}))
	eventually(t, 30*time.Second, "the import goes with the ServiceExport", func() bool { return east.imported(t, "hello") == "" })
}

// West has exported a Service; then east exports a headless one of the same name with another port. East's name is the
// first by the alphabet, and west's export is the oldest: the import keeps type, addresses and port in both clusters, and
// the condition Conflict of both ServiceExports names west. Then Ready of a ServiceExport reports what gateways export.
func TestOldestExportWinsOnRealClusters(t *testing.T) {
	w := newWorld(t, 1, "east", "west")
	east, west := w.side("east"), w.side("west")
	for _, s := range w.sides {
		s.imports = s.definitions(t)
	}
	w.startGateways(1, "")
	for _, s := range w.sides {
		s.startController(s.imports)
	}
	w.started()
	west.expose(t, "web", nil, 8080)
	west.declare(t, "demo", "web")
	for _, s := range w.sides {
		eventually(t, 30*time.Second, s.network+" imports web", func() bool { return len(s.vips(t, "web")) == 2 })
	}
	before := map[*side]string{east: east.imported(t, "web"), west: west.imported(t, "web")}
	time.Sleep(1100 * time.Millisecond) // creationTimestamp has whole seconds
	headless := service("web", nil, corev1.ServicePort{Name: "p8080", Port: 9090}, corev1.ServicePort{Name: "more", Port: 7070})
	headless.Spec.ClusterIP = corev1.ClusterIPNone
	east.apply(t, headless)
	east.declare(t, "demo", "web")
	for _, s := range w.sides {
		eventually(t, 30*time.Second, "the ServiceExport of "+s.network+" is in conflict", func() bool {
			return strings.HasPrefix(s.condition(t, "demo", "web", "Conflict"), "True PortConflict,TypeConflict: ")
		})
		c := s.condition(t, "demo", "web", "Conflict")
		t.Logf("%s: %s", s.network, c)
		if !strings.Contains(c, "the export of west wins, as it is the oldest") {
			t.Errorf("the condition of %s does not name west: %s", s.network, c)
		}
		eventually(t, 30*time.Second, s.network+" imports the port that east adds", func() bool { return strings.HasSuffix(s.imported(t, "web"), " more 7070 p8080 8080") })
		if now := strings.Replace(s.imported(t, "web"), " more 7070", "", 1); now != before[s] {
			t.Errorf("%s imports %q; before %q, and more 7070 beside it", s.network, now, before[s])
		}
	}

	west.apply(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "plain"}})
	plain, p := service("plain", nil, corev1.ServicePort{Port: 80}), pod("plain", "plain-0")
	plain.Namespace, p.Namespace, p.Spec.NodeName = "plain", "plain", west.nodes[0].name
	west.apply(t, plain, p)
	west.kubelet(t, "plain", "plain-0", west.address(200), corev1.ConditionTrue)
	west.declare(t, "plain", "plain")
	eventually(t, 30*time.Second, "Ready names what a namespace outside of the mesh lacks", func() bool {
		c := west.condition(t, "plain", "plain", "Ready")
		return strings.HasPrefix(c, "False Pending") && strings.Contains(c, "istio.io/dataplane-mode=ambient")
	})
	_, err := west.CoreV1().Namespaces().Patch(t.Context(), "plain", types.MergePatchType, []byte(`{"metadata":{"labels":{"istio.io/dataplane-mode":"ambient"}}}`), metav1.PatchOptions{})
	w.must(err)
	eventually(t, 30*time.Second, "with the label it is ready", func() bool {
		return strings.HasPrefix(west.condition(t, "plain", "plain", "Ready"), "True Exported: the gateways of this network export it to the linked networks")
	})

	// Without gateways nothing is known of what they export.
	for _, g := range west.gateways {
		w.must(g.Stop(syscall.SIGKILL, time.Minute))
	}
	eventually(t, 2*time.Minute, "without gateways Ready is unknown", func() bool { return strings.HasPrefix(west.condition(t, "plain", "plain", "Ready"), "Unknown Pending") })
	for _, g := range west.gateways {
		w.must(w.Start(g, w.Ready(g.Host, adminAddress)))
	}
	eventually(t, time.Minute, "with gateways it is ready again", func() bool { return strings.HasPrefix(west.condition(t, "plain", "plain", "Ready"), "True Exported") })
}
