package kubernetes

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/isthmus-mesh/isthmus/controller"
)

const agentTaint = "isthmus.io/agent-not-ready"

// TestAStartupTaintIsRemovedWhenTheNodeProxyIsReady: not before, from no other node, and
// nothing else of the node.
func TestAStartupTaintIsRemovedWhenTheNodeProxyIsReady(t *testing.T) {
	o := openOffice(t)
	o.open()
	taints := func(node string) string {
		n, err := o.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		out := ""
		for _, x := range n.Spec.Taints {
			out += fmt.Sprintf("%s=%s:%s ", x.Key, x.Value, x.Effect)
		}
		return out
	}
	node := func(name string) {
		o.cluster.apply(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"of": "somebody"}}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{
			{Key: "example.com/gpu", Value: "a", Effect: corev1.TaintEffectNoSchedule}, {Key: agentTaint, Effect: corev1.TaintEffectNoSchedule}, {Key: agentTaint, Value: "x", Effect: corev1.TaintEffectNoExecute}}}})
	}
	pod := func(name, node, account string, ready corev1.ConditionStatus) {
		pods := o.CoreV1().Pods("isthmus-system")
		p, err := pods.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			o.cluster.apply(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "isthmus-system", Name: name},
				Spec: corev1.PodSpec{NodeName: node, ServiceAccountName: account, Containers: []corev1.Container{{Name: "a", Image: "a"}}}})
			p, err = pods.Get(t.Context(), name, metav1.GetOptions{})
		}
		if err == nil {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
			_, err = pods.UpdateStatus(t.Context(), p, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	pod("nodeproxy-old", "node-4", "nodeproxy", corev1.ConditionTrue) // of a node that was, and is made anew
	made := time.Now()
	eventually(t, 5*time.Second, "times of creation, which are whole seconds, differ", func() bool { return time.Since(made) > 1100*time.Millisecond })
	for i := range 4 {
		node(fmt.Sprint("node-", i+1))
	}
	pod("nodeproxy-1", "node-1", "nodeproxy", corev1.ConditionFalse)
	pod("nodeproxy-2", "node-2", "nodeproxy", corev1.ConditionTrue)
	pod("other-3", "node-3", "other", corev1.ConditionTrue)
	before := taints("node-1")
	o.hire("controller-1", func(c *controller.Config) { c.StartupTaint = agentTaint })
	left := strings.ReplaceAll(before, agentTaint+"=:NoSchedule "+agentTaint+"=x:NoExecute ", "") // with the one that the API server gives new nodes
	if left == before {
		t.Fatalf("node-1 has %q", before)
	}
	took := eventually(t, 20*time.Second, "the taint of node-2 is removed", func() bool { return taints("node-2") == left })
	t.Logf("start → taint removed: %v", took.Round(time.Millisecond))
	if got := taints("node-1"); got != before {
		t.Errorf("before its node proxy is ready node-1 has %q; before %q", got, before)
	}
	pod("nodeproxy-1", "node-1", "nodeproxy", corev1.ConditionTrue)
	took = eventually(t, 10*time.Second, "the taint of node-1 is removed", func() bool { return taints("node-1") == left })
	t.Logf("ready → taint removed: %v", took.Round(time.Millisecond))
	pod("nodeproxy-1", "node-1", "nodeproxy", corev1.ConditionFalse)
	pod("nodeproxy-2", "node-2", "nodeproxy", corev1.ConditionFalse)
	node("node-5") // when this one is done, what was before it would be as well
	pod("nodeproxy-5", "node-5", "nodeproxy", corev1.ConditionTrue)
	eventually(t, 10*time.Second, "the taint of node-5 is removed", func() bool { return taints("node-5") == left })
	for n, want := range map[string]string{"node-1": left, "node-2": left, "node-3": before, "node-4": before} {
		if got := taints(n); got != want {
			t.Errorf("%s has %q; want %q", n, got, want)
		}
	}
	n, err := o.CoreV1().Nodes().Get(t.Context(), "node-1", metav1.GetOptions{})
	if err != nil || n.Labels["of"] != "somebody" || len(n.Annotations) != 0 {
		t.Errorf("node-1 is %v, %v; want nothing changed but its taints", n.ObjectMeta, err)
	}
}
