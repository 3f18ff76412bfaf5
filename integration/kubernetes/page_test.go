package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/isthmus-mesh/isthmus/internal/testlb"
)

// commands returns the lines of a page's fenced blocks that begin with fence, such as sh.
func commands(t *testing.T, page, fence string) (out []string) {
	t.Helper()
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	inside := false
	for line := range strings.Lines(string(b)) {
		switch line = strings.TrimSuffix(line, "\n"); {
		case line == "```"+fence:
			inside = true
		case line == "```":
			inside = false
		case inside:
			out = append(out, line)
		}
	}
	return out
}

// withSocks are the commands of the page with those of its section on SOCKS in their places.
func withSocks(t *testing.T) (lines []string) {
	t.Helper()
	lines = commands(t, kubernetesPage, "sh")
	for _, other := range commands(t, kubernetesPage, "sh socks") {
		begins := strings.Join(strings.Fields(other)[:4], " ") // helm --kube-context east install
		i := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, begins) })
		if i < 0 {
			t.Fatalf("no command of the page begins with %q", begins)
		}
		lines[i] = other
	}
	return lines
}

const kubernetesPage = "../../docs/kubernetes.md"

// newcomer is somebody with two empty clusters, kubectl, helm, isthmus and this repository.
type newcomer struct {
	*shop
	*operator
	agents    map[*side]*agent
	balancers map[*side]*balancer
	serve     func(t *testing.T, p *demoPod, port int) // what answers in the pods of hello
}

// newNewcomer starts the clusters: what makes pods of Deployments and DaemonSets, and what
// runs them. There is nothing of ours in them.
func newNewcomer(t *testing.T, serve func(t *testing.T, p *demoPod, port int)) *newcomer {
	t.Helper()
	helm := needHelm(t)
	w := newClusters(t, 2, "deployment-controller,replicaset-controller,daemonset-controller,root-ca-certificate-publisher-controller", "east", "west")
	n := &newcomer{shop: &shop{world: w, east: w.side("east"), west: w.side("west")}, agents: map[*side]*agent{}, balancers: map[*side]*balancer{}, serve: serve}
	clusters := map[string]*cluster{}
	for _, s := range w.sides {
		clusters[s.network] = s.cluster
		for _, n := range s.nodes {
			s.apply(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name, Labels: map[string]string{"kubernetes.io/os": "linux"}}})
		}
		n.agents[s] = s.startAgent()
	}
	n.operator = newOperator(t, clusters)
	w.must(w.Host(segment, "operator", "10.71.9.1")) // API servers answer who administers them
	n.enter = func(f func() error) error { return w.In("operator", f) }
	n.checkout(t, helm)
	n.env = append(n.env, "REGISTRY=registry.example/isthmus", "TAG=v0.1.0-7-g0123abc", "EAST_NODES="+n.east.address(0)+"/24", "WEST_NODES="+n.west.address(0)+"/24")
	return n
}

// checkout gives an operator helm and this repository.
func (o *operator) checkout(t *testing.T, helm string) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"bin/helm": helm, "helm": filepath.Join(root, "helm"), "docs": filepath.Join(root, "docs")} {
		if err := os.Symlink(to, filepath.Join(o.dir, link)); err != nil {
			t.Fatal(err)
		}
	}
}

// needHelm returns the binary of helm.
func needHelm(t *testing.T) string {
	t.Helper()
	helm := os.Getenv("HELM")
	if helm == "" {
		notRun(t, "HELM names no helm: run `make test-kubernetes`")
	}
	return helm
}

// settle plays the scheduler and the kubelets for the pods that somebody has made in demo.
func (n *newcomer) settle(t *testing.T, s *side) {
	t.Helper()
	eventually(t, time.Minute, "the Deployments on "+s.network+" have their pods", func() bool {
		list, err := s.AppsV1().Deployments("demo").List(t.Context(), metav1.ListOptions{})
		n.world.must(err)
		return !slices.ContainsFunc(list.Items, func(d appsv1.Deployment) bool { return d.Status.Replicas != *d.Spec.Replicas })
	})
	pods := s.CoreV1().Pods("demo")
	list, err := pods.List(t.Context(), metav1.ListOptions{})
	n.world.must(err)
	for i, made := range list.Items {
		at := s.nodes[i%len(s.nodes)]
		n.world.must(pods.Bind(t.Context(), &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: made.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: at.name}}, metav1.CreateOptions{}))
		p := s.place(made.Name, at)
		p.uid = string(made.UID)
		if ports := made.Spec.Containers[0].Ports; len(ports) == 0 {
			p.client, n.client = true, p
		} else {
			n.serve(t, p, int(ports[0].ContainerPort))
			n.servers = append(n.servers, p)
		}
		p.say(t, corev1.ConditionTrue)
	}
}

// follow runs a line of the page. Where it makes pods, they are run, and where it installs a
// gateway, the cloud of that cluster answers with a load balancer.
func (n *newcomer) follow(t *testing.T, line string) string {
	t.Helper()
	if strings.HasPrefix(line, "curl") { // in the calling pod
		home := n.enter
		defer func() { n.enter = home }()
		n.enter = func(f func() error) error { return n.world.In(n.client.node.name, f) }
		n.env = append(n.env, "HOST_IP="+n.client.node.address)
		return n.does(t, line)
	}
	out := n.does(t, line)
	for _, s := range n.sides {
		if strings.Contains(line, "--context "+s.network+" apply -f docs/") {
			n.settle(t, s)
		}
	}
	if strings.Contains(line, "install isthmus ") && !strings.Contains(line, "uninstall") {
		for _, s := range n.sides {
			if strings.Contains(line, "--kube-context "+s.network) {
				n.balancers[s] = s.startBalancer()
			}
		}
	}
	return out
}

// undone is the index of the command by which the page begins to undo what it has done.
func undone(t *testing.T, lines []string) int {
	t.Helper()
	i := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "isthmus unlink") })
	if i < 1 || i > 10 {
		t.Fatalf("the page has %d commands to a call across, want 1 to 10: %q", i, lines)
	}
	return i
}

// From two clusters that know nothing of each other to a call from one to the other, by the
// commands of the page for SOCKS exactly as they are printed, and back. Here are no network namespaces of
// pods, which others are captured in: TestKubelets runs the page with those.
func TestEachCommandOfTheKubernetesPage(t *testing.T) {
	n := newNewcomer(t, web)
	lines := withSocks(t)
	end := undone(t, lines)
	if !strings.HasPrefix(lines[end-1], "curl ") {
		t.Fatalf("the last command before it is undone is %q, want the call", lines[end-1])
	}
	began := time.Now()
	for _, line := range lines[:end] {
		at := time.Now()
		out := n.follow(t, line)
		t.Logf("%.1f s: %s", time.Since(at).Seconds(), line)
		switch {
		case strings.HasPrefix(line, "isthmus check"):
			t.Log(out)
			if !strings.Contains(out, ", 0 ✗") { // "!": not all node proxies are ready yet
				t.Errorf("check is not content:\n%s", out)
			}
		case strings.HasPrefix(line, "curl"):
			said := strings.Split(strings.TrimSpace(out), "\n") // by curl too, of what it has tried again
			answer := said[len(said)-1]
			if !strings.HasPrefix(answer, "hello from hello-") {
				t.Errorf("the call is answered %q, want that a pod of west says hello", out)
			}
			t.Logf("%d commands and %.0f s to %q", end, time.Since(began).Seconds(), answer)
		}
	}
	for _, a := range n.agents {
		a.calm(t)
	}
	for _, line := range lines[end:] {
		n.follow(t, line)
	}
	for _, s := range n.sides {
		if known := s.known(t); len(known) != 0 {
			t.Errorf("undone, %s still knows %v", s.network, known)
		}
	}
	if out, code := n.shell(t, "kubectl --context west --namespace isthmus-system get deployment,daemonset,service --output name"); code != 0 || strings.TrimSpace(out) != "" {
		t.Errorf("undone, west still has (%d) %s", code, out)
	}
}

// web answers by HTTP for a pod, and says which it is.
func web(t *testing.T, p *demoPod, port int) {
	t.Helper()
	w := p.side.world
	l, err := w.Listen(p.node.name, fmt.Sprintf("%s:%d", p.address, port))
	w.must(err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, "hello from %s\n", p.name) })}
	var work sync.WaitGroup
	work.Go(func() { server.Serve(l) })
	t.Cleanup(func() { server.Close(); work.Wait() })
}

// balancer is the load balancer of a cloud before the gateways of one side: it follows the
// ready endpoints of their Service, late.
type balancer struct {
	testlb.Balancer
	side *side
}

// balancerLag is how long a load balancer goes on as if nothing had changed.
const balancerLag = 3 * time.Second

// startBalancer gives the gateways' Service an address, and serves it until the test ends.
func (s *side) startBalancer() *balancer {
	t := s.world.t
	t.Helper()
	b := &balancer{side: s}
	address := s.gatewayAddress(0)
	s.serveBalancer(s.network+"-lb", address, &b.Balancer)
	ctx, stop := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { b.follow(ctx) })
	t.Cleanup(func() {
		stop()
		work.Wait()
	})
	s.cluster.lends(t, address)
	return b
}

// serveBalancer serves an address that others reach on a host of its own, until the test ends.
func (s *side) serveBalancer(host, address string, b *testlb.Balancer) {
	w, t := s.world, s.world.t
	t.Helper()
	w.must(w.Host(segment, host, address)) // it answers whoever reaches it
	w.must(w.In(host, func() error {
		front, err := testlb.ServeBy(b, netip.AddrPortFrom(netip.MustParseAddr(address), 15008), func(_ context.Context, backend string) (*net.TCPConn, error) { return w.Dial(host, backend) })
		if err == nil {
			t.Cleanup(front.Close)
		}
		return err
	}))
}

// follow takes the ready endpoints for its backends, each time as they were a while ago.
func (b *balancer) follow(ctx context.Context) {
	type seen struct {
		at       time.Time
		backends []string
	}
	var past []seen
	for tick := time.NewTicker(200 * time.Millisecond); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		list, err := b.side.DiscoveryV1().EndpointSlices("isthmus-system").List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=isthmus-gateway"})
		if err != nil {
			continue
		}
		now := seen{at: time.Now()}
		for _, s := range list.Items {
			for _, e := range s.Endpoints {
				if e.Conditions.Ready != nil && *e.Conditions.Ready && s.AddressType == "IPv4" {
					now.backends = append(now.backends, net.JoinHostPort(e.Addresses[0], "15008"))
				}
			}
		}
		slices.Sort(now.backends)
		past = append(past, now)
		for len(past) > 1 && time.Since(past[1].at) > balancerLag {
			past = past[1:]
		}
		if time.Since(past[0].at) > balancerLag {
			b.Set(past[0].backends...)
		}
	}
}

// lends gives the gateway's Service that is there addresses, IP or host names, as a load balancer does.
func (c *cluster) lends(t *testing.T, hosts ...string) {
	t.Helper()
	status, err := json.Marshal(map[string]any{"status": corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: ingress(hosts...)}}})
	if err == nil {
		_, err = c.CoreV1().Services("isthmus-system").Patch(t.Context(), "isthmus-gateway", types.MergePatchType, status, metav1.PatchOptions{}, "status")
	}
	if err != nil {
		t.Fatal(err)
	}
}
