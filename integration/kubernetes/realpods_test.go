package kubernetes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/isthmus-mesh/isthmus/internal/testlb"
)

// pods are those of a namespace with this prefix of a name.
func (n *realNode) list(t *testing.T, namespace, prefix string) (out []corev1.Pod) {
	t.Helper()
	list, err := n.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list.Items {
		if strings.HasPrefix(p.Name, prefix) {
			out = append(out, p)
		}
	}
	return out
}

// process is the number of the first process of a pod's container, as the machine counts.
func (n *realNode) process(t *testing.T, p corev1.Pod) int {
	t.Helper()
	if len(p.Status.ContainerStatuses) == 0 {
		t.Fatalf("pod %s has no container", p.Name)
	}
	id := strings.TrimPrefix(p.Status.ContainerStatuses[0].ContainerID, "containerd://")
	entries, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if text, err := os.ReadFile(e); err == nil && bytes.Contains(text, []byte(id)) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(e)))
			return pid
		}
	}
	t.Fatalf("pod %s: no process is in the control group of container %s", p.Name, id)
	return 0
}

// status is a field of a process, such as Uid.
func status(t *testing.T, pid int, field string) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if name, value, _ := strings.Cut(line, ":"); name == field {
			return strings.Fields(value)[0]
		}
	}
	t.Fatalf("process %d has no %s", pid, field)
	return ""
}

// calm fails the test if a container of ours has been started again.
func (n *realNode) calm(t *testing.T) {
	t.Helper()
	for _, p := range n.list(t, system, "isthmus-") {
		for _, c := range p.Status.ContainerStatuses {
			if c.RestartCount > 0 {
				t.Errorf("%s on %s has been restarted %d times, the last time for %+v; want none", p.Name, n.name, c.RestartCount, c.LastTerminationState.Terminated)
			}
		}
	}
}

// times of a gateway that stops, in the place of the chart's 30 s and 60 s: kube-proxy and a
// load balancer that leads to a node's port hear of the end within a second or two.
const stopTimes = " --set gateway.lameDuckSeconds=8,gateway.drainSeconds=10,nodeProxy.drainSeconds=5"

// The charts on two clusters of real kubelets, by the commands of docs/kubernetes.md: every
// pod is Ready as its probe says, under what the chart lets it do and with the volumes that a
// kubelet mounts, and a pod calls the other network as the page says.
func TestKubelets(t *testing.T) {
	w := newRealWorld(t, []string{"ptp", "bridge"}, "east", "west")
	w.env = append(w.env, "REGISTRY=localhost", "TAG="+w.tag())
	if !t.Run("ThePage", w.follows) {
		return // what comes after stands on it
	}
	t.Run("Confined", w.confined)
	for _, n := range w.nodes {
		n.calm(t)
	}
	t.Run("Everything", w.everything)
	t.Run("Captured", w.captured)
	t.Run("Waiting", w.waits)
}

// Gateways and node proxies of both clusters are replaced under traffic without a failed connection. CI runs this part of
// TestKubelets.
func TestKubeletRollouts(t *testing.T) {
	w := newRealWorld(t, []string{"ptp", "bridge"}, "east", "west")
	w.env = append(w.env, "REGISTRY=localhost", "TAG="+w.tag())
	if !t.Run("ThePage", w.follows) {
		return // the other parts need what it installs
	}
	w.deployApps(t)
	t.Run("GatewaysUpdated", w.gatewaysUpdated)
	t.Run("NodeProxyUpdated", w.nodeProxyUpdated)
	for _, n := range w.nodes {
		n.calm(t)
	}
}

// follows runs the commands of the page.
func (w *realWorld) follows(t *testing.T) {
	lines := commands(t, kubernetesPage, "sh")
	for _, line := range lines[:undone(t, lines)] {
		began := time.Now()
		typed := line
		install := strings.Contains(line, " install isthmus ")
		switch {
		case install:
			typed += stopTimes
		case strings.HasPrefix(line, "isthmus link"):
			w.settles(t, "east")
			w.settles(t, "west")
			t.Logf("%.1f s: all pods are Ready", time.Since(began).Seconds())
			began = time.Now()
		case strings.HasPrefix(line, "curl "):
			w.wait(t, "east", "--namespace demo wait --for condition=Ready pod/shop-1", 2*time.Minute)
			typed = "kubectl --context east --namespace demo exec shop-1 -- sh -c '" + line + "'"
		}
		out := w.does(t, typed)
		t.Logf("%.1f s: %s", time.Since(began).Seconds(), typed)
		for i, network := range []string{"east", "west"} {
			if install && strings.Contains(line, "--kube-context "+network) {
				w.balance(t, network, fmt.Sprintf("10.71.%d.1", i+1))
			}
		}
		switch {
		case strings.HasPrefix(line, "isthmus link"):
			w.reach(t, map[string]string{"east": "name: \"west\"", "west": "name: \"east\""})
		case strings.HasPrefix(line, "isthmus check"):
			t.Log(out)
			if !strings.Contains(out, ", 0 ✗") {
				t.Errorf("check is not content:\n%s", out)
			}
		case strings.HasPrefix(line, "curl "):
			if !strings.Contains(out, "hello from hello-") {
				t.Fatalf("the call is answered %q, want that a pod of west says hello", out)
			}
		}
	}
}

// confined looks at what the processes of the chart really may.
func (w *realWorld) confined(t *testing.T) {
	for network, n := range w.nodes {
		for prefix, want := range map[string]struct {
			user         string
			pods         int
			capabilities string
		}{
			"isthmus-gateway-": {"65532", 2, "0000000000000000"}, "isthmus-controller-": {"65532", 2, "0000000000000000"},
			"isthmus-nodeproxy-": {"0", 1, "0000000000281000"}, // NET_ADMIN, SYS_PTRACE, SYS_ADMIN
		} {
			pods := n.list(t, system, prefix)
			if len(pods) != want.pods {
				t.Errorf("%s has %d pods %s, want %d", network, len(pods), prefix, want.pods)
			}
			for _, p := range pods {
				pid := n.process(t, p)
				for field, value := range map[string]string{"Uid": want.user, "Gid": want.user, "CapEff": want.capabilities, "CapBnd": want.capabilities, "NoNewPrivs": "1", "Seccomp": "2"} {
					if got := status(t, pid, field); got != value {
						t.Errorf("%s of %s has %s %s, want %s", p.Name, network, field, got, value)
					}
				}
				if err := os.WriteFile(fmt.Sprintf("/proc/%d/root/written", pid), nil, 0o600); !errors.Is(err, os.ErrPermission) && !strings.Contains(fmt.Sprint(err), "read-only") {
					t.Errorf("%s of %s has a root file system that can be written: %v", p.Name, network, err)
				}
			}
		}
	}
	// What the namespace has to allow: restricted for all but the node proxies.
	out := w.does(t, "kubectl --context west label --dry-run=server --overwrite namespace isthmus-system pod-security.kubernetes.io/enforce=restricted")
	t.Log(out)
	if strings.Contains(out, "isthmus-gateway") || strings.Contains(out, "isthmus-controller") {
		t.Errorf("gateways or controllers do not fit the Pod Security level restricted:\n%s", out)
	}
}

// tag is that of the images.
func (w *realWorld) tag() string {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join(os.Getenv(images), "digests"))
	w.must(err)
	_, tag, found := strings.Cut(strings.Fields(string(text))[1], ":") // sha256:… isthmus-gateway:v1
	if !found {
		w.t.Fatalf("the digests of the images name no version: %s", text)
	}
	return tag
}

// balance is the cloud's part of a Service of type LoadBalancer: an address that leads to the
// node port.
func (w *realWorld) balance(t *testing.T, network, address string) {
	t.Helper()
	n, host := w.nodes[network], network+"-lb"
	s, err := n.CoreV1().Services(system).Get(t.Context(), "isthmus-gateway", metav1.GetOptions{})
	w.must(err)
	var b testlb.Balancer
	b.Set(net.JoinHostPort(n.address, fmt.Sprint(s.Spec.Ports[0].NodePort)))
	w.must(w.Host(segment, host, address))
	var front *testlb.Front
	w.must(w.In(host, func() (err error) {
		front, err = testlb.ServeBy(&b, netip.AddrPortFrom(netip.MustParseAddr(address), 15008), func(_ context.Context, backend string) (*net.TCPConn, error) { return w.Dial(host, backend) })
		return err
	}))
	w.t.Cleanup(front.Close) // the world's, and not that of a part of its test
	n.lends(t, address)
}

// reach waits until what isthmus link wrote is in the volumes of all of our pods, and says when.
func (w *realWorld) reach(t *testing.T, text map[string]string) {
	t.Helper()
	began, waiting := time.Now(), map[string]string{} // pods by their file
	for network := range text {
		n := w.nodes[network]
		for _, p := range n.list(t, system, "isthmus-") {
			waiting[fmt.Sprintf("/proc/%d/root/etc/isthmus/networks/networks.yaml", n.process(t, p))] = p.Name + " of " + network
		}
	}
	eventually(t, 3*time.Minute, "all pods see the link", func() bool {
		time.Sleep(50 * time.Millisecond)
		for file, pod := range waiting {
			b, err := os.ReadFile(file)
			if _, network, _ := strings.Cut(pod, " of "); err == nil && strings.Contains(string(b), text[network]) {
				t.Logf("%s sees the link after %.1f s", pod, time.Since(began).Seconds())
				delete(waiting, file)
			}
		}
		return len(waiting) == 0
	})
}

// settles waits until all of our pods on a network are Ready.
func (w *realWorld) settles(t *testing.T, network string) {
	t.Helper()
	for _, what := range []string{"deployment/isthmus-controller", "deployment/isthmus-gateway", "daemonset/isthmus-nodeproxy"} {
		w.wait(t, network, "--namespace isthmus-system rollout status "+what, 3*time.Minute)
	}
}
