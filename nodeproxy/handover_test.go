//go:build linux

package nodeproxy_test

import (
	"sync"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// A node proxy is replaced by another one with the same listeners, at each end in turn: no connection by a static listener
// or by SOCKS fails, and each is carried by one process.
func TestStaticListenersHandOver(t *testing.T) {
	p := newPair(t, 1)
	p.pods[0].App(8080)
	p.Start()
	running := map[string]*meshtest.Process{"east": p.client(), "west": p.node(1)}
	static := meshtest.Flow(t, p.listen.hello, 4)
	socks := socksFlow(p.shop, 4)
	for range 3 {
		for network, old := range running {
			static.AwaitMore(t, 40)
			next := p.StartNode(network, network+"-1")
			next.AwaitReady(t)
			next.Log.Await(t, "ready")
			static.AwaitMore(t, 40)
			old.Stop(t)
			running[network] = next
		}
	}
	static.AwaitMore(t, 40)
	if answered, failed := static.Stop(); len(failed) > 0 {
		t.Errorf("static listener: %d failed and %v answered, the first: %v", len(failed), answered, failed[0])
	}
	if n, failed := socks(); len(failed) > 0 || n == 0 {
		t.Errorf("SOCKS: %d answered, %d failed: %v", n, len(failed), failed)
	}
}

// socksFlow makes connections by a SOCKS listener until the returned function is called, which returns how many were
// answered and the errors of the others.
func socksFlow(pod *meshtest.Pod, workers int) func() (answered int, failed []error) {
	var mu sync.Mutex
	var done sync.WaitGroup
	var answered int
	var failed []error
	stop := make(chan struct{})
	for range workers {
		done.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(2 * time.Millisecond):
				}
				c, err := pod.Connect(hello)
				if err == nil {
					_, err = meshtest.Ask(c, "1")
					c.Close()
				}
				mu.Lock()
				if err != nil {
					failed = append(failed, err)
				} else {
					answered++
				}
				mu.Unlock()
			}
		})
	}
	return func() (int, []error) {
		close(stop)
		done.Wait()
		return answered, failed
	}
}
