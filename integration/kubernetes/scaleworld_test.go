package kubernetes

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
)

const (
	scalePods     = 20_000
	scaleServices = 2_000
	scaleNodes    = 200
	scaleNode     = "node-0" // that has a node proxy
)

// scale is a cluster of that size, and a gateway that follows it.
type scale struct {
	*cluster
	space   *netspace.Space
	bin     string
	cache   string // of the gateway, a file
	admin   string // address of the gateway's
	api     *relay // between the gateway and the API server
	tunnel  *relay // between node proxies and the gateway
	gateway *netspace.Process
	up      bool
	asked   int // bytes of the audit log that have been read
}

// newScale starts the cluster, with what was there before if SCALE is a path.
func newScale(t *testing.T) *scale {
	t.Helper()
	kept := os.Getenv("SCALE")
	if !filepath.IsAbs(kept) {
		kept = t.TempDir()
	}
	w := &scale{cluster: startClusterAt(t, place{address: "127.0.0.1", data: filepath.Join(kept, "etcd"), audit: "gateway"}, freePorts(t, 4)), cache: filepath.Join(kept, "cache")}
	whole := filepath.Join(kept, "whole")
	began := time.Now()
	if _, err := os.Stat(whole); err != nil {
		w.populate(t)
		if err := os.WriteFile(whole, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w.makeReady(t)
	w.awaitSlices(t, scalePods)
	t.Logf("%d pods and %d services, with their slices, are there after %v", scalePods, scaleServices, time.Since(began).Round(time.Second))
	space, err := netspace.New("scale")
	t.Cleanup(func() { space.Close() })
	if err != nil {
		t.Fatal(err)
	}
	if w.bin, err = filepath.Abs("../../build/kubernetes/bin"); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-trimpath", "-o", w.bin+"/", "./cmd/...")
	build.Dir, build.Env = "../..", append(os.Environ(), "CGO_ENABLED=0") // as in the images
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the binaries: %v\n%s", err, out)
	}
	w.space = space
	w.configure(t)
	return w
}

// configure writes what the gateway reads.
func (w *scale) configure(t *testing.T) {
	t.Helper()
	for _, args := range [][]string{{"ca", "init", "--dir", "ca"}, {"network", "init", "--dir", "key", "--network", "west"}} {
		cmd := exec.Command(filepath.Join(w.bin, "isthmus"), args...)
		cmd.Dir = w.space.Dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("isthmus %v: %v\n%s", args, err, out)
		}
	}
	ports := freePorts(t, 2)
	listen := "127.0.0.1:" + ports[0]
	w.admin = "127.0.0.1:" + ports[1]
	near, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.api = startRelay(t, near, strings.TrimPrefix(w.config.Host, "https://"))
	err = errors.Join(w.space.Segment(segment, nil), w.space.Host(segment, scaleNode, "10.99.0.1"), w.space.IP(scaleNode, "route", "add", "local", "10.100.0.0/14", "dev", "lo")) // the pods'
	if err != nil {
		t.Fatal(err)
	}
	if near, err = w.space.Listen(scaleNode, "10.99.0.1:15009"); err != nil {
		t.Fatal(err)
	}
	w.tunnel = startRelay(t, near, listen)
	w.write(t, "mesh.yaml", "trustDomain: cluster.local\nnetworks: [{name: west}]\ngateways: [{name: gw-1, network: west, address: \"%s\"}]\n", w.tunnel.address())
	w.write(t, "gateway.yaml", "name: gw-1\nnetwork: west\nlisten: %q\ndiscovery: {file: mesh.yaml, kube: {kubeconfig: %q, cache: %q}}\nfederation: {keys: key}\nadmin: {address: %q}\n%s",
		listen, w.user(t, "https://"+w.api.address(), "gateway", "system:masters"), w.cache, w.admin, commonConfig)
	w.gateway = &netspace.Process{Args: []string{filepath.Join(w.bin, "gateway"), "--config", "gateway.yaml"}, Log: filepath.Join(w.space.Dir, "gateway.log")}
}

func (w *scale) write(t *testing.T, name, format string, args ...any) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(w.space.Dir, name), fmt.Appendf(nil, format, args...), 0o600); err != nil {
		t.Fatal(err)
	}
}

// populate makes the objects.
func (w *scale) populate(t *testing.T) {
	t.Helper()
	o := metav1.CreateOptions{}
	for name, labels := range map[string]map[string]string{"istio-system": {"topology.istio.io/network": "west"}, "demo": {"istio.io/dataplane-mode": "ambient"}} {
		_, err := w.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, o)
		if made(err) != nil {
			t.Fatal(err)
		}
	}
	each(t, scaleNodes, 32, func(ctx context.Context, i int) error {
		_, err := w.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i), Labels: map[string]string{"topology.kubernetes.io/zone": fmt.Sprintf("z-%d", i%3)}}}, o)
		return made(err)
	})
	w.putPods(t)
	// Last, so that each slice is written once.
	each(t, scaleServices, 32, func(ctx context.Context, i int) error {
		s := service(fmt.Sprintf("s-%d", i), global, corev1.ServicePort{Port: 80})
		_, err := w.CoreV1().Services("demo").Create(ctx, s, o)
		return made(err)
	})
}

// putPods writes the pods, as their kubelets have left them, where the API server keeps them: by its
// requests it would take 40 000.
func (w *scale) putPods(t *testing.T) {
	t.Helper()
	encoder := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	type op = map[string]any
	request := func(path string, body any) {
		b, _ := json.Marshal(body)
		r, err := http.Post("http://"+w.etcd+"/v3/kv/"+path, "application/json", bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		if answer, _ := io.ReadAll(r.Body); r.StatusCode != http.StatusOK {
			t.Fatalf("etcd %s: %s: %s", path, r.Status, answer)
		}
	}
	request("deleterange", op{"key": []byte("/registry/pods/demo/"), "range_end": []byte("/registry/pods/demo0")})
	var puts []op
	for i := range scalePods {
		p := pod(fmt.Sprintf("s-%d", i%scaleServices), fmt.Sprintf("p-%d", i))
		p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
		p.UID, p.CreationTimestamp = uuid.NewUUID(), metav1.Now()
		p.Spec.NodeName = fmt.Sprintf("node-%d", nodeOf(i))
		// As real ones have: most of an object is of no use to a gateway.
		p.Annotations = map[string]string{"kubernetes.io/config.seen": time.Now().String(), "checksum/config": strings.Repeat("0123456789abcdef", 8)}
		for k := range 12 {
			p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, corev1.EnvVar{Name: fmt.Sprintf("SETTING_%d", k), Value: strings.Repeat("x", 40)})
		}
		p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: addressOf(i), PodIPs: []corev1.PodIP{{IP: addressOf(i)}}}
		for _, c := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: c, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()})
		}
		var b bytes.Buffer
		if err := encoder.Encode(p, &b); err != nil {
			t.Fatal(err)
		}
		puts = append(puts, op{"requestPut": op{"key": []byte("/registry/pods/demo/" + p.Name), "value": b.Bytes()}})
	}
	for some := range slices.Chunk(puts, 100) {
		request("txn", op{"success": some})
	}
}

// makeReady makes those pods ready that an earlier run has left in another state.
func (w *scale) makeReady(t *testing.T) {
	t.Helper()
	l, err := w.CoreV1().Pods("demo").List(t.Context(), metav1.ListOptions{}) // not from a cache, which may lack the last
	if err != nil {
		t.Fatal(err)
	}
	var left []int
	for _, p := range l.Items {
		if !slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue }) {
			i, _ := strconv.Atoi(strings.TrimPrefix(p.Name, "p-"))
			left = append(left, i)
		}
	}
	each(t, len(left), 64, func(ctx context.Context, i int) error { return w.tell(ctx, left[i], "True") })
}

// made takes no offence at what an earlier run has made that was ended.
func made(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// nodeOf is the node of pod i: those of a service are on ten nodes, and those of a node of a
// hundred services.
func nodeOf(i int) int { return (i + i/scaleServices*37) % scaleNodes }

func addressOf(i int) string { return fmt.Sprintf("10.%d.%d.%d", 100+i/62500, i/250%250, 1+i%250) }

// tell says of pod i whether it is ready.
func (w *scale) tell(ctx context.Context, i int, ready string) error {
	patch := fmt.Sprintf(`{"status":{"phase":"Running","podIP":%q,"podIPs":[{"ip":%[1]q}],"conditions":[{"type":"Ready","status":%q}]}}`, addressOf(i), ready)
	_, err := w.CoreV1().Pods("demo").Patch(ctx, fmt.Sprintf("p-%d", i), types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	return err
}

// awaitSlices returns when so many endpoints are ready.
func (w *scale) awaitSlices(t *testing.T, want int) {
	t.Helper()
	told := time.Now()
	eventually(t, 10*time.Minute, fmt.Sprintf("%d endpoints are ready", want), func() bool {
		time.Sleep(time.Second)
		l, err := w.DiscoveryV1().EndpointSlices("demo").List(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			t.Log(err)
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
		if time.Since(told) > 20*time.Second {
			told = time.Now()
			t.Logf("%d of %d endpoints are ready", ready, want)
		}
		return ready == want
	})
}

// start starts a process, which may take its time on a busy machine.
func (w *scale) start(t *testing.T, p *netspace.Process, admin string) {
	t.Helper()
	if err := w.space.Start(p, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	ready := w.space.Ready(p.Host, admin)
	eventually(t, 2*time.Minute, p.Args[0]+" is ready", func() bool {
		select {
		case <-p.Ended():
			t.Fatalf("%s ended\n%s", p.Args[0], netspace.Tail(p.Log))
		default:
		}
		time.Sleep(10 * time.Millisecond)
		return ready() == nil
	})
}

// state has a process say how it stands, in out.
func (w *scale) state(host, admin, path string, out any) error {
	b, err := w.space.Get(host, admin, path)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, out)
}

// notReady is how many pods the gateway knows to be not ready.
func (w *scale) notReady() (n int) {
	var s struct{ Pods []struct{ State string } }
	if w.state(netspace.Here, w.admin, "/state", &s) != nil {
		return -1
	}
	for _, p := range s.Pods {
		if p.State == "notReady" {
			n++
		}
	}
	return n
}

// awaitLive returns when the gateway has what it knows from its API server.
func (w *scale) awaitLive(t *testing.T) {
	t.Helper()
	eventually(t, 2*time.Minute, "the gateway follows the API server", func() bool {
		time.Sleep(50 * time.Millisecond)
		var s struct{ Kubernetes kubernetesOf }
		return w.state(netspace.Here, w.admin, "/healthz/ready", &s) == nil && s.Kubernetes.Synced && !s.Kubernetes.Cache.Restored
	})
}

// awaitCache returns when the gateway has written its cache.
func (w *scale) awaitCache(t *testing.T) {
	t.Helper()
	eventually(t, time.Minute, "the cache is written", func() bool {
		i, err := os.Stat(w.cache)
		return err == nil && i.Size() > 0
	})
}

// memory is what a process has in memory now, and had at most.
func memory(t *testing.T, p *netspace.Process) (now, most int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
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

// processorTime is what a process has used so far.
func processorTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	return time.Duration(user+system) * 10 * time.Millisecond // USER_HZ is 100 on every architecture of Linux that Go runs on
}

// load is what the gateway has asked of the API server, and what that cost.
type load struct {
	requests map[string]int // by what was asked
	up, down int64          // bytes, of TLS
	time     time.Duration  // of the API server's processors, for whoever asked
}

// loadSince returns what was asked since the last call.
func (w *scale) loadSince(t *testing.T, before load) load {
	t.Helper()
	f, err := os.Open(w.at("audit.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Seek(int64(w.asked), io.SeekStart); err != nil {
		t.Fatal(err)
	}
	l := load{map[string]int{}, w.api.up.Load(), w.api.down.Load(), processorTime(t, w.server.Process.Pid)}
	l.up, l.down, l.time = l.up-before.up, l.down-before.down, l.time-before.time
	for lines := bufio.NewReader(f); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return l
		}
		w.asked += len(line)
		var e struct {
			Verb, RequestURI string
			ObjectRef        *struct{ Resource string }
		}
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatal(err)
		}
		what := e.Verb + " " + e.RequestURI
		if e.ObjectRef != nil {
			what = e.Verb + " " + e.ObjectRef.Resource
		}
		if strings.Contains(e.RequestURI, "sendInitialEvents=true") {
			what += " from the beginning"
		}
		l.requests[what]++
	}
}

// total is all that was asked until now.
func (w *scale) total(t *testing.T) load {
	l := w.loadSince(t, load{})
	l.requests = nil
	return l
}

func (l load) String() string {
	var b strings.Builder
	for _, what := range slices.Sorted(maps.Keys(l.requests)) {
		fmt.Fprintf(&b, "%s ×%d, ", what, l.requests[what])
	}
	return fmt.Sprintf("%s%d B to the API server, %d B from it, which used %v of its processors", cmp.Or(b.String(), "no request, "), l.up, l.down, l.time)
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
