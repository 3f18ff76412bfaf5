package kubernetes

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// nodeLost: a node of the other network vanishes, with its pods and its node proxy: no packet comes back, nothing is
// refused, and the API server hears of it 40 s later. Who was being answered from there loses that.
func (w *realWorld) nodeLost(t *testing.T) {
	const network = "west"
	head, host := w.nodes[other(network)], other(network)+"-2"
	w.must(w.Host(segment, host, "10.71.1.12"))
	second := head.join(t, w.program, host, "10.71.1.12")
	second.load(t, w.loaded)
	second.awaitReady(t)
	w.settles(t, other(network))
	w.does(t, "kubectl --context "+other(network)+" --namespace demo scale deployment/echo-"+other(network)+" --replicas 6")
	w.settled(t, other(network))
	there := map[string]bool{} // pods of the node, as load names them
	for _, p := range head.list(t, "demo", "echo-") {
		if p.Spec.NodeName == host {
			there[p.Name] = true
		}
	}
	if len(there) < 2 {
		t.Fatalf("%d pods of echo run on %s, want some", len(there), host)
	}
	eventually(t, time.Minute, "pods of "+host+" answer", func() bool {
		return len(w.load(t, network, "caller", echo(network), 50, time.Second).end().where(func(x outcome) bool { return x.of(there) })) > 5
	})
	var lost time.Time
	after := w.during(t, network, 20*time.Second, func() {
		lost = time.Now()
		w.must(w.IP(host, "link set eth0 down"))
		second.end()
	})
	begun := after.where(func(x outcome) bool { return x.At.After(lost) })
	slow := begun.where(func(x outcome) bool { return x.took() > 500*time.Millisecond })
	if len(slow) > 0 {
		t.Logf("of %d begun since, %d took more than 500 ms; the last of them was begun %.1f s after the loss", len(begun), len(slow), slow[len(slow)-1].At.Sub(lost).Seconds())
		if last := slow[len(slow)-1].At.Sub(lost); last > 6*time.Second {
			t.Errorf("a call that began %v after the loss took over 500 ms", last)
		}
	}
	// Calls speak first, and their request goes along with the CONNECT: nobody knows whether a lost pod has read it, so
	// that it is not sent to another one. Half of the pods are lost, and their session is doubted within 0.1 s.
	if f := after.failed(); len(f) > rate/5 {
		t.Errorf("from %s: %v", network, f)
	} else if len(f) > 0 && f[len(f)-1].At.After(lost.Add(500*time.Millisecond)) {
		t.Errorf("a call that was begun %v after the loss failed: %v", f[len(f)-1].At.Sub(lost), f)
	}
	for _, x := range begun.where(func(x outcome) bool { return x.At.After(lost.Add(time.Second)) }) {
		if x.of(there) {
			t.Errorf("a pod of the lost node has answered: %v", x)
		}
	}
	w.must(head.CoreV1().Nodes().Delete(t.Context(), host, metav1.DeleteOptions{}))
	w.does(t, fmt.Sprintf("kubectl --context %s --namespace demo scale deployment/echo-%[1]s --replicas 3", other(network)))
	eventually(t, 2*time.Minute, "pods of the lost node are gone" /* collected after 40 s, looked for each 20 s */, func() bool {
		time.Sleep(100 * time.Millisecond)
		for _, p := range head.list(t, "demo", "echo-") {
			if there[p.Name] {
				return false
			}
		}
		return true
	})
}

// of reports whether one of these pods has answered.
func (x outcome) of(pods map[string]bool) bool {
	f := strings.Fields(x.Answer) // hello from echo-west-76bbc5c8bd-2km94 to …
	return x.Error == "" && len(f) > 2 && pods[f[2]]
}
