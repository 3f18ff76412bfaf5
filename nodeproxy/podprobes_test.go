package nodeproxy

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/internal/simnet"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/picker"
)

// near is a distant world whose pods are on the client's own network, on another node.
type near struct {
	*distant
	silent atomic.Bool  // nothing comes back from where nobody listens: its node is lost
	dials  atomic.Int64 // of pods where nobody listens
	conns  int
}

// newNear returns one in which the first n pods are served.
func newNear(pods, n int) *near {
	w := &near{distant: newDistant(pods, 0, time.Millisecond)}
	w.client.self = torturedID("node")
	for _, pod := range w.pods {
		pod.Network, pod.Node, pod.UID = "east", "east-2", "east/default/"+pod.Name
		pod.Endpoint = mesh.EndpointIDOf("east", pod.UID)
	}
	dial := w.client.dialHop
	w.client.dialHop = func(ctx context.Context, addr netip.AddrPort, timeout time.Duration) (net.Conn, error) {
		w.mu.Lock()
		listens := w.listeners[addr.String()] != nil
		w.mu.Unlock()
		if listens {
			return dial(ctx, addr, timeout)
		}
		w.dials.Add(1)
		if !w.silent.Load() {
			return dial(ctx, addr, timeout)
		}
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		<-ctx.Done()
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
	}
	for _, pod := range w.pods[:n] {
		w.up(pod, nil)
	}
	w.discover()
	return w
}

// up has the node proxy of pod listen, and serve with handler, or as a pod does.
func (w *near) up(pod *mesh.Workload, handler func(*simnet.Conn)) {
	addr := hostPort(pod)
	l, err := w.net.Listen(addr)
	if err != nil {
		panic(err)
	}
	if handler == nil {
		handler = func(c *simnet.Conn) { w.serve(pod, c) }
	}
	w.mu.Lock()
	w.listeners[addr] = l
	w.mu.Unlock()
	w.work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			w.work.Go(func() { handler(conn.(*simnet.Conn)) })
		}
	})
}

// down stops the node proxy of pod, and ends its connections.
func (w *near) down(pod *mesh.Workload) {
	w.lose(hostPort(pod))
	w.mu.Lock()
	delete(w.listeners, hostPort(pod))
	w.mu.Unlock()
	synctest.Wait()
}

func (w *near) belief(pod *mesh.Workload) picker.Belief {
	return w.client.view.PodBelief(health.Key{Endpoint: pod.Endpoint, Port: 8080}, time.Now())
}

func (w *near) isOut(pod *mesh.Workload) bool { return w.belief(pod).Phase != health.Healthy }

func (w *near) answered(pod *mesh.Workload) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.got[pod.Endpoint]
}

// traffic makes a connection every so often for a time, or until ok says so; it returns how
// long that took and how many failed.
func (w *near) traffic(every, lasts time.Duration, ok func() bool) (took time.Duration, failed int) {
	began := time.Now()
	for time.Since(began) < lasts && (ok == nil || !ok()) {
		if _, err := w.connect(w.conns, 0); err != nil {
			failed++
		}
		w.conns++
		time.Sleep(every)
	}
	return time.Since(began), failed
}

// A node proxy that restarts is back in a second, and so are the pods of its node.
func TestAPodWhoseNodeProxyRestartsIsUsedWhenThatIsBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newNear(2, 2)
		defer w.end()
		pod := w.pods[0]
		w.traffic(20*time.Millisecond, time.Second, nil)
		for n, most := range []time.Duration{2100 * time.Millisecond, 3500 * time.Millisecond} { // of the second in a row an answer is held back for a second
			w.down(pod)
			if _, failed := w.traffic(20*time.Millisecond, time.Second, nil); failed > 0 || !w.isOut(pod) {
				t.Fatalf("restart %d: %d connections failed, out %v; want none, and the pod out", n, failed, w.isOut(pod))
			}
			w.up(pod, nil)
			before := w.answered(pod)
			if took, failed := w.traffic(20*time.Millisecond, 2*time.Minute, func() bool { return w.answered(pod) > before }); took > most || failed > 0 {
				t.Errorf("restart %d: used %v after its node proxy is back, %d connections failed; want at most %v, and none", n, took, failed, most)
			}
		}
		time.Sleep(5 * time.Second)
		if n := w.client.podProbes.Active(); n != 0 {
			t.Errorf("%d pods are asked although all answer", n)
		}
	})
}

// Discovery may list a pod before its node proxy listens for it.
func TestANewPodIsUsedAsSoonAsItsNodeProxyListens(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newNear(2, 1)
		defer w.end()
		pod := w.pods[1]
		if _, failed := w.traffic(time.Millisecond, 50*time.Millisecond, nil); failed > 0 || !w.isOut(pod) {
			t.Fatalf("%d connections failed, out %v; want none, and the pod that nobody listens for out", failed, w.isOut(pod))
		}
		w.up(pod, nil)
		if took, _ := w.traffic(time.Millisecond, 2*time.Minute, func() bool { return w.answered(pod) > 0 }); took > 250*time.Millisecond {
			t.Errorf("used %v after its node proxy listens; want at most 250 ms", took)
		}
	})
}

// All pods of a lost node are asked, at a bounded rate, until discovery lists them no more.
func TestTheQuestionsToPodsOfALostNodeAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const lost = 250
		w := newNear(lost+1, 1)
		defer w.end()
		w.silent.Store(true)
		for i := range 600 { // so that each is met
			w.work.Go(func() { w.connect(i, 0) })
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(20 * time.Second)
		asked := w.client.podProbes.Active()
		if asked < lost*9/10 {
			t.Fatalf("%d of %d pods are asked", asked, lost)
		}
		before := w.dials.Load()
		time.Sleep(time.Minute)
		if n := int(w.dials.Load() - before); n < asked*5 || n > 60*100 {
			t.Errorf("%d questions to %d pods in a minute; want at least one to each in twelve seconds, and at most a hundred a second", n, asked)
		}
		w.mu.Lock()
		for _, pod := range w.pods[1:] {
			w.out[pod.Endpoint] = true
		}
		w.mu.Unlock()
		w.discover()
		synctest.Wait()
		before = w.dials.Load()
		time.Sleep(time.Minute)
		if n := w.dials.Load() - before; n != 0 || w.client.podProbes.Active() != 0 {
			t.Errorf("%d questions to pods that discovery lists no more, %d series", n, w.client.podProbes.Active())
		}
	})
}

// A node proxy may answer each question and serve no connection.
func TestAPodThatAnswersQuestionsAloneIsTakenBackLessAndLess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newNear(2, 1)
		defer w.end()
		pod := w.pods[1]
		w.up(pod, func(c *simnet.Conn) {
			if t, err := hbone.ServerTLS(w.ctx, c, w.client.ids.ServerTLS(pod.Identity, nil, "h2")); err == nil {
				hbone.NewServer(t, hbone.DefaultConfig(), func(context.Context, *hbone.Incoming) { c.Cut() }).Serve(w.ctx)
			}
		})
		back := func() float64 {
			return testutil.ToFloat64(w.client.metrics.edges.WithLabelValues(string(picker.ScopeEndpoint), "readmitted"))
		}
		w.traffic(500*time.Millisecond, 5*time.Minute, nil)
		if n := back(); n < 3 || n > 12 {
			t.Errorf("taken back %v times in five minutes; want it to be tried, and at most 12 times", n)
		}
		before := back()
		w.traffic(500*time.Millisecond, 5*time.Minute, nil)
		if n := back() - before; n > 6 {
			t.Errorf("taken back %v times in the five minutes after; want one a minute at most", n)
		}
	})
}

// What an application does is for its witness to say: its node proxy has answered already.
func TestAPodWhoseApplicationRefusesIsNotAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newNear(2, 2)
		defer w.end()
		pod := w.pods[0]
		w.refuse = func(p *mesh.Workload) (int, hbone.Header) {
			if p != pod {
				return 0, nil
			}
			return 503, hbone.Header{header.NameReason: string(header.ReasonRefused)}
		}
		w.traffic(20*time.Millisecond, time.Minute, func() bool { return w.isOut(pod) })
		for range 100 {
			w.traffic(400*time.Millisecond, 400*time.Millisecond, nil)
			if n := w.client.podProbes.Active(); n != 0 || !w.isOut(pod) {
				t.Fatalf("%d pods are asked, out %v; want none, and the pod out", n, w.isOut(pod))
			}
		}
	})
}

// A question is evidence like a connection, unless this process was late itself.
func TestAQuestionThatWasLateByOurDoingSaysNothingOfAPod(t *testing.T) {
	for late, want := range map[bool]int{false: 2, true: 1} {
		synctest.Test(t, func(t *testing.T) {
			w := newNear(2, 1)
			defer w.end()
			pod := w.pods[1]
			dial := w.client.dialHop
			var met atomic.Bool
			w.client.dialHop = func(ctx context.Context, addr netip.AddrPort, timeout time.Duration) (net.Conn, error) {
				if addr.String() == hostPort(pod) && met.CompareAndSwap(false, true) {
					return nil, fmt.Errorf("dial %s: %w", addr, syscall.ECONNREFUSED)
				}
				return dial(ctx, addr, timeout)
			}
			w.client.late = func(time.Time) bool { return late }
			w.silent.Store(true)
			w.traffic(0, time.Minute, met.Load)
			time.Sleep(2500 * time.Millisecond)
			if b := w.belief(pod); b.Consecutive != want || b.Phase == health.Healthy != late {
				t.Errorf("late %v: %d failures count, %v; want %d", late, b.Consecutive, b.Phase, want)
			}
		})
	}
}

func TestNoPodIsAskedWithoutOutlierDetection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newNear(2, 1)
		defer w.end()
		w.client.view.scope = ScopeNone
		w.traffic(10*time.Millisecond, time.Second, nil)
		if n := w.client.podProbes.Active(); n != 0 {
			t.Errorf("%d pods are asked; want none", n)
		}
	})
}
