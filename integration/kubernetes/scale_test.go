package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
)

// What a cluster of this size may cost a gateway.
const (
	scalePods     = 20_000
	scaleServices = 2_000
	scaleNodes    = 200
	maxGatewayRSS = 400 << 20
	// One that starts from its cache has, for a while, what that had and what the API server
	// says side by side; the chart's limit is as much.
	maxFromCache = 512 << 20
)

// TestScale makes 20 000 pods of 2 000 services on a real API server, and looks at what a
// gateway needs that follows them, and costs.
func TestScale(t *testing.T) {
	if os.Getenv("SCALE") == "" {
		t.Skip("NOT RUN: it takes minutes: run `make scale-kubernetes`")
	}
	c := startClusterWith(t, "")
	began := time.Now()
	c.populate(t)
	t.Logf("%d pods and %d services are there after %v", scalePods, scaleServices, time.Since(began).Round(time.Second))
	eventually(t, 10*time.Minute, "every service has its slice", func() bool {
		time.Sleep(time.Second)
		l, err := c.DiscoveryV1().EndpointSlices("demo").List(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return false
		}
		ready := 0
		for _, s := range l.Items {
			for _, e := range s.Endpoints {
				if e.Conditions.Ready != nil && *e.Conditions.Ready {
					ready++
				}
			}
		}
		return ready == scalePods
	})
	t.Logf("their slices after %v", time.Since(began).Round(time.Second))

	space, err := netspace.New("scale")
	t.Cleanup(func() { space.Close() })
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(space.Dir, "bin")
	build := exec.Command("go", "build", "-o", bin+"/", "./cmd/gateway", "./cmd/isthmus")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the binaries: %v\n%s", err, out)
	}
	for _, args := range [][]string{{"ca", "init", "--dir", "ca"}, {"network", "init", "--dir", "key", "--network", "west"}} {
		cmd := exec.Command(filepath.Join(bin, "isthmus"), args...)
		cmd.Dir = space.Dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("isthmus %v: %v\n%s", args, err, out)
		}
	}
	ports := freePorts(t, 2)
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(space.Dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	admin := "127.0.0.1:" + ports[1]
	write("mesh.yaml", "trustDomain: cluster.local\nnetworks: [{name: west}]\ngateways: [{name: gw-1, network: west, address: \"127.0.0.1:"+ports[0]+"\"}]\n")
	write("gateway.yaml", fmt.Sprintf("name: gw-1\nnetwork: west\ndiscovery: {file: mesh.yaml, kube: {kubeconfig: %q, cache: cache}}\nfederation: {keys: key}\nadmin: {address: %q}\n%s", c.kubeconfig, admin, commonConfig))
	before := c.requests(t)
	p := &netspace.Process{Args: []string{filepath.Join(bin, "gateway"), "--config", "gateway.yaml"}, Log: filepath.Join(space.Dir, "gateway.log")}
	began = time.Now()
	startLarge(t, space, p, admin)
	t.Logf("a gateway is ready after %v; it asked the API server %s", time.Since(began).Round(10*time.Millisecond), since(before, c.requests(t)))
	eventually(t, time.Minute, "the cache is written", func() bool {
		i, err := os.Stat(filepath.Join(space.Dir, "cache"))
		return err == nil && i.Size() > 0
	})
	if i, err := os.Stat(filepath.Join(space.Dir, "cache")); err == nil {
		t.Logf("its cache has %d KiB", i.Size()>>10)
	}
	// A tenth of the pods changes.
	rss, peak := memory(t, p.PID())
	t.Logf("the gateway has %d MiB, and had at most %d MiB", rss>>20, peak>>20)
	before = c.requests(t)
	began = time.Now()
	each(t, scalePods/10, 64, func(ctx context.Context, i int) error { return c.tell(ctx, i, "False") })
	eventually(t, time.Minute, "the gateway knows which pods are not ready", func() bool {
		time.Sleep(time.Second) // what it answers has 20 000 rows
		return notReady(t, admin) == scalePods/10
	})
	t.Logf("%d pods changed, and are known, after %v; the gateway asked %s", scalePods/10, time.Since(began).Round(10*time.Millisecond), since(before, c.requests(t)))
	rss, peak = memory(t, p.PID())
	t.Logf("the gateway has %d MiB, and had at most %d MiB", rss>>20, peak>>20)
	if peak > maxGatewayRSS {
		t.Errorf("the gateway had %d MiB, want at most %d MiB", peak>>20, maxGatewayRSS>>20)
	}

	// Started again, from its cache and then from the API server.
	if err := p.Stop(os.Kill, time.Minute); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	startLarge(t, space, p, admin)
	t.Logf("from its cache a gateway is ready after %v", time.Since(began).Round(10*time.Millisecond))
	eventually(t, 2*time.Minute, "it follows the API server", func() bool {
		time.Sleep(100 * time.Millisecond)
		return live(admin)
	})
	if _, peak := memory(t, p.PID()); peak > maxFromCache {
		t.Errorf("the gateway that started from its cache had %d MiB, want at most %d MiB", peak>>20, maxFromCache>>20)
	} else {
		t.Logf("it had at most %d MiB", peak>>20)
	}
}

// startLarge starts a gateway that may take its time on a busy machine.
func startLarge(t *testing.T, space *netspace.Space, p *netspace.Process, admin string) {
	t.Helper()
	if err := space.Start(p, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	ready := space.Ready("", admin)
	eventually(t, 2*time.Minute, "the gateway is ready", func() bool {
		time.Sleep(10 * time.Millisecond)
		return ready() == nil
	})
}

// each runs f for 0 to n-1, some at once.
func each(t *testing.T, n, atOnce int, f func(ctx context.Context, i int) error) {
	t.Helper()
	var all sync.WaitGroup
	next, errs := make(chan int), make(chan error, atOnce)
	for range atOnce {
		all.Go(func() {
			for i := range next {
				if err := f(t.Context(), i); err != nil {
					select {
					case errs <- fmt.Errorf("%d: %w", i, err):
					default:
					}
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	all.Wait()
	select {
	case err := <-errs:
		t.Fatal(err)
	default:
	}
}

// populate makes the objects, and says of the pods what kubelets would.
func (c *cluster) populate(t *testing.T) {
	t.Helper()
	c.apply(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "istio-system", Labels: map[string]string{"topology.istio.io/network": "west"}}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "demo", Labels: map[string]string{"istio.io/dataplane-mode": "ambient"}}})
	o := metav1.CreateOptions{}
	each(t, scaleNodes, 32, func(ctx context.Context, i int) error {
		_, err := c.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i), Labels: map[string]string{"topology.kubernetes.io/zone": fmt.Sprintf("z-%d", i%3)}}}, o)
		return err
	})
	each(t, scaleServices, 32, func(ctx context.Context, i int) error {
		s := service(fmt.Sprintf("s-%d", i), global, corev1.ServicePort{Port: 80})
		_, err := c.CoreV1().Services("demo").Create(ctx, s, o)
		return err
	})
	each(t, scalePods, 64, func(ctx context.Context, i int) error {
		p := pod(fmt.Sprintf("s-%d", i%scaleServices), fmt.Sprintf("p-%d", i))
		p.Spec.NodeName = fmt.Sprintf("node-%d", i%scaleNodes)
		// As real ones have: most of an object is of no use to a gateway.
		p.Annotations = map[string]string{"kubernetes.io/config.seen": time.Now().String(), "checksum/config": strings.Repeat("0123456789abcdef", 8)}
		for k := range 12 {
			p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, corev1.EnvVar{Name: fmt.Sprintf("SETTING_%d", k), Value: strings.Repeat("x", 40)})
		}
		if _, err := c.CoreV1().Pods("demo").Create(ctx, p, o); err != nil {
			return err
		}
		return c.tell(ctx, i, "True")
	})
}

// tell says of pod i whether it is ready.
func (c *cluster) tell(ctx context.Context, i int, ready string) error {
	ip := fmt.Sprintf("10.%d.%d.%d", 100+i/62500, i/250%250, 1+i%250)
	patch := fmt.Sprintf(`{"status":{"phase":"Running","podIP":%q,"podIPs":[{"ip":%[1]q}],"conditions":[{"type":"Ready","status":%q}]}}`, ip, ready)
	_, err := c.CoreV1().Pods("demo").Patch(ctx, fmt.Sprintf("p-%d", i), types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	return err
}

// notReady is how many pods a gateway knows to be not ready.
func notReady(t *testing.T, admin string) (n int) {
	r, err := http.Get("http://" + admin + "/state")
	if err != nil {
		return -1
	}
	defer r.Body.Close()
	var s struct{ Pods []struct{ State string } }
	if json.NewDecoder(r.Body).Decode(&s) != nil {
		return -1
	}
	for _, p := range s.Pods {
		if p.State == "notReady" {
			n++
		}
	}
	return n
}

// live reports whether a gateway has what it knows from its API server.
func live(admin string) bool {
	r, err := http.Get("http://" + admin + "/healthz/ready")
	if err != nil {
		return false
	}
	defer r.Body.Close()
	var s struct{ Kubernetes kubernetesOf }
	return json.NewDecoder(r.Body).Decode(&s) == nil && s.Kubernetes.Synced && !s.Kubernetes.Cache.Restored
}

// memory is what a process has in memory now, and had at most.
func memory(t *testing.T, pid int) (now, most int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) == 3 && f[2] == "kB" {
			n, _ := strconv.Atoi(f[1])
			switch f[0] {
			case "VmRSS:":
				now = n << 10
			case "VmHWM:":
				most = n << 10
			}
		}
	}
	return now, most
}

// requests are the lists and watches that the API server has answered, by kind.
func (c *cluster) requests(t *testing.T) map[string]int {
	t.Helper()
	b, err := c.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int{}
	for line := range strings.Lines(string(b)) {
		if !strings.HasPrefix(line, "apiserver_request_total{") {
			continue
		}
		for _, kind := range []string{"pods", "services", "endpointslices", "nodes", "namespaces"} {
			for _, verb := range []string{"LIST", "WATCH"} {
				if strings.Contains(line, `resource="`+kind+`"`) && strings.Contains(line, `verb="`+verb+`"`) {
					x, _ := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndex(line, " "):]), 64)
					out[verb+" "+kind] += int(x)
				}
			}
		}
	}
	return out
}

// since is what was asked between two counts.
func since(before, after map[string]int) string {
	var b strings.Builder
	for k, n := range after {
		if d := n - before[k]; d > 0 {
			fmt.Fprintf(&b, "%s ×%d, ", k, d)
		}
	}
	if b.Len() == 0 {
		return "nothing that it has answered to the end"
	}
	return strings.TrimSuffix(b.String(), ", ")
}
