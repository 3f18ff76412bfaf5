package owned

import (
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A node that registers anew with the taint loses it though its node proxy has run on all the while, after
// some time; one that is another machine keeps it until the node proxy is ready there; and with a new pod
// it loses it at once.
func TestAPodOlderThanItsNodeCountsWhenItStaysReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(5, 6))
		for range 200 {
			s := (&Client{}).Startup("isthmus.io/agent-not-ready", "isthmus-system", "nodeproxy")
			pod := func(age, ready time.Duration) {
				p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "nodeproxy-1", CreationTimestamp: metav1.NewTime(time.Now().Add(-age))}, Spec: corev1.PodSpec{NodeName: "n1"}}
				c := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Now()}
				if ready >= 0 {
					c.Status, c.LastTransitionTime = corev1.ConditionTrue, metav1.NewTime(time.Now().Add(-ready))
				}
				p.Status.Conditions = []corev1.PodCondition{c}
				s.put(p, false)
			}
			created := metav1.Now()
			version := 0
			node := func(uid string) {
				version++
				s.put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: types.UID(uid), CreationTimestamp: created, ResourceVersion: string(rune('0' + version%10))}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "isthmus.io/agent-not-ready"}}}}, false)
			}
			ready := func() bool {
				got, again := s.Ready(time.Now())
				is := slices.Equal(got, []string{"n1"})
				if len(got) > 0 && !is || again < 0 || again > olderFor || is && again != 0 {
					t.Fatalf("ready are %v, ask again after %v", got, again)
				}
				return is
			}
			pod(time.Hour, 30*time.Minute)
			node("a")
			if ready() {
				t.Fatal("a pod that was ready before its node was there counts at once")
			}
			wait := time.Duration(rng.Int64N(int64(olderFor)))
			time.Sleep(wait)
			node("a") // its heartbeat
			if ready() {
				t.Fatalf("it counts after %v", wait)
			}
			switch rng.IntN(4) {
			case 0: // the same machine
				if _, again := s.Ready(time.Now()); again != olderFor-wait {
					t.Fatalf("ask again after %v, want %v", again, olderFor-wait)
				}
				time.Sleep(olderFor - wait)
				if !ready() {
					t.Fatal("the pod has stayed ready, and the node keeps its taint")
				}
			case 1: // another machine, where the pod begins anew
				pod(time.Hour, -1)
				time.Sleep(2 * olderFor)
				if ready() {
					t.Fatal("a pod that is not ready counts")
				}
				pod(time.Hour, 0)
				if !ready() {
					t.Fatal("the pod is ready on this node, and does not count")
				}
			case 2: // another node once more
				created = metav1.NewTime(time.Now().Add(time.Second))
				node("b")
				time.Sleep(olderFor - 1)
				if ready() {
					t.Fatal("the time of the node before counts")
				}
			case 3:
				time.Sleep(time.Second)
				pod(0, 0)
				if !ready() {
					t.Fatal("a new pod does not count")
				}
			}
		}
	})
}
