package kubernetes

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
)

// What a process may have in memory at most, in bytes.
const (
	maxGatewayRSS   = 400 << 20
	maxNodeProxyRSS = 40 << 20
)

// TestScale makes 20 000 pods of 2 000 services on a real API server, and looks at what a gateway and a
// node proxy need, and what a gateway costs the API server. Each part runs by itself too; if SCALE is a
// path what the API server has stays there, and the next run begins at once.
func TestScale(t *testing.T) {
	if os.Getenv("SCALE") == "" {
		t.Skip("NOT RUN: it takes minutes: run `make scale-kubernetes`")
	}
	w := newScale(t)
	t.Run("Lists", func(t *testing.T) { // as an API server before 1.32 is asked, or one that does not stream lists
		w.gateway.Env = []string{"KUBE_FEATURE_WatchListClient=false"}
		defer func() { w.gateway.Env = nil }()
		w.fresh(t)
		w.kill(t)
	})
	t.Run("Start", func(t *testing.T) {
		w.fresh(t)
		w.awaitCache(t)
	})
	t.Run("Node", w.node)
	t.Run("Change", w.change)
	t.Run("Rest", func(t *testing.T) {
		w.running(t)
		before := w.total(t)
		time.Sleep(time.Minute)
		t.Logf("a minute at rest: %v", w.loadSince(t, before))
	})
	t.Run("Cache", func(t *testing.T) {
		w.running(t)
		w.awaitCache(t)
		w.kill(t)
		w.launch(t)
	})
}

// fresh starts the gateway without a cache.
func (w *scale) fresh(t *testing.T) {
	t.Helper()
	w.kill(t)
	os.Remove(w.cache)
	w.launch(t)
}

// running starts the gateway if no other part has.
func (w *scale) running(t *testing.T) {
	t.Helper()
	if !w.up {
		w.launch(t)
	}
}

// launch starts the gateway, and returns when it follows the API server.
func (w *scale) launch(t *testing.T) {
	t.Helper()
	_, err := os.Stat(w.cache)
	before, began := w.total(t), time.Now()
	w.start(t, w.gateway, w.admin)
	w.up = true
	ready := time.Since(began)
	w.awaitLive(t)
	how := "without a cache"
	if err == nil {
		how = "from a cache"
	}
	t.Logf("%s a gateway is ready after %v, and follows the API server after %v: %v", how, ready.Round(10*time.Millisecond), time.Since(began).Round(10*time.Millisecond), w.loadSince(t, before))
	w.bounded(t, w.gateway, maxGatewayRSS)
}

func (w *scale) kill(t *testing.T) {
	t.Helper()
	if !w.up {
		return
	}
	if err := w.gateway.Stop(os.Kill, time.Minute); err != nil {
		t.Fatal(err)
	}
	w.up = false
}

// bounded fails the test if a process has had more memory than that.
func (w *scale) bounded(t *testing.T, p *netspace.Process, bound int) {
	t.Helper()
	now, most := memory(t, p)
	t.Logf("%s has %d MiB, and had at most %d MiB", filepath.Base(p.Args[0]), now>>20, most>>20)
	if most > bound {
		t.Errorf("%s had %d MiB, want at most %d MiB", filepath.Base(p.Args[0]), most>>20, bound>>20)
	}
}

// change lets a tenth of the pods become not ready, and ready again.
func (w *scale) change(t *testing.T) {
	w.running(t)
	const n = scalePods / 10
	for _, ready := range []string{"False", "True"} {
		before, began := w.total(t), time.Now()
		each(t, n, 64, func(ctx context.Context, i int) error { return w.tell(ctx, i, ready) })
		want := 0
		if ready == "False" {
			want = n
		}
		eventually(t, time.Minute, "the gateway knows which pods are not ready", func() bool {
			time.Sleep(time.Second) // what it answers has 20 000 rows
			return w.notReady() == want
		})
		w.awaitSlices(t, scalePods-want)
		l := w.loadSince(t, before)
		t.Logf("%d pods became ready: %s, which was known after %v: %v; %d B for each, with its slice", n, ready, time.Since(began).Round(10*time.Millisecond), l, (l.up+l.down)/n)
	}
	w.bounded(t, w.gateway, maxGatewayRSS)
}

// used are the services that node proxies' pods use; none is one of their own.
const used = 20

// node starts a node proxy, has its pods use some services, and looks at what changes of pods cost it.
func (w *scale) node(t *testing.T) {
	w.running(t)
	var own []int // its pods
	services := map[int]bool{}
	for i := range scalePods {
		if fmt.Sprintf("node-%d", nodeOf(i)) == scaleNode {
			own = append(own, i)
			services[i%scaleServices] = true
		}
	}
	local, err := w.CoreV1().Pods("demo").Get(t.Context(), fmt.Sprintf("p-%d", own[0]), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const admin = "127.0.0.1:15000"
	var outbound strings.Builder
	var followed []int
	for i := 0; len(followed) < used; i += 7 {
		if services[i] {
			continue
		}
		fmt.Fprintf(&outbound, "  - {workload: %s, listen: \"127.0.0.1:%d\", to: \"s-%d.demo.svc.cluster.local:80\"}\n", local.UID, 20_000+i, i)
		followed = append(followed, i)
	}
	w.write(t, "node.yaml", "node: %s\nnetwork: west\ndiscovery: {gateways: [%q]}\nadmin: {address: %q}\noutbound:\n%s%s", scaleNode, w.tunnel.address(), admin, outbound.String(), commonConfig)
	p := &netspace.Process{Host: scaleNode, Args: []string{filepath.Join(w.bin, "nodeproxy"), "--config", "node.yaml"}, Log: filepath.Join(w.space.Dir, "node.log")}
	before := w.tunnel.bytes()
	w.start(t, p, admin)
	t.Cleanup(func() { p.Stop(os.Kill, time.Minute) })
	want := len(services) + used
	var s struct {
		Told struct{ Services, Workloads int }
	}
	eventually(t, time.Minute, "the node proxy knows what its pods use", func() bool {
		return w.state(scaleNode, admin, "/state", &s) == nil && s.Told.Services == want
	})
	t.Logf("a node proxy with %d pods that use %d services, and %d of their own, knows %d workloads and %d services, for %d B with its gateway", len(own), used, len(services), s.Told.Workloads, s.Told.Services, w.tunnel.bytes()-before)
	var others []int
	for i := range scalePods {
		if svc := i % scaleServices; !services[svc] && !slices.Contains(followed, svc) && len(others) < scalePods/10 {
			others = append(others, i)
		}
	}
	w.costsNothing(t, others)
	w.costsSomething(t, followed)
	w.bounded(t, p, maxNodeProxyRSS)
}

// costsNothing lets pods change that the node proxy does not use, and compares what it has with its
// gateway meanwhile with as long a time in which nothing changes: not a byte for each change.
func (w *scale) costsNothing(t *testing.T, others []int) {
	t.Helper()
	time.Sleep(5 * time.Second) // what follows a start
	before, began := w.tunnel.bytes(), time.Now()
	for _, ready := range []string{"False", "True"} {
		each(t, len(others), 64, func(ctx context.Context, i int) error { return w.tell(ctx, others[i], ready) })
		want := len(others)
		if ready == "True" {
			want = 0
		}
		eventually(t, time.Minute, "the gateway knows which pods are not ready", func() bool {
			time.Sleep(time.Second)
			return w.notReady() == want
		})
	}
	w.awaitSlices(t, scalePods)
	took, changing := time.Since(began), w.tunnel.bytes()-before
	before = w.tunnel.bytes()
	time.Sleep(took)
	resting, changes := w.tunnel.bytes()-before, int64(2*len(others))
	t.Logf("%d B between node proxy and gateway in %v in which pods that it does not use changed %d times, %d B in as long in which none did", changing, took.Round(time.Second), changes, resting)
	if changing-resting > changes/4 {
		t.Errorf("%d changes of pods that the node proxy does not use cost it %d B; want none", changes, changing-resting)
	}
}

// costsSomething lets pods change that the node proxy uses: else costsNothing would prove nothing.
func (w *scale) costsSomething(t *testing.T, followed []int) {
	t.Helper()
	before := w.tunnel.bytes()
	for _, ready := range []string{"False", "True"} {
		each(t, len(followed), 8, func(ctx context.Context, i int) error { return w.tell(ctx, followed[i], ready) })
		time.Sleep(5 * time.Second)
	}
	got := w.tunnel.bytes() - before
	t.Logf("%d B when pods that it uses changed %d times", got, 2*len(followed))
	if got < int64(50*2*len(followed)) {
		t.Errorf("%d changes of pods that the node proxy uses cost it %d B: the relay does not see what it is told", 2*len(followed), got)
	}
}
