package kubernetes

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// inCluster has the office's gateway and controllers run as the service accounts of the chart,
// each with its role, and makes the objects that Events are written at.
func (o *office) inCluster() (gatewayConfig string) {
	t := o.t
	t.Helper()
	account := func(name string) []rbacv1.Subject {
		return []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: system, Name: name}}
	}
	for name, want := range map[string]string{"isthmus-gateway": "gateway", "isthmus-controller": "controller"} {
		o.pretend(t, name, 1, 0)
		d, err := o.AppsV1().Deployments(system).Get(t.Context(), name, metav1.GetOptions{})
		if err == nil {
			d.Spec.Template.Spec.ServiceAccountName = want
			_, err = o.AppsV1().Deployments(system).Update(t.Context(), d, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	b, err := o.RbacV1().ClusterRoleBindings().Get(t.Context(), "controller", metav1.GetOptions{})
	if err == nil {
		b.Subjects = account("controller")
		_, err = o.RbacV1().ClusterRoleBindings().Update(t.Context(), b, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	r, err := o.RbacV1().RoleBindings(system).Get(t.Context(), "controller", metav1.GetOptions{})
	if err == nil {
		r.Subjects = account("controller")
		_, err = o.RbacV1().RoleBindings(system).Update(t.Context(), r, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	role, binding := role()
	role.Rules = append(role.Rules, rbacv1.PolicyRule{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"tokenreviews"}, Verbs: []string{"create"}},
		rbacv1.PolicyRule{NonResourceURLs: []string{"/openid/v1/jwks", "/.well-known/openid-configuration"}, Verbs: []string{"get"}})
	binding.Subjects = account("gateway")
	o.apply(t, role, binding)
	o.kubeconfig = o.user(t, o.config.Host, "system:serviceaccount:"+system+":controller")
	return o.user(t, o.config.Host, "system:serviceaccount:"+system+":gateway")
}

// restart starts the API server anew: watches that are open go on without a right, until then.
func (o *office) restart() {
	o.server.Process.Kill()
	o.server.Wait()
	o.server = o.serve()
	o.await(o.t)
}

// edited is the file of links with what from is replaced by to in the entry of a network.
func edited(t *testing.T, text, network, from, to string) string {
	t.Helper()
	before, entry, there := strings.Cut(text, "  - name: "+network+"\n")
	entry, after, more := strings.Cut(entry, "  - name: ")
	if !there || !strings.Contains(entry, from) {
		t.Fatalf("no %q of %s in\n%s", from, network, text)
	}
	if more {
		after = "  - name: " + after
	}
	return before + "  - name: " + network + "\n" + strings.Replace(entry, from, to, 1) + after
}

// wrongInput is one mistake: where kubectl describe shows it, under which reason, with what remedy, and
// under which codes isthmus check does.
type wrongInput struct {
	what, kind, name, reason, remedy string
	codes                            []string
}

// shown reports whether the last word of kubectl describe on x is that it stands.
func (x wrongInput) shown(described string) bool {
	for line := range strings.Lines(described) {
		f := strings.Fields(line)
		if len(f) > 2 && f[0] == "Warning" && f[1] == x.reason && strings.Contains(line, x.remedy) {
			return true
		}
	}
	return false
}

// What is wrong between clusters, and with what the API server lets the processes do, is shown by kubectl
// describe and by isthmus check with what to do, all of it at once; calls across go on; and once it is
// mended both say so.
func TestWhatIsWrongBetweenClustersIsShownAndTakenBack(t *testing.T) {
	o := openOffice(t)
	o.Networks("south")
	o.Gateway("south", "gw-1")
	gatewayConfig := o.inCluster()
	o.lend(t, "203.0.113.7")
	hello := o.Service("hello", 80, 8080)
	server := o.Pod("east", "east-1", "hello-east", "hello")
	server.App(8080)
	client := o.Pod("west", "west-1", "shop-1")
	call := client.Outbound(hello + ":80")
	o.Write()
	links := map[string]string{}
	for _, n := range []string{"west", "south"} {
		links[n] = o.LinkFile(n)
	}
	text := func(network string) string {
		b, err := os.ReadFile(links[network])
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	write := func(network, text string) {
		if err := replace(links[network], text); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := o.CoreV1().ConfigMaps(system).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "isthmus-networks"}, Data: map[string]string{"networks.yaml": text("west")}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	o.links = links["west"]
	for _, n := range []string{"east", "north"} {
		o.StartGateway(n, "gw-1")
	}
	south := o.WriteOwn("south")
	o.StartGateway("south", "gw-1", func(c *gateway.Config) { c.Discovery.File, c.Federation.Networks = south, links["south"] })
	own := o.WriteOwn("west")
	o.gateway = o.StartGateway("west", "gw-1", func(c *gateway.Config) {
		c.Discovery.File, c.Discovery.Kube.Kubeconfig, c.Federation.Networks, c.Address.Service = own, gatewayConfig, links["west"], system+"/isthmus-gateway"
	})
	for _, n := range []string{"east", "west"} {
		o.StartNode(n, n+"-1")
	}
	desk := o.hire("controller-1")
	calls := func() error { _, err := meshtest.Hello(call); return err }
	eventually(t, 60*time.Second, "a pod of west calls one of east, and the import of hello is there", func() bool { return calls() == nil && addressesOf(o.imports()["hello"]) != "" })
	op := newOperator(t, map[string]*cluster{"west": o.cluster})
	describe := func(x wrongInput) string {
		return op.does(t, fmt.Sprintf("kubectl --context west --namespace %s describe %s %s", system, x.kind, x.name))
	}
	check := func() string { out, _ := op.shell(t, "isthmus check --contexts west"); return out }
	out := ""
	well := func() bool {
		out = check()
		return strings.Contains(out, "✓ ISTH-107") && strings.Contains(out, "✓ ISTH-110") && strings.Contains(out, "✓ ISTH-113")
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("check says\n%s", out)
		}
	})
	eventually(t, 60*time.Second, "check has nothing of it yet", well)

	// All of it at once.
	services := o.CoreV1().Services(system)
	address := func(ingress ...corev1.LoadBalancerIngress) {
		s, err := services.Get(t.Context(), "isthmus-gateway", metav1.GetOptions{})
		if err == nil {
			s.Status.LoadBalancer.Ingress = ingress
			_, err = services.UpdateStatus(t.Context(), s, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	bound := map[string]*rbacv1.ClusterRoleBinding{}
	take := func(name string) {
		var err error
		if bound[name], err = o.RbacV1().ClusterRoleBindings().Get(t.Context(), name, metav1.GetOptions{}); err == nil {
			err = o.RbacV1().ClusterRoleBindings().Delete(t.Context(), name, metav1.DeleteOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	give := func(name string) {
		b := bound[name]
		b.ResourceVersion, b.UID = "", ""
		o.apply(t, b)
	}
	rules := func(edit func(rbacv1.PolicyRule) bool) (was []rbacv1.PolicyRule) {
		r, err := o.RbacV1().ClusterRoles().Get(t.Context(), "controller", metav1.GetOptions{})
		if err == nil {
			was = slices.Clone(r.Rules)
			r.Rules = slices.DeleteFunc(r.Rules, edit)
			_, err = o.RbacV1().ClusterRoles().Update(t.Context(), r, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
		return was
	}
	setRules := func(list []rbacv1.PolicyRule) {
		r, err := o.RbacV1().ClusterRoles().Get(t.Context(), "controller", metav1.GetOptions{})
		if err == nil {
			r.Rules = list
			_, err = o.RbacV1().ClusterRoles().Update(t.Context(), r, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	was := map[string]string{"west": text("west"), "south": text("south")}
	began := time.Now()
	address()
	write("west", edited(t, was["west"], "north", "gatewayServiceAccount:", "trustBundles:\n      - trustDomain: wrong.local\n        roots: |\n"+indented(wrongRoot(t))+"    gatewayServiceAccount:"))
	write("south", "networks: []\n")
	rings, err := keyfile.InitAll(filepath.Join(t.TempDir(), "other"), []string{"east"}, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	o.Gateway("east", "gw-2")
	o.Write()
	other := o.StartGateway("east", "gw-2", func(c *gateway.Config) {
		c.Federation.Keys, c.Federation.Networks = rings["east"].Dir, o.LinkFile("east")
	})
	take("gateway")
	all := rules(func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "serviceimports") })
	o.restart()
	mistakes := []wrongInput{
		{"gateway without address", "service", "isthmus-gateway", "NoAddress", "the load balancer of Service isthmus-system/isthmus-gateway is pending", []string{"! ISTH-107", "! ISTH-110"}},
		{"wrong trust domain", "configmap", "isthmus-networks", "NotConnected", `there is no connection with a gateway of network "north"`, []string{"! ISTH-110"}},
		{"revoked link", "configmap", "isthmus-networks", "NotConnected", `there is no connection with a gateway of network "south"`, []string{"! ISTH-110"}},
		{"one network name in two clusters", "configmap", "isthmus-networks", "NameTaken", `somebody speaks as network "east" with a key that is not known of it`, []string{"! ISTH-110"}},
		{"right of the gateways taken away", "deployment", "isthmus-gateway", "MissingRight", "the API server refuses the gateways pods", []string{"! ISTH-110", "✗ ISTH-113"}},
		{"right of the controller taken away", "deployment", "isthmus-controller", "MissingRight", "the API server refuses isthmus-controller to list serviceimports", []string{"! ISTH-110", "✗ ISTH-113"}},
	}
	for _, x := range mistakes {
		var described string
		eventually(t, 90*time.Second, x.what+": kubectl describe shows "+x.remedy, func() bool { described = describe(x); return x.shown(described) })
		t.Logf("%s: shown after %v", x.what, time.Since(began).Round(time.Second))
	}
	out = check()
	for _, x := range mistakes {
		for _, code := range append(x.codes, x.remedy) {
			if !strings.Contains(out, code) {
				t.Errorf("%s: check does not show %q:\n%s", x.what, code, out)
			}
		}
	}
	for _, want := range []string{"may not list pods", "list serviceimports.multicluster.x-k8s.io"} {
		if !strings.Contains(out, want) {
			t.Errorf("check does not name the right %q:\n%s", want, out)
		}
	}
	if err := calls(); err != nil {
		t.Errorf("with all of it wrong a call across fails: %v", err)
	}
	if addressesOf(o.imports()["hello"]) == "" {
		t.Error("the import of hello is gone")
	}
	if got := describe(mistakes[1]); !strings.Contains(got, "wrong.local") {
		t.Errorf("what is shown of the wrong trust domain does not name it:\n%s", got)
	}

	// Mended.
	began = time.Now()
	address(corev1.LoadBalancerIngress{IP: "203.0.113.7"})
	write("west", was["west"])
	write("south", was["south"])
	other.Stop(t)
	give("gateway")
	setRules(all)
	for _, x := range mistakes {
		var described string
		eventually(t, 2*time.Minute, x.what+" is mended: kubectl describe takes it back", func() bool {
			described = describe(x)
			return !x.shown(described) && strings.Contains(described, "no longer so: ")
		})
		t.Logf("%s: taken back after %v", x.what, time.Since(began).Round(time.Second))
	}
	eventually(t, 60*time.Second, "check has nothing of it any more", well)
	if err := calls(); err != nil {
		t.Errorf("mended, a call across fails: %v", err)
	}

	// A controller that may write no Events says so where it can: in its log, its metrics, its status; and
	// check asks the API server.
	rules(func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "events") })
	odd := service("odd", map[string]string{"istio.io/global": "true", "solo.io/service-scope": "cluster"}, corev1.ServicePort{Port: 80})
	odd.Namespace = "default"
	o.apply(t, odd)
	eventually(t, 30*time.Second, "the log, the metrics and the status of the controller say that it may write no Events", func() bool {
		return strings.Contains(desk.log.String(), "write events") && refusedEvents(t, desk) > 0 && slices.ContainsFunc(o.statusOf(t, desk).Problems, func(p string) bool { return strings.Contains(p, "write events") })
	})
	if out := check(); !strings.Contains(out, "✗ ISTH-113") || !strings.Contains(out, "may not create events, patch events") {
		t.Errorf("check does not say that the controller may write no Events:\n%s", out)
	}
	setRules(all)
	x := wrongInput{reason: "Conflict", remedy: "remove one of the two"}
	eventually(t, 30*time.Second, "what waited is written", func() bool {
		return x.shown(op.does(t, "kubectl --context west --namespace default describe service odd"))
	})
	if s := o.statusOf(t, desk); s.Controller == nil || !s.Controller.Leading || s.Controller.Leader != "controller-1" || s.Controller.Since.IsZero() || s.Controller.Own == 0 || s.Controller.VIPs == nil || s.Controller.VIPs.Used == 0 || !s.Controller.Synced {
		t.Errorf("the controller's status is %+v", s.Controller)
	}
}

// wrongRoot is the root of a CA of trust domain wrong.local, in PEM.
func wrongRoot(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "ca")
	if _, err := identity.InitCA(dir, spiffeid.RequireTrustDomainFromString("wrong.local")); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func indented(text string) (out string) {
	for line := range strings.Lines(text) {
		out += "          " + line
	}
	return out
}

// statusOf is what a controller answers at /status.
func (o *office) statusOf(t *testing.T, d *desk) (s answer.Status) {
	t.Helper()
	r, err := http.Get("http://" + d.admin + "/status")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if err := json.NewDecoder(r.Body).Decode(&s); err != nil {
		t.Fatal(err)
	}
	return s
}

// refusedEvents is how many Events the API server has refused.
func refusedEvents(t *testing.T, d *desk) (n float64) {
	t.Helper()
	families, err := d.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "isthmus_controller_events_total" && m.GetLabel()[0].GetValue() == "refused" {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}
