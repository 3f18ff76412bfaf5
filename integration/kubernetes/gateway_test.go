package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// apply creates objects, or replaces their labels and spec.
func (c *cluster) apply(t *testing.T, objects ...any) {
	t.Helper()
	ctx, o := t.Context(), metav1.CreateOptions{}
	for _, x := range objects {
		var err error
		switch x := x.(type) {
		case *corev1.Namespace:
			_, err = c.CoreV1().Namespaces().Create(ctx, x, o)
		case *corev1.Node:
			_, err = c.CoreV1().Nodes().Create(ctx, x, o)
		case *corev1.Service:
			_, err = c.CoreV1().Services(x.Namespace).Create(ctx, x, o)
		case *corev1.Pod:
			_, err = c.CoreV1().Pods(x.Namespace).Create(ctx, x, o)
		case *rbacv1.Role:
			_, err = c.RbacV1().Roles(x.Namespace).Create(ctx, x, o)
		case *rbacv1.RoleBinding:
			_, err = c.RbacV1().RoleBindings(x.Namespace).Create(ctx, x, o)
		case *rbacv1.ClusterRole:
			_, err = c.RbacV1().ClusterRoles().Create(ctx, x, o)
		case *rbacv1.ClusterRoleBinding:
			_, err = c.RbacV1().ClusterRoleBindings().Create(ctx, x, o)
		}
		if err != nil {
			t.Fatalf("create %T: %v", x, err)
		}
	}
}

func service(name string, labels map[string]string, ports ...corev1.ServicePort) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: name, Labels: labels}, Spec: corev1.ServiceSpec{Selector: map[string]string{"app": name}, Ports: ports}}
}

func pod(app, name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: name, Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{NodeName: "node-1", ServiceAccountName: app, Containers: []corev1.Container{{Name: "c", Image: "x", Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 8080}}}}}}
}

// kubelet says of a pod what its kubelet would.
func (c *cluster) kubelet(t *testing.T, namespace, name, address string, ready corev1.ConditionStatus) {
	t.Helper()
	patch := fmt.Sprintf(`{"status":{"phase":"Running","podIP":%q,"podIPs":[{"ip":%[1]q}],"conditions":[{"type":"Ready","status":%q}]}}`, address, ready)
	if _, err := c.CoreV1().Pods(namespace).Patch(t.Context(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) label(t *testing.T, service, patch string) {
	t.Helper()
	if _, err := c.CoreV1().Services("demo").Patch(t.Context(), service, types.MergePatchType, []byte(`{"metadata":{"labels":`+patch+`}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// role is what a gateway may do; see docs/configuration.md.
func role() (*rbacv1.ClusterRole, *rbacv1.ClusterRoleBinding) {
	verbs := []string{"list", "watch"}
	return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "gateway"}, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"pods", "services", "nodes", "namespaces"}, Verbs: verbs},
			{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: verbs},
			{APIGroups: []string{"multicluster.x-k8s.io"}, Resources: []string{"serviceexports", "serviceimports"}, Verbs: verbs},
			{APIGroups: []string{"security.istio.io"}, Resources: []string{"authorizationpolicies", "peerauthentications"}, Verbs: verbs},
		}}, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "gateway"},
			RoleRef: rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: "gateway"}, Subjects: []rbacv1.Subject{{APIGroup: "rbac.authorization.k8s.io", Kind: "User", Name: "gateway"}}}
}

// site is a gateway of west that follows the cluster, and one of east that hears it.
type site struct {
	*meshtest.Mesh
	t             *testing.T
	gateway, east *meshtest.Process
	client        *meshtest.Pod
}

func startSite(t *testing.T, kubeconfig string) *site {
	s := &site{Mesh: meshtest.New(t), t: t}
	s.Networks("east", "west")
	s.Gateway("west", "gw-1")
	s.Gateway("east", "gw-1")
	s.client = s.Pod("east", "", "shop-1")
	s.Write()
	s.east = s.StartGateway("east", "gw-1")
	s.gateway = s.StartGateway("west", "gw-1", func(c *gateway.Config) { c.Discovery.Kube.Kubeconfig = kubeconfig })
	s.gateway.AwaitReady(t)
	return s
}

// has reports whether the gateway's state has a row with these values.
func (s *site) has(list string, pairs ...any) bool {
	for _, r := range s.gateway.Rows(s.t, list) {
		if r.Has(pairs...) {
			return true
		}
	}
	return false
}

// heard is how many records east holds of west's gateway: of itself, one for each export,
// and one for each port of these.
func (s *site) heard() (n float64) {
	for _, r := range s.east.Rows(s.t, "instances") {
		if r.Has("network", "west") {
			n, _ = r["records"].(float64)
		}
	}
	return n
}

func (s *site) problems() string {
	_, body := s.gateway.Get(s.t, "/discovery")
	return body
}

// refusal is the reason that the gateway gives a client for not connecting it.
func (s *site) refusal(authority string) string {
	session, err := s.Session(s.client.Identity(), s.GatewayAt("west", "gw-1"), s.ID("isthmus-system/gateway-west"))
	if err != nil {
		return err.Error()
	}
	defer session.Close(nil)
	ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Second)
	defer cancel()
	stream, _, err := session.Open(ctx, &hbone.Request{Authority: authority})
	if err == nil {
		stream.Close()
		return ""
	}
	if refused := (*hbone.StatusError)(nil); errors.As(err, &refused) {
		return fmt.Sprint(refused)
	}
	return err.Error()
}

func TestGatewayFollowsARealAPIServer(t *testing.T) {
	c := startCluster(t)
	global := map[string]string{"istio.io/global": "true"}
	clusterRole, binding := role()
	c.apply(t, clusterRole, binding,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "istio-system", Labels: map[string]string{"topology.istio.io/network": "west"}}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "demo", Labels: map[string]string{"istio.io/dataplane-mode": "ambient"}}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: map[string]string{"topology.kubernetes.io/zone": "eu-1"}}},
		service("hello", global, corev1.ServicePort{Port: 80}), pod("hello", "hello-1"), pod("hello", "hello-2"))
	c.kubelet(t, "demo", "hello-1", "10.2.0.1", "True")
	began := time.Now()
	s := startSite(t, c.user(t, c.config.Host, "gateway"))
	t.Logf("the gateway is ready after %v", time.Since(began).Round(time.Millisecond))
	hello, err := c.CoreV1().Pods("demo").Get(t.Context(), "hello-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "the first pod is a member", func() bool { // the controller's first slice takes its time
		return s.has("pods", "workload", string(hello.UID), "state", "ready") && strings.Contains(fmt.Sprint(s.gateway.Rows(t, "pods")), "hello.demo.svc.cluster.local:80")
	})
	meshtest.Eventually(t, "east hears the gateway, the export and its port", func() bool { return s.heard() == 3 })

	second, err := c.CoreV1().Pods("demo").Get(t.Context(), "hello-2", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for round := range 5 {
		c.kubelet(t, "demo", "hello-2", "10.2.0.2", "True")
		member := func() bool {
			for _, p := range s.gateway.Rows(t, "pods") {
				if p.Has("workload", string(second.UID), "state", "ready") {
					return strings.Contains(fmt.Sprint(p["ports"]), "usable:true")
				}
			}
			return false
		}
		took := eventually(t, 10*time.Second, "a pod that became ready is a member", member)
		t.Logf("ready → in the snapshot: %v", took.Round(time.Millisecond))
		if took > time.Second {
			t.Errorf("round %d: %v after it is ready a pod is in the snapshot, want less than 1 s", round, took)
		}
		c.kubelet(t, "demo", "hello-2", "10.2.0.2", "False")
		took = eventually(t, time.Second, "a pod that is ready no more is not", func() bool { return s.has("pods", "workload", string(second.UID), "state", "notReady") })
		t.Logf("not ready → not chosen: %v", took.Round(time.Millisecond))
	}

	c.label(t, "hello", `{"istio.io/global":null}`)
	took := eventually(t, 2*time.Second, "the export is withdrawn in east", func() bool { return s.heard() == 1 })
	t.Logf("label removed → withdrawn in the other network: %v", took.Round(time.Millisecond))
	if why := s.refusal("hello.demo.svc.cluster.local:80"); !strings.Contains(why, "not global") && !strings.Contains(why, "not_exported") && !strings.Contains(why, "unknown") {
		t.Errorf("a client is told %q; want that the service is not for other networks", why)
	} else {
		t.Logf("a client is told: %s", why)
	}
	c.label(t, "hello", `{"istio.io/global":"true"}`)
	eventually(t, 2*time.Second, "the service is exported again", func() bool { return s.heard() == 3 })

	c.apply(t, service("odd", map[string]string{"istio.io/global": "yes", "solo.io/service-scope": "everywhere"}, corev1.ServicePort{Port: 80}),
		service("dns", global, corev1.ServicePort{Name: "udp", Port: 53, Protocol: "UDP"}, corev1.ServicePort{Name: "tcp", Port: 53}),
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "elsewhere", Labels: global}, Spec: corev1.ServiceSpec{Type: "ExternalName", ExternalName: "example.com"}})
	for _, want := range []string{`metadata.labels[istio.io/global]`, `"everywhere"`, `"UDP"`, `"ExternalName"`} {
		eventually(t, 2*time.Second, "a problem of "+want, func() bool { return strings.Contains(s.problems(), want) })
	}
	if !s.has("pods", "workload", string(hello.UID), "state", "ready") {
		t.Errorf("beside odd objects the good pod is gone")
	}

	// Without the API server everything stays; with it, what happened meanwhile is known.
	c.server.Process.Kill()
	c.server.Wait()
	age := func() float64 { return s.gateway.Metric(t, `isthmus_kubernetes_age_seconds{list="pods"}`) }
	eventually(t, time.Minute, "the age shows", func() bool { return age() > 0.5 })
	if status, body := s.gateway.Get(t, "/healthz/ready"); status != 200 || !s.has("pods", "workload", string(hello.UID), "state", "ready") {
		t.Errorf("without the API server: %d %s", status, body)
	}
	c.server = c.serve()
	c.await(t)
	c.kubelet(t, "demo", "hello-1", "10.2.0.1", "False")
	took = eventually(t, 90*time.Second, "what happens is known again", func() bool { return s.has("pods", "workload", string(hello.UID), "state", "notReady") })
	t.Logf("API server back → followed again: %v", took.Round(time.Millisecond))
	eventually(t, 90*time.Second, "the age is over", func() bool { return age() == 0 })
}
