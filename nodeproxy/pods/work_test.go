package pods

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// Pods in which nothing ends, however many they are, take from others the places that these wait for no longer than one is
// patient, and once.
func TestPodsInWhichNothingEndsHoldUpNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w works
		end := make(chan struct{})
		stuck := func(i int) string { return fmt.Sprint("stuck-", i) }
		const n = 2 * workAtOnce
		hang := func() {
			for i := range n {
				if uid := stuck(i); !w.busy(uid) {
					w.begin(uid, "the look at its rules", podns.ID{Inode: uint64(i)}, func() { <-end })
				}
			}
		}
		quick := func() time.Duration {
			began, took := time.Now(), make(chan time.Duration)
			w.begin("shop", "entering its network namespace", podns.ID{Inode: n}, func() { took <- time.Since(began) })
			return <-took
		}
		hang()
		if took := quick(); took > 2*patience {
			t.Errorf("beside %d pods in which nothing ends another one is entered after %v", n, took)
		}
		time.Sleep(3 * patience)
		if took := quick(); took != 0 {
			t.Errorf("when these are known another one is entered after %v", took)
		}
		close(end)
		w.wait()
		end = make(chan struct{})
		hang() // all of them once more
		synctest.Wait()
		if took := quick(); took != 0 {
			t.Errorf("when they hang once more another one is entered after %v", took)
		}
		close(end)
		w.wait()
	})
}

// A pod that is slow is looked at less and less often, and is said to be slow until a minute after it was; while one is done
// nothing else is done in it.
func TestASlowPodIsToldOfAndLookedAtLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := atomic.Int32{}
		w := works{done: func() { ended.Add(1) }}
		look := func(takes time.Duration) {
			t.Helper()
			w.begin("shop", "the look at its rules", podns.ID{}, func() { time.Sleep(takes) })
			if !w.busy("shop") || w.busy("cart") || !w.in(podns.ID{}) || w.in(podns.ID{Inode: 1}) {
				t.Error("while a pod is looked at it is not busy, or another one is")
			}
			synctest.Wait()
		}
		look(patience / 2)
		w.wait()
		if got := w.problems(time.Now()); len(got) > 0 || w.rests("shop", time.Now()) {
			t.Errorf("a pod that takes half of what one is patient for is slow: %v", got)
		}
		var rests []time.Duration
		for range 12 {
			look(3 * time.Second)
			x := w.list()[0]
			time.Sleep(2 * time.Second)
			if got := w.problems(time.Now())["shop"]; !strings.Contains(got, "the look at its rules has taken 2s so far") || !w.over(x, time.Now()) {
				t.Errorf("while it lasts the problem is %q", got)
			}
			w.wait()
			if got := w.problems(time.Now())["shop"]; !strings.Contains(got, "the look at its rules took 3s") || !strings.Contains(got, slowRemedy) {
				t.Errorf("afterwards the problem is %q", got)
			}
			began := time.Now()
			for w.rests("shop", time.Now()) {
				time.Sleep(time.Millisecond)
			}
			rests = append(rests, time.Since(began))
		}
		if rests[0] > 0 || rests[1] < 3*time.Second || rests[1] > 5*time.Second || rests[len(rests)-1] < 30*time.Second || rests[len(rests)-1] > time.Minute {
			t.Errorf("it rests for %v", rests)
		}
		look(time.Millisecond)
		w.wait()
		if w.rests("shop", time.Now()) || len(w.problems(time.Now())) == 0 {
			t.Error("after one quick look it rests still, or nobody is told any more that it was slow")
		}
		time.Sleep(slowTold)
		if got := w.problems(time.Now()); len(got) > 0 {
			t.Errorf("a minute later it is still told of: %v", got)
		}
		look(time.Millisecond)
		w.wait()
		if w.rests("shop", time.Now()) || len(w.slows) > 0 {
			t.Error("a pod that has been quick for a minute is remembered as slow")
		}
		if n := ended.Load(); n != 15 {
			t.Errorf("of 15 things the end of %d was told", n)
		}
	})
}
