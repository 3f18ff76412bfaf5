package kubernetes

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/isthmus-mesh/isthmus/federation/linkcard"
	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
)

// operator is somebody with a shell: programs, a directory, and a kubeconfig with the
// contexts of clusters.
type operator struct {
	dir   string
	env   []string
	enter func(func() error) error // where the shell is
}

// newOperator has kubectl and isthmus in the path.
func newOperator(t *testing.T, clusters map[string]*cluster) *operator {
	t.Helper()
	o := &operator{dir: t.TempDir(), enter: oneOf(clusters).place.enter}
	bin := filepath.Join(o.dir, "bin")
	build := exec.Command("go", "build", "-o", bin+"/", "./cmd/isthmus")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build isthmus: %v\n%s", err, out)
	}
	if err := os.Symlink(needComponents(t), filepath.Join(bin, "kubectl")); err != nil {
		t.Fatal(err)
	}
	all := clientcmd.GetConfigFromFileOrDie
	config := all(oneOf(clusters).kubeconfig)
	clear(config.Clusters)
	clear(config.AuthInfos)
	clear(config.Contexts)
	config.CurrentContext = ""
	for name, c := range clusters {
		k := all(c.kubeconfig)
		config.Clusters[name], config.AuthInfos[name], config.Contexts[name] = k.Clusters["test"], k.AuthInfos["test"], k.Contexts["test"]
		config.Contexts[name].Cluster, config.Contexts[name].AuthInfo = name, name
	}
	path := filepath.Join(o.dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	o.env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "KUBECONFIG="+path, "HOME="+o.dir)
	return o
}

func oneOf(clusters map[string]*cluster) *cluster {
	for _, c := range clusters {
		return c
	}
	return nil
}

// shell runs a line as an operator types it, and returns what it prints and its exit code.
func (o *operator) shell(t *testing.T, line string) (out string, code int) {
	t.Helper()
	cmd := exec.Command("bash", "-o", "pipefail", "-c", line)
	cmd.Dir, cmd.Env = o.dir, o.env
	var b bytes.Buffer
	cmd.Stdout, cmd.Stderr = &b, &b
	if err := o.enter(cmd.Start); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	if e, is := err.(*exec.ExitError); is {
		return b.String(), e.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	return b.String(), 0
}

// does is shell of what has to succeed.
func (o *operator) does(t *testing.T, line string) string {
	t.Helper()
	out, code := o.shell(t, line)
	if code != 0 {
		t.Fatalf("%s\nexits with %d:\n%s", line, code, out)
	}
	return out
}

func (c *cluster) configMap(t *testing.T, name string) map[string]string {
	t.Helper()
	m, err := c.CoreV1().ConfigMaps("isthmus-system").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return m.Data
}

func (c *cluster) known(t *testing.T) []keyfile.Network {
	t.Helper()
	f, err := keyfile.ParseFile("networks.yaml", []byte(c.configMap(t, "isthmus-networks")["networks.yaml"]))
	if err != nil {
		t.Fatal(err)
	}
	return f.Networks
}

// roots is how many certificates the bundle of a cluster has.
func (c *cluster) roots(t *testing.T) int {
	t.Helper()
	list, err := linkcard.Certificates(c.configMap(t, "isthmus-root")["bundle.pem"])
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func TestClustersAreLinkedAndUnlinkedByTheirContexts(t *testing.T) {
	clusters := map[string]*cluster{"east": startCluster(t), "west": startCluster(t)}
	east, west := clusters["east"], clusters["west"]
	o := newOperator(t, clusters)
	if out, code := o.shell(t, "isthmus link --contexts east,west --apply"); code != 3 || !strings.Contains(out, "isthmus init") {
		t.Errorf("before init: %d, %s", code, out)
	}
	if out, code := o.shell(t, "isthmus check --contexts east"); code != 1 || !strings.Contains(out, "✗ ISTH-101") || !strings.Contains(out, "isthmus init") {
		t.Errorf("before init check exits with %d:\n%s", code, out)
	}
	o.does(t, "isthmus init --network east --trust-domain east.local | kubectl --context east apply -f -")
	o.does(t, "isthmus init --network west --apply --context west")
	if out := o.does(t, "isthmus init --network west --apply --context west"); strings.Contains(out, "created") || strings.Contains(out, "configured") {
		t.Errorf("init again changes something: %s", out)
	}
	// What is in the wrong place is refused before anything is made.
	for line, want := range map[string]string{
		"isthmus init --network north --apply --context west":                  `its cluster is network "west" already`,
		"isthmus init --network west --dir wset --apply --context west":        "wset, which is not there yet",
		"isthmus init --network north --apply --context west --namespace mesh": `network "west" already, in namespace isthmus-system`,
		"isthmus init --network north --apply --context wset":                  `did you mean "west"?`,
		"isthmus link --contexts east,wset --apply":                            `did you mean "west"?`,
	} {
		if out, code := o.shell(t, line); code == 0 || strings.Count(out, "\n") != 1 || !strings.Contains(out, want) {
			t.Errorf("%s: %d, %s; want %q in one line", line, code, out, want)
		}
	}
	if out := o.does(t, "ls; kubectl --context west get namespaces --output name"); strings.Contains(out, "north") || strings.Contains(out, "wset") || strings.Contains(out, "mesh") {
		t.Errorf("a refused init has made something: %s", out)
	}
	west.lend(t, "203.0.113.7")

	o.does(t, "isthmus link --contexts east,west --apply")
	if n := east.known(t); len(n) != 1 || n[0].Name != "west" || len(n[0].Keys) != 1 || !slices.Equal(n[0].Addresses, []string{"203.0.113.7:15008"}) {
		t.Errorf("east knows %+v", n)
	}
	if n := west.known(t); len(n) != 1 || n[0].Name != "east" {
		t.Errorf("west knows %+v", n)
	}
	if b := west.known(t)[0].TrustBundles; len(b) != 1 || b[0].TrustDomain != "east.local" || east.roots(t) != 1 || west.roots(t) != 1 {
		t.Errorf("west believes %+v, and has %d own roots; want those of east for its trust domain, and one", b, west.roots(t))
	}
	for name, c := range clusters {
		for what, text := range c.configMap(t, "isthmus-networks") {
			if strings.Contains(text, "PRIVATE") || strings.Contains(text, "token") {
				t.Errorf("%s of %s has what is secret", what, name)
			}
		}
	}
	if out, code := o.shell(t, "isthmus check --contexts east,west"); code != 1 || strings.Count(out, "✗") != 3 || !strings.Contains(out, "ISTH-104") || !strings.Contains(out, "! ISTH-107") || !strings.Contains(out, "✓ ISTH-205") {
		t.Errorf("without gateways check exits with %d:\n%s", code, out)
	}
	for _, c := range clusters {
		c.pretend(t, "isthmus-gateway", 2, 1)
	}
	if out, code := o.shell(t, "isthmus check --contexts east,west --wait 2s"); code != 0 || !strings.Contains(out, "1 of 2 are ready") {
		t.Errorf("linked, check exits with %d:\n%s", code, out)
	}
	if out := o.does(t, "isthmus link --contexts east,west --apply"); strings.Contains(out, "configured") {
		t.Errorf("linking again changes something: %s", out)
	}
	west.moves(t, "203.0.113.8")
	if out, code := o.shell(t, "isthmus check --contexts east,west"); code != 0 || strings.Count(out, "! ISTH-206") != 1 || !strings.Contains(out, "dialed at 203.0.113.7:15008, which it does not have: it has 203.0.113.8:15008") {
		t.Errorf("with another load balancer of west check exits with %d:\n%s", code, out)
	}
	if out := o.does(t, "isthmus link --contexts east,west --apply"); !strings.Contains(out, "203.0.113.8:15008 from now on, and no longer at 203.0.113.7:15008") {
		t.Errorf("of another address link says %s", out)
	}
	if out, code := o.shell(t, "isthmus check --contexts east,west"); code != 0 || strings.Count(out, "✓ ISTH-206") != 1 {
		t.Errorf("linked again check exits with %d:\n%s", code, out)
	}
	// An address that somebody has written stays until somebody says otherwise.
	for _, x := range []struct{ args, want string }{
		{"--address west=192.0.2.1:443", "192.0.2.1:443"}, {"", "192.0.2.1:443"}, {"--address west=", "203.0.113.8:15008"}, {"", "203.0.113.8:15008"},
	} {
		o.does(t, "isthmus link --contexts east,west --apply "+x.args)
		if n := east.known(t); !slices.Equal(n[0].Addresses, []string{x.want}) {
			t.Errorf("after link %s east dials %v, want %s", x.args, n[0].Addresses, x.want)
		}
	}
	if out, code := o.shell(t, "isthmus link --contexts east,west --apply --wait 1s"); code != 1 || !strings.Contains(out, `network "east" gets no address by waiting`) {
		t.Errorf("east has no Service: link --wait exits with %d: %s", code, out)
	}
	east.waits(t)
	if out, code := o.shell(t, "isthmus link --contexts east,west --apply --wait 1s"); code != 1 || !strings.Contains(out, "waiting for an address of network \"east\"") || !strings.Contains(out, "pod waiting is not scheduled: no nodes") {
		t.Errorf("the gateway of east is on no node: link --wait exits with %d: %s", code, out)
	}
	east.unwaits(t)
	// What kubectl says five times of an API server that is away is said once.
	o.does(t, "kubectl config set-cluster gone --server https://127.0.0.1:1 && kubectl config set-credentials gone --token x && kubectl config set-context gone --cluster gone --user gone")
	if out, code := o.shell(t, "isthmus check --contexts gone 2>&1 >/dev/null"); code != 3 || strings.Count(strings.TrimSpace(out), "\n") != 0 || !strings.Contains(out, "127.0.0.1:1") {
		t.Errorf("of an API server that is away check says, with %d:\n%s", code, out)
	}

	o.does(t, "isthmus link card --context west > first.card")
	// Where nobody may ask both: a card, whose rotated key is taken over.
	o.does(t, "isthmus network rotate --dir west/network && isthmus init --network west --apply --context west")
	if out, code := o.shell(t, "isthmus check --contexts east,west -o json"); code != 0 || !strings.Contains(out, "key 2 of network \\\"west\\\" is not known") {
		t.Errorf("west has a new key: check exits with %d:\n%s", code, out)
	}
	o.does(t, "isthmus link card --context west > west.card && isthmus link --contexts east west.card | kubectl --context east apply -f -")
	if n := east.known(t); len(n) != 1 || len(n[0].Keys) != 2 {
		t.Errorf("after a rotation east knows %+v", n)
	}
	// Another cluster of the same name.
	o.does(t, "isthmus init --network west --dir other > /dev/null; sed \"s#ed25519:.*#$(isthmus network show --dir other/network | grep -o 'ed25519:.*')#\" first.card > other.card")
	if out, code := o.shell(t, "isthmus link --contexts east other.card"); code != 1 || !strings.Contains(out, "unlink") {
		t.Errorf("another network of the name: %d, %s", code, out)
	}

	o.does(t, "isthmus unlink --contexts east,west --apply")
	if out, code := o.shell(t, "isthmus check --contexts east,west"); code != 1 || strings.Count(out, "✗ ISTH-203") != 2 {
		t.Errorf("unlinked, check exits with %d:\n%s", code, out)
	}
	if len(east.known(t)) != 0 || len(west.known(t)) != 0 || east.roots(t) != 1 || west.roots(t) != 1 {
		t.Errorf("unlinked: east knows %v, %d roots; west %v, %d", east.known(t), east.roots(t), west.known(t), west.roots(t))
	}
}

// pretend makes a Deployment of which so many pods are ready.
func (c *cluster) pretend(t *testing.T, name string, want, ready int32) {
	t.Helper()
	labels := map[string]string{"app": name}
	deployments := c.AppsV1().Deployments("isthmus-system")
	d, err := deployments.Create(t.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DeploymentSpec{Replicas: &want, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "x"}}}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d.Status.Replicas, d.Status.ReadyReplicas = want, ready
	if _, err := deployments.UpdateStatus(t.Context(), d, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// waits makes a gateway with a hostPort that no node has yet, behind a Service that is no load balancer.
func (c *cluster) waits(t *testing.T) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "waiting", Labels: map[string]string{"app.kubernetes.io/name": "isthmus-gateway"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "x", Ports: []corev1.ContainerPort{{ContainerPort: 15008, HostPort: 15008}}}}}}
	pods := c.CoreV1().Pods("isthmus-system")
	made, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
	if err == nil {
		made.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "no nodes"}}
		_, err = pods.UpdateStatus(t.Context(), made, metav1.UpdateOptions{})
	}
	if err == nil {
		_, err = c.CoreV1().Services("isthmus-system").Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "isthmus-gateway"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 15008}}}}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) unwaits(t *testing.T) {
	t.Helper()
	if err := c.CoreV1().Pods("isthmus-system").Delete(t.Context(), "waiting", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		t.Fatal(err)
	}
	if err := c.CoreV1().Services("isthmus-system").Delete(t.Context(), "isthmus-gateway", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// moves gives the load balancer of a cluster another address.
func (c *cluster) moves(t *testing.T, ip string) {
	t.Helper()
	services := c.CoreV1().Services("isthmus-system")
	s, err := services.Get(t.Context(), "isthmus-gateway", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: ip}}
	if _, err := services.UpdateStatus(t.Context(), s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// lend gives the gateway's Service an address, as a load balancer does.
func (c *cluster) lend(t *testing.T, ip string) {
	t.Helper()
	services := c.CoreV1().Services("isthmus-system")
	s, err := services.Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "isthmus-gateway"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 15008}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: ip}}
	if _, err := services.UpdateStatus(t.Context(), s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}
