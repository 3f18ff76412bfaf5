package kubernetes

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/isthmus-mesh/isthmus/controller"
	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// definitions installs the definitions of the Multi-Cluster Services API as the chart does.
func (c *cluster) definitions(t *testing.T) dynamic.Interface {
	t.Helper()
	client, err := dynamic.NewForConfig(c.config)
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("../../helm/isthmus-crds/crds/*.yaml")
	if err != nil || len(files) != 2 {
		t.Fatalf("%d files of definitions, %v; want 2", len(files), err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		o := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict(b, &o.Object); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		if _, err := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}).Create(t.Context(), o, metav1.CreateOptions{FieldValidation: "Strict"}); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
	}
	for _, resource := range []string{"serviceimports", "serviceexports"} {
		eventually(t, 30*time.Second, resource+" are served", func() bool {
			_, err := client.Resource(mcs(resource)).Namespace("default").List(t.Context(), metav1.ListOptions{})
			return err == nil
		})
	}
	return client
}

func mcs(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "multicluster.x-k8s.io", Version: "v1alpha1", Resource: resource}
}

// controllerRole is what a controller may do; see docs/rights.md.
func controllerRole() []any {
	rule := func(group string, resources []string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: verbs}
	}
	user := []rbacv1.Subject{{APIGroup: "rbac.authorization.k8s.io", Kind: "User", Name: "controller"}}
	meta := func(namespace string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: "controller"}
	}
	return []any{
		&rbacv1.ClusterRole{ObjectMeta: meta(""), Rules: []rbacv1.PolicyRule{
			rule("", []string{"namespaces", "services", "pods"}, "get", "list", "watch"),
			rule("", []string{"nodes"}, "list", "watch", "patch"),
			rule("discovery.k8s.io", []string{"endpointslices"}, "list", "watch"),
			rule("multicluster.x-k8s.io", []string{"serviceimports"}, "get", "list", "watch", "create", "update", "delete"),
			rule("multicluster.x-k8s.io", []string{"serviceexports"}, "get", "list", "watch"),
			rule("multicluster.x-k8s.io", []string{"serviceimports/status", "serviceexports/status"}, "update"),
			rule("security.istio.io", []string{"authorizationpolicies", "peerauthentications"}, "get", "list", "watch"),
			rule("", []string{"events"}, "create", "patch"),
			rule("authentication.k8s.io", []string{"tokenreviews"}, "create"),
			{NonResourceURLs: []string{"/openid/v1/jwks", "/.well-known/openid-configuration"}, Verbs: []string{"get"}},
		}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: meta(""), RoleRef: rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: "controller"}, Subjects: user},
		&rbacv1.Role{ObjectMeta: meta("isthmus-system"), Rules: []rbacv1.PolicyRule{
			rule("coordination.k8s.io", []string{"leases"}, "get", "create", "update"),
			rule("", []string{"configmaps"}, "get", "create", "update"),
			rule("apps", []string{"deployments"}, "get"),
		}},
		&rbacv1.RoleBinding{ObjectMeta: meta("isthmus-system"), RoleRef: rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: "controller"}, Subjects: user},
	}
}

// office is a real API server of network west with its controllers; west's gateway, and the
// networks that export to it, run in this process.
type office struct {
	*meshtest.Mesh
	*cluster
	t          *testing.T
	client     dynamic.Interface
	kubeconfig string
	links      string
	gateway    *meshtest.Process // of west
	running    map[string]*desk
}

// desk is one controller.
type desk struct {
	*controller.Controller
	log   *buffer
	admin string // its admin address
	stop  context.CancelFunc
	done  chan struct{}
}

// buffer is a log.
type buffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func openOffice(t *testing.T) *office {
	c := startCluster(t)
	o := &office{Mesh: meshtest.New(t), cluster: c, t: t, client: c.definitions(t), running: map[string]*desk{}}
	o.apply(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "isthmus-system"}})
	o.apply(t, controllerRole()...)
	o.kubeconfig = c.user(t, c.config.Host, "controller")
	o.Networks("east", "north", "west")
	for _, n := range []string{"east", "north", "west"} {
		o.Gateway(n, "gw-1")
	}
	return o
}

// export makes a service of a network, with one pod, reachable for others.
func (o *office) export(network, service string, ports ...uint16) {
	if !slices.ContainsFunc(o.Config.Services, func(s discovery.Service) bool { return s.Name == service }) {
		o.Service(service, ports...)
	}
	o.Pod(network, "", service+"-"+network, service)
}

// open starts the gateways.
func (o *office) open() {
	o.Write()
	for _, n := range []string{"east", "north"} {
		o.StartGateway(n, "gw-1")
	}
	own := o.ownFile()
	o.gateway = o.StartGateway("west", "gw-1", func(c *gateway.Config) { c.Discovery.File, c.Discovery.Kube.Kubeconfig = own, o.kubeconfig })
	o.links = o.LinkFile("west")
}

// ownFile is west's discovery file: its own services, and all gateways.
func (o *office) ownFile() string {
	o.t.Helper()
	read := func(path string) (m map[string]any) {
		b, err := os.ReadFile(path)
		if err == nil {
			err = yaml.Unmarshal(b, &m)
		}
		if err != nil {
			o.t.Fatal(err)
		}
		return m
	}
	path := o.WriteOwn("west")
	own, all := read(path), read(o.File())
	own["networks"], own["gateways"] = all["networks"], all["gateways"]
	b, err := yaml.Marshal(own)
	if err == nil {
		err = replace(path, string(b))
	}
	if err != nil {
		o.t.Fatal(err)
	}
	return path
}

func (o *office) hire(name string, edits ...func(*controller.Config)) *desk {
	o.t.Helper()
	cfg := controller.DefaultConfig()
	cfg.Name, cfg.Network = name, "west"
	cfg.Gateways = []string{o.GatewayAt("west", "gw-1").String()}
	cfg.GatewayServiceAccount = "isthmus-system/gateway-west"
	cfg.Discovery.Kube.Kubeconfig = o.kubeconfig
	cfg.Lease.Duration = 2 * time.Second
	cfg.Federation.Networks = o.links
	cfg.Identity = identity.Config{Source: "ca", Dir: filepath.Join(o.Dir(), "ca"), TTL: time.Hour}
	cfg.Admin.Address = netip.AddrPortFrom(o.Addr(), 15000)
	for _, e := range edits {
		e(&cfg)
	}
	d := &desk{log: &buffer{}, admin: cfg.Admin.Address.String(), done: make(chan struct{})}
	var err error
	if d.Controller, err = controller.New(cfg, zerolog.New(d.log).With().Timestamp().Str("instance", name).Logger()); err != nil {
		o.t.Fatal(err)
	}
	var ctx context.Context
	ctx, d.stop = context.WithCancel(context.Background())
	go func() {
		defer close(d.done)
		if err := d.Run(ctx); err != nil {
			o.t.Errorf("controller %s: %v", name, err)
		}
	}()
	o.running[name] = d
	o.t.Cleanup(func() {
		d.stop()
		<-d.done
		if o.t.Failed() {
			o.t.Logf("log of controller %s:\n%s", name, d.log.String())
		}
	})
	return d
}

// leader is the name of the controller that leads, by the Lease.
func (o *office) leader() string {
	l, err := o.CoordinationV1().Leases("isthmus-system").Get(o.t.Context(), "isthmus-controller", metav1.GetOptions{})
	if err != nil || l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

// imports describes the ServiceImports of a namespace, by name.
func (o *office) imports() map[string]*unstructured.Unstructured {
	l, err := o.client.Resource(mcs("serviceimports")).Namespace("default").List(o.t.Context(), metav1.ListOptions{})
	if err != nil {
		return nil
	}
	out := map[string]*unstructured.Unstructured{}
	for i := range l.Items {
		out[l.Items[i].GetName()] = &l.Items[i]
	}
	return out
}

func addressesOf(i *unstructured.Unstructured) string {
	if i == nil {
		return ""
	}
	ips, _, _ := unstructured.NestedStringSlice(i.Object, "spec", "ips")
	return strings.Join(ips, " ")
}

func clustersOf(i *unstructured.Unstructured) string {
	if i == nil {
		return ""
	}
	list, _, _ := unstructured.NestedSlice(i.Object, "status", "clusters")
	var out []string
	for _, c := range list {
		out = append(out, fmt.Sprint(c.(map[string]any)["cluster"]))
	}
	return strings.Join(out, " ")
}

func TestServicesOfOtherNetworksAreImported(t *testing.T) {
	o := openOffice(t)
	o.export("east", "hello", 80, 8080)
	o.export("north", "hello")
	o.export("east", "web", 80, 8080, 443, 8443)
	o.export("west", "own", 80, 8080)
	o.open()
	o.hire("controller-1")
	o.hire("controller-2")
	took := eventually(t, 30*time.Second, "hello is imported from both networks", func() bool {
		return clustersOf(o.imports()["hello"]) == "east north" && clustersOf(o.imports()["web"]) == "east"
	})
	t.Logf("start → imported: %v", took.Round(time.Millisecond))
	is := o.imports()
	if is["own"] != nil {
		t.Error("a service of this network alone is imported")
	}
	hello, web := addressesOf(is["hello"]), addressesOf(is["web"])
	if len(strings.Fields(hello)) != 2 || !strings.HasPrefix(hello, "240.240.") || hello == web || !strings.Contains(hello, "2001:2::") {
		t.Errorf("hello has %q and web %q; want an address of each family for each", hello, web)
	}
	ports, _, _ := unstructured.NestedSlice(is["web"].Object, "spec", "ports")
	if len(ports) != 2 || is["hello"].GetLabels()["app.kubernetes.io/managed-by"] != "isthmus-controller" {
		t.Errorf("web has ports %v; hello has labels %v", ports, is["hello"].GetLabels())
	}

	eventually(t, 10*time.Second, "the gateway knows the imported service", func() bool {
		status, _ := o.gateway.Get(t, "/state?service=hello.default.svc.clusterset.local")
		return status == 200
	})

	// Nothing is written while nothing changes.
	version := func() string { return is["hello"].GetResourceVersion() + " " + is["web"].GetResourceVersion() }
	before := version()
	o.export("north", "late", 80, 8080)
	o.Write()
	took = eventually(t, 10*time.Second, "what is exported now is imported", func() bool { is = o.imports(); return clustersOf(is["late"]) == "north" })
	t.Logf("exported → imported: %v", took.Round(time.Millisecond))
	if now := version(); now != before {
		t.Errorf("imports that did not change were written: versions %s; before %s", now, before)
	}

	// The leader goes, in order and then not.
	first := o.leader()
	d := o.running[first]
	d.stop()
	<-d.done
	took = eventually(t, 20*time.Second, "another one leads", func() bool { l := o.leader(); return l != "" && l != first })
	t.Logf("leader stopped → another one leads: %v", took.Round(time.Millisecond))
	o.EditService("web", func(s *discovery.Service) { s.Global = false })
	o.Write()
	took = eventually(t, 20*time.Second, "what is exported no more is imported no more", func() bool { is = o.imports(); return is["web"] == nil })
	t.Logf("label removed → import gone: %v", took.Round(time.Millisecond))
	if got := addressesOf(is["hello"]); got != hello || clustersOf(is["hello"]) != "east north" {
		t.Errorf("under another leader hello has %q of %q; before %q", got, clustersOf(is["hello"]), hello)
	}
	o.EditService("web", func(s *discovery.Service) { s.Global = true })
	o.Write()
	eventually(t, 20*time.Second, "what is exported again is imported again, with its address", func() bool { return addressesOf(o.imports()["web"]) == web })

	// Without the link nothing is imported of a network; what others export stays.
	o.relink("north")
	took = eventually(t, 90*time.Second, "without its link nothing of east is imported", func() bool {
		is = o.imports()
		return clustersOf(is["hello"]) == "north" && is["web"] == nil
	})
	t.Logf("link removed → imports gone: %v", took.Round(time.Millisecond))
	if got := addressesOf(is["hello"]); got != hello {
		t.Errorf("without the link to east hello has %q; before %q", got, hello)
	}
}

// relink leaves only these networks in the file of links.
func (o *office) relink(networks ...string) {
	o.t.Helper()
	b, err := os.ReadFile(o.links)
	if err != nil {
		o.t.Fatal(err)
	}
	var file struct {
		Networks []map[string]any `json:"networks"`
	}
	if err := yaml.Unmarshal(b, &file); err != nil {
		o.t.Fatal(err)
	}
	file.Networks = slices.DeleteFunc(file.Networks, func(n map[string]any) bool { return !slices.Contains(networks, n["name"].(string)) })
	if b, err = yaml.Marshal(file); err == nil {
		err = replace(o.links, string(b))
	}
	if err != nil {
		o.t.Fatal(err)
	}
}

// TestAStaleLeaderGivesNoAddressTwice lets two controllers both lead, each by a Lease of
// its own, while services come and go.
func TestAStaleLeaderGivesNoAddressTwice(t *testing.T) {
	o := openOffice(t)
	for i := range 12 {
		o.export([]string{"east", "north"}[i%2], fmt.Sprint("s", i), 80, 8080)
	}
	o.open()
	small := func(c *controller.Config) {
		c.VIPs.IPv4, c.VIPs.IPv6 = netip.MustParsePrefix("240.1.2.0/27"), netip.Prefix{}
	}
	o.hire("controller-1", small)
	o.hire("controller-2", small, func(c *controller.Config) { c.Lease.Name = "another" })
	var mu sync.Mutex
	had := map[string]string{}
	check := func() bool {
		mu.Lock()
		defer mu.Unlock()
		all := o.imports()
		seen := map[string]string{}
		for n, i := range all {
			a := addressesOf(i)
			if other, twice := seen[a]; twice && a != "" {
				t.Fatalf("%s is of %s and of %s", a, n, other)
			}
			seen[a] = n
			if old := had[string(i.GetUID())]; old != "" && old != a {
				t.Fatalf("%s had %s and has %s", n, old, a)
			}
			had[string(i.GetUID())] = a
		}
		return len(all) == 12 && seen[""] == ""
	}
	eventually(t, 60*time.Second, "all are imported", check)
	for round := range 6 {
		name := fmt.Sprint("s", round*2)
		o.EditService(name, func(s *discovery.Service) { s.Global = false })
		o.Write()
		eventually(t, 30*time.Second, name+" is imported no more", func() bool { check(); return o.imports()[name] == nil })
		o.EditService(name, func(s *discovery.Service) { s.Global = true })
		o.Write()
		eventually(t, 30*time.Second, name+" is imported again", check)
	}
}

// described is what `kubectl describe` shows of an object below Events, by its reason.
func (o *office) described(kind, name string) map[string]string {
	l, err := o.CoreV1().Events("default").List(o.t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=" + kind + ",involvedObject.name=" + name})
	if err != nil {
		o.t.Fatal(err)
	}
	out := map[string]string{}
	for _, e := range l.Items {
		if e.InvolvedObject.UID != "" {
			out[e.Reason] += e.Message
		}
	}
	return out
}

// conditions are those of a ServiceExport, as type: status reason.
func (o *office) conditions(name string) map[string]string {
	e, err := o.client.Resource(mcs("serviceexports")).Namespace("default").Get(o.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	list, _, _ := unstructured.NestedSlice(e.Object, "status", "conditions")
	out := map[string]string{}
	for _, x := range list {
		c := x.(map[string]any)
		out[c["type"].(string)] = fmt.Sprintf("%s %s: %s", c["status"], c["reason"], c["message"])
	}
	return out
}

func (o *office) declare(name string) {
	o.t.Helper()
	e := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "multicluster.x-k8s.io/v1alpha1", "kind": "ServiceExport", "metadata": map[string]any{"name": name, "namespace": "default"}}}
	if _, err := o.client.Resource(mcs("serviceexports")).Namespace("default").Create(o.t.Context(), e, metav1.CreateOptions{}); err != nil {
		o.t.Fatal(err)
	}
}

func TestWhatIsWrongIsSaidAtTheObjects(t *testing.T) {
	o := openOffice(t)
	o.export("east", "hello", 80, 8080)
	o.open()
	local := func(name string, labels map[string]string, ports ...corev1.ServicePort) *corev1.Service {
		s := service(name, labels, ports...)
		s.Namespace = "default"
		return s
	}
	global := map[string]string{"istio.io/global": "true"}
	headless := local("headless", global, corev1.ServicePort{Port: 80})
	headless.Spec.ClusterIP = "None"
	elsewhere := local("elsewhere", nil)
	elsewhere.Spec = corev1.ServiceSpec{Type: "ExternalName", ExternalName: "example.com"}
	foreign := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "multicluster.x-k8s.io/v1alpha1", "kind": "ServiceImport", "metadata": map[string]any{"name": "mine", "namespace": "default"},
		"spec": map[string]any{"type": "ClusterSetIP", "ports": []any{map[string]any{"port": int64(80)}}}}}
	o.export("east", "mine", 80, 8080)
	o.Write()
	if _, err := o.client.Resource(mcs("serviceimports")).Namespace("default").Create(t.Context(), foreign, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	o.cluster.apply(t, local("hello", nil, corev1.ServicePort{Name: "web", Port: 8000}), headless, elsewhere,
		local("odd", map[string]string{"istio.io/global": "true", "solo.io/service-scope": "cluster"}, corev1.ServicePort{Port: 80}),
		local("dns", global, corev1.ServicePort{Name: "udp", Port: 53, Protocol: "UDP"}, corev1.ServicePort{Name: "tcp", Port: 53}))
	for _, name := range []string{"hello", "elsewhere", "missing"} {
		o.declare(name)
	}
	o.hire("controller-1")
	o.hire("controller-2")
	has := func(name, kind, want string) func() bool {
		return func() bool { return strings.HasPrefix(o.conditions(name)[kind], want) }
	}
	for _, c := range []struct{ name, kind, want string }{
		{"hello", "Valid", "True Valid"}, {"hello", "Ready", "True Exported"}, {"hello", "Conflict", "True PortConflict"},
		{"elsewhere", "Valid", "False InvalidServiceType"}, {"elsewhere", "Ready", "False Failed"},
		{"missing", "Valid", "False NoService"}, {"missing", "Conflict", "False NoConflicts"},
	} {
		took := eventually(t, 30*time.Second, fmt.Sprintf("ServiceExport %s has condition %s: %s", c.name, c.kind, c.want), has(c.name, c.kind, c.want))
		t.Logf("%s: %s (%v)", c.name, o.conditions(c.name)[c.kind], took.Round(time.Millisecond))
	}
	for _, e := range []struct{ kind, name, reason, says string }{
		{"Service", "headless", "Unsupported", "cluster IP"}, {"Service", "odd", "Conflict", "remove one of the two"},
		{"Service", "dns", "Unsupported", "UDP"}, {"ServiceExport", "missing", "NoSuchObject", "create the Service"}, {"ServiceImport", "mine", "NotOurs", "delete it"},
	} {
		eventually(t, 30*time.Second, fmt.Sprintf("an Event at %s %s", e.kind, e.name), func() bool { return strings.Contains(o.described(e.kind, e.name)[e.reason], e.says) })
		t.Logf("%s %s: %s", e.kind, e.name, o.described(e.kind, e.name)[e.reason])
	}
	if is := o.imports(); clustersOf(is["hello"]) != "east west" || addressesOf(is["mine"]) != "" || addressesOf(is["elsewhere"]) != "" {
		t.Errorf("hello is imported from %q; mine has %q, elsewhere %q", clustersOf(is["hello"]), addressesOf(is["mine"]), addressesOf(is["elsewhere"]))
	}

	// What is mended is not said any more, and another leader says nothing twice.
	count := func() (n int) {
		l, err := o.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/managed-by=isthmus-controller"})
		if err != nil {
			t.Fatal(err)
		}
		return len(l.Items)
	}
	before := count()
	first := o.leader()
	o.running[first].stop()
	<-o.running[first].done
	eventually(t, 20*time.Second, "another one leads", func() bool { l := o.leader(); return l != "" && l != first })
	o.EditService("hello", func(s *discovery.Service) {
		s.Ports = []discovery.ServicePort{{Name: "web", Port: 8000, TargetPort: 8080}}
	})
	o.Write()
	eventually(t, 30*time.Second, "a conflict that is mended is none", has("hello", "Conflict", "False NoConflicts"))
	eventually(t, 30*time.Second, "the new leader has counted up what stands", func() bool {
		l, err := o.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=dns"})
		return err == nil && len(l.Items) == 1 && l.Items[0].Count > 1
	})
	if now := count(); now != before {
		t.Errorf("%d Events after another one has led; before %d", now, before)
	}
}
