package kubernetes

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
)

// images is the directory that make images fills.
const images = "IMAGES"

// realWorld is clusters of real nodes on one segment, which is the internet: it joins the
// nodes and the load balancers. Pods have the same addresses on every network, and so cannot
// reach those of another.
type realWorld struct {
	*netspace.Space
	*operator
	t       *testing.T
	nodes   map[string]*realNode // by network
	program string               // of nodes
	loaded  []string             // archives of images
}

// newRealWorld starts the clusters, side by side, and loads the images that they will need. Pods
// are joined to their nodes by the layouts in turn.
func newRealWorld(t *testing.T, layouts []string, networks ...string) *realWorld {
	t.Helper()
	needContainers(t)
	w := &realWorld{t: t, nodes: map[string]*realNode{}}
	var err error
	w.Space, err = netspace.New("kubelet")
	t.Cleanup(func() {
		if err := w.Space.Close(); err != nil {
			t.Error(err)
		}
	})
	w.must(err)
	w.program = w.built("node")
	w.must(w.Segment(segment, nil))
	w.internet()
	w.loaded = w.archives(w.program)
	clusters := map[string]*cluster{}
	for i, network := range networks {
		host, address := network+"-1", fmt.Sprintf("10.71.%d.11", i+1)
		w.must(w.Host(segment, host, address))
		n := startRealNode(t, w.Space, w.program, host, address, layouts[i%len(layouts)])
		w.nodes[network], clusters[network] = n, n.cluster
	}
	for _, n := range w.nodes {
		n.load(t, w.loaded)
		n.awaitReady(t)
	}
	w.operator = newOperator(t, clusters)
	w.checkout(t, needHelm(t))
	w.must(w.Host(segment, "operator", "10.71.9.1"))
	w.enter = func(f func() error) error { return w.In("operator", f) }
	for network := range w.nodes {
		w.names(network)
	}
	return w
}

// built is a program of a directory here, for images of this machine.
func (w *realWorld) built(directory string) string {
	w.t.Helper()
	program := filepath.Join(w.Space.Dir, directory)
	build := exec.Command("go", "build", "-trimpath", "-o", program, "./"+directory)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		w.t.Fatalf("build ./%s: %v\n%s", directory, err, out)
	}
	return program
}

func (w *realWorld) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// archives are those of make images, and of what the manifests of docs/kubernetes ask for.
func (w *realWorld) archives(program string) []string {
	w.t.Helper()
	dir := os.Getenv(images)
	ours, err := filepath.Glob(filepath.Join(dir, "*.tar"))
	if err != nil || len(ours) == 0 {
		w.t.Fatalf("%s=%q has no archives of images: run `make test-kubelet`, which builds them", images, dir)
	}
	return append(ours, image(w.t, "localhost/pause:1", []string{"/pause"}, map[string]string{"/pause": program}, nil),
		busybox(w.t, "docker.io/library/busybox:1.37"), busybox(w.t, "docker.io/curlimages/curl:8.11.1", "curl"),
		image(w.t, "localhost/app:1", []string{"/app"}, map[string]string{"/app": w.built("app")}, nil),
		image(w.t, "localhost/coredns:1", []string{"/coredns"}, map[string]string{"/coredns": os.Getenv(coredns)}, nil))
}

// wait waits for what kubectl waits for.
func (w *realWorld) wait(t *testing.T, network, what string, limit time.Duration) {
	t.Helper()
	out, code := w.shell(t, fmt.Sprintf("kubectl --context %s %s --timeout %v", network, what, limit))
	if code == 0 {
		return
	}
	pods, _ := w.shell(t, "kubectl --context "+network+" get pods --all-namespaces --output wide; kubectl --context "+network+" get events --all-namespaces --sort-by .lastTimestamp | tail -40")
	t.Fatalf("kubectl %s: %s\n%s", what, out, pods)
}

// A node made of real components is Ready, and its kubelet runs pods, probes them and lets
// somebody look into them, however the pods are joined to the node. They call one another by the
// names and addresses of Services.
func TestKubeletRunsPods(t *testing.T) {
	w := newRealWorld(t, []string{"ptp", "bridge"}, "east", "west")
	for network := range w.nodes {
		w.does(t, "kubectl --context "+network+" apply -f docs/kubernetes/west.yaml -f docs/kubernetes/east.yaml")
		w.wait(t, network, "--namespace demo rollout status deployment/hello", 2*time.Minute)
		w.wait(t, network, "--namespace demo wait --for condition=Ready pod/shop-1", 2*time.Minute)
		in := "kubectl --context " + network + " --namespace demo exec "
		if out := w.does(t, in+"deployment/hello -- id"); !strings.HasPrefix(out, "uid=0") {
			t.Errorf("id in a pod of hello on %s says %q, want uid=0", network, out)
		}
		if out := w.does(t, in+"shop-1 -- curl --silent --show-error --retry 5 --retry-all-errors http://hello:8080/"); !strings.Contains(out, "hello from hello-") {
			t.Errorf("on %s hello is answered %q", network, out)
		}
	}
}
