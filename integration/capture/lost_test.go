//go:build linux

package capture

import (
	"bufio"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// offer has a pod call an address 100 times a second for a while, and returns when and how each call went.
func (w *world) offer(pod, address string, during time.Duration) (calls []offered) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	for now := began; now.Sub(began) < during; now = <-tick.C {
		wg.Go(func() {
			start := time.Now()
			text, err := w.greeted(pod, address)
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, offered{start.Sub(began), time.Since(start), text, err})
		})
	}
	wg.Wait()
	slices.SortFunc(calls, func(a, b offered) int { return int(a.at - b.at) })
	return calls
}

// greeted connects from a pod, hears the greeting and ends: nothing is said that may have been read.
func (w *world) greeted(pod, address string) (string, error) {
	c, err := w.Dial(pod, address)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return bufio.NewReader(c).ReadString('\n')
}

type offered struct {
	at, took time.Duration
	answer   string
	err      error
}

// The third of three pods runs on a node that vanishes with its pod and its node proxy: no packet comes back, nothing
// is refused.
func TestANodeIsLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const node, pod = "node-c", "hello-3"
	for host, a := range map[string]string{node: "10.71.2.2", pod: "10.71.2.13"} {
		must(t, w.Host("all", host, a))
		must(t, w.IP(host, "-6 route add default dev eth0"))
	}
	w.serve(t, pod)
	w.write(t, "mesh.yaml", mesh+"  - {uid: hello-3, namespace: demo, serviceAccount: hello, network: net-b, node: node-c, addresses: [10.71.2.13], services: [hello.demo.svc.cluster.local]}\n")
	w.write(t, node+".yaml", strings.Replace(w.node("b", admin, pod), "node: node-b", "node: "+node, 1))
	w.start(t, node)
	w.until(t, 20*time.Second, "shop-1", hello+":80", func(text string, err error) bool { return err == nil && strings.HasPrefix(text, pod) })

	const lostAt, back = 2 * time.Second, 7 * time.Second
	var links sync.WaitGroup
	turn := func(after time.Duration, to string) {
		links.Go(func() {
			time.Sleep(after)
			for _, host := range []string{node, pod} {
				if err := w.IP(host, "link set eth0 "+to); err != nil {
					t.Error(err)
				}
			}
		})
	}
	turn(lostAt, "down")
	turn(back, "up")
	calls := w.offer("shop-1", hello+":80", 12*time.Second)
	links.Wait()

	var failed, slow int
	var last, most time.Duration
	for _, c := range calls {
		most = max(most, c.took)
		if c.err != nil {
			failed++
			t.Logf("begun %v after the loss, after %v: %v", c.at-lostAt, c.took, c.err)
		} else if c.took > 500*time.Millisecond {
			slow++
			last = c.at - lostAt
		}
	}
	t.Logf("%d calls, %d failed, %d took over 500 ms, the last of these begun %v after the loss; %v the longest", len(calls), failed, slow, last, most)
	if failed > 0 || most > 16*time.Second {
		t.Errorf("%d of %d calls failed, and one took %v: want none, and less than 16 s, as in the drill blackhole", failed, len(calls), most)
	}
	if last > 6*time.Second {
		t.Errorf("a call that began %v after the loss took over 500 ms", last)
	}
}
