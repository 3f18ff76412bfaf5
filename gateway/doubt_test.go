package gateway

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/internal/admission"
	"github.com/isthmus-mesh/isthmus/internal/overload"
	"github.com/isthmus-mesh/isthmus/internal/reprobe"
	"github.com/isthmus-mesh/isthmus/internal/retrybudget"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// silent is a connection to a pod that says nothing.
func silent(t *testing.T) *net.TCPConn {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	conn, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn.(*net.TCPConn)
}

// One client's hellos keep others away from no more pods than it has a budget for; the
// others are asked all the same.
func TestOneClientCannotRaiseDoubtsWithoutBound(t *testing.T) {
	const bound, pods = 3, 10
	ctx, cancel := context.WithCancel(t.Context())
	l := &listing{pods: map[mesh.EndpointID]*mesh.Workload{}, asked: map[netip.Addr]int{}}
	cfg := DefaultConfig()
	cfg.Timeouts.Answer = 5 * time.Millisecond
	g := &Gateway{cfg: cfg, log: zerolog.New(io.Discard), load: overload.New(prometheus.NewRegistry()),
		doubts: retrybudget.New(bound, 0), moves: retrybudget.New(bound, 0)}
	g.backends = newBackends("west", cfg.OutlierDetection, peer.NewLedger(federation.DefaultTTL), reprobe.New[mesh.EndpointID](ctx, hopSchedule), l.ask, l.listed, g.log, func(*mesh.Workload) {})
	defer g.backends.prober.Wait()
	defer cancel()
	doubted := func() int {
		g.backends.mu.Lock()
		defer g.backends.mu.Unlock()
		return len(g.backends.doubts)
	}
	slow := func(client string, pod int) {
		w := podAt(pod, fmt.Sprintf("10.1.2.%d", pod))
		l.set(w)
		f := &forwarding{client: admission.Client{Identity: client}, lease: lease{workload: w}, replayed: replay{complete: true, sent: time.Now()}}
		if err := g.awaitAnswer(ctx, f, silent(t)); !isTimeout(err) {
			t.Fatalf("awaitAnswer: %v, want a timeout", err)
		}
	}
	for i := range pods {
		slow("hostile", i)
	}
	if n := doubted(); n != bound {
		t.Errorf("one client keeps others away from %d pods, want %d", n, bound)
	}
	for limit := time.Now().Add(20 * time.Second); l.total() < pods && time.Now().Before(limit); {
		time.Sleep(time.Millisecond)
	}
	if n := l.total(); n < pods {
		t.Errorf("%d questions to %d pods that are slow", n, pods)
	}
	slow("another", pods)
	if n := doubted(); n != bound+1 {
		t.Errorf("%d pods are doubted after another client's hello, want %d", n, bound+1)
	}
}
