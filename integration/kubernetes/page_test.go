package kubernetes

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// commands returns the lines of a page's fenced blocks of shell.
func commands(t *testing.T, page string) (out []string) {
	t.Helper()
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	inside := false
	for line := range strings.Lines(string(b)) {
		switch line = strings.TrimSuffix(line, "\n"); {
		case line == "```sh":
			inside = true
		case line == "```":
			inside = false
		case inside:
			out = append(out, line)
		}
	}
	return out
}

// nodes play the nodes of a cluster until the test ends: each pod of the mesh's namespace
// is running and ready.
func (c *cluster) nodes(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	t.Cleanup(func() { stop(); <-done })
	go func() {
		defer close(done)
		pods := c.CoreV1().Pods("isthmus-system")
		for tick := time.NewTicker(200 * time.Millisecond); ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			list, err := pods.List(ctx, metav1.ListOptions{})
			if err != nil {
				continue
			}
			for i, p := range list.Items {
				if p.Spec.NodeName == "" {
					pods.Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: p.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: "node-1"}}, metav1.CreateOptions{})
				} else if p.DeletionTimestamp != nil {
					none := int64(0)
					pods.Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &none})
				} else if p.Status.Phase != corev1.PodRunning {
					patch := `{"status":{"phase":"Running","podIP":"10.2.0.` + string(rune('1'+i)) + `","podIPs":[{"ip":"10.2.0.` + string(rune('1'+i)) + `"}],"conditions":[{"type":"Ready","status":"True"}]}}`
					pods.Patch(ctx, p.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
				}
			}
		}
	}()
}

func TestEachCommandOfTheKubernetesPage(t *testing.T) {
	helm := os.Getenv("HELM")
	if helm == "" {
		t.Skip("NOT RUN: HELM names no helm: run `make test-kubernetes`")
	}
	clusters := map[string]*cluster{"east": startClusterWith(t, "deployment-controller,replicaset-controller"), "west": startClusterWith(t, "deployment-controller,replicaset-controller")}
	for _, c := range clusters {
		c.apply(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "demo"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}},
			service("hello", nil, corev1.ServicePort{Port: 80}))
		c.nodes(t)
	}
	o := newOperator(t, clusters)
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"bin/helm": helm, "helm": filepath.Join(root, "helm")} {
		if err := os.Symlink(to, filepath.Join(o.dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	lines := commands(t, "../../docs/kubernetes.md")
	setUp := 0
	for i, line := range lines {
		if strings.HasPrefix(line, "isthmus unlink") {
			setUp = i
		}
	}
	if setUp == 0 || setUp > 10 {
		t.Errorf("the page has %d commands until a service is global, want at most 10", setUp)
	}
	for i, line := range lines {
		if strings.HasPrefix(line, "isthmus link") {
			for _, c := range clusters {
				c.lends(t, "203.0.113.7")
			}
		}
		began := time.Now()
		out := o.does(t, line)
		t.Logf("%.1f s: %s", time.Since(began).Seconds(), line)
		switch {
		case strings.HasPrefix(line, "isthmus check"):
			t.Log(out)
			if !strings.Contains(out, " 0 !, 0 ✗") {
				t.Errorf("check is not content:\n%s", out)
			}
		case i == setUp-1:
			s, err := clusters["west"].CoreV1().Services("demo").Get(t.Context(), "hello", metav1.GetOptions{})
			if err != nil || s.Labels["istio.io/global"] != "true" {
				t.Errorf("the service is %+v (%v), want a global one", s, err)
			}
		}
	}
	for name, c := range clusters {
		if n := c.known(t); len(n) != 0 {
			t.Errorf("undone, %s still knows %v", name, n)
		}
	}
}

// lends gives the gateway's Service that is there an address, as a load balancer does.
func (c *cluster) lends(t *testing.T, ip string) {
	t.Helper()
	patch := `{"status":{"loadBalancer":{"ingress":[{"ip":"` + ip + `"}]}}}`
	if _, err := c.CoreV1().Services("isthmus-system").Patch(t.Context(), "isthmus-gateway", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
}
