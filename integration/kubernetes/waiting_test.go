package kubernetes

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// callers is how many pods call at their start.
const callers = 20

// waits installs the CNI plugin by the chart, and has pods whose very first command is a call of the other network. It is
// the last thing done with a world: the plugin stays out of it again at its end.
func (w *realWorld) waits(t *testing.T) {
	east := w.nodes["east"]
	early := w.callAtStart(t, "early")
	t.Logf("without the plugin %d of %d pods fail with their first command", early, callers)
	set := fmt.Sprintf(" --set nodeProxy.cni.enabled=true,nodeProxy.cni.failurePolicy=Fail,nodeProxy.cni.binDir=%s/bin,nodeProxy.cni.confDir=%s/cni", east.dir, east.dir)
	w.does(t, "helm --kube-context east upgrade isthmus helm/isthmus --namespace isthmus-system --reuse-values"+set)
	w.settles(t, "east")
	conf := filepath.Join(east.dir, "cni", "10-pods.conflist")
	configured := func() bool {
		text, err := os.ReadFile(conf)
		w.must(err)
		time.Sleep(20 * time.Millisecond)
		return strings.Contains(string(text), "isthmus-cni")
	}
	eventually(t, 30*time.Second, "the plugin is configured", configured)
	time.Sleep(2 * time.Second) // containerd has read it: it says so nowhere
	if failed := w.callAtStart(t, "waits"); failed > 0 {
		t.Errorf("with the plugin %d of %d pods fail with their first command, want none", failed, callers)
	}
	w.does(t, "helm --kube-context east upgrade isthmus helm/isthmus --namespace isthmus-system --reuse-values --set nodeProxy.capture.scope=release")
	w.settles(t, "east")
	eventually(t, 30*time.Second, "the plugin is out of the configuration", func() bool { return !configured() })
}

// callAtStart runs pods whose only command is a call by name, one after the other, and returns how many have failed.
func (w *realWorld) callAtStart(t *testing.T, name string) (failed int) {
	t.Helper()
	n := w.nodes["east"]
	pods := n.CoreV1().Pods("demo")
	for i := range callers {
		_, err := pods.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", name, i)},
			Spec: corev1.PodSpec{ServiceAccountName: "shop", RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "call", Image: "docker.io/curlimages/curl:8.11.1", ImagePullPolicy: corev1.PullIfNotPresent,
				Command: []string{"curl", "--silent", "--show-error", "--max-time", "10", "http://hello.demo.mesh.internal:8080/"}}}}}, metav1.CreateOptions{})
		w.must(err)
		if i%5 == 4 { // a few at once, as a rollout
			eventually(t, 2*time.Minute, "pods "+name+" have ended", func() bool {
				time.Sleep(100 * time.Millisecond)
				for _, p := range n.list(t, "demo", name+"-") {
					if p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
						return false
					}
				}
				return true
			})
		}
	}
	shown := false
	for _, p := range n.list(t, "demo", name+"-") {
		if p.Status.Phase == corev1.PodFailed {
			failed++
			if !shown {
				out, _ := w.shell(t, "kubectl --context east --namespace demo logs "+p.Name)
				t.Logf("%s, %s: %s", p.Name, p.UID, out)
				out, _ = w.shell(t, "kubectl --context east --namespace isthmus-system logs --container nodeproxy daemonset/isthmus-nodeproxy | grep "+string(p.UID))
				t.Log(out)
				shown = true
			}
		}
	}
	return failed
}
