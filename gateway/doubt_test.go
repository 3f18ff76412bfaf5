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

	"github.com/isthmus-mesh/isthmus/gateway/picker"
	"github.com/isthmus-mesh/isthmus/internal/admission"
	"github.com/isthmus-mesh/isthmus/internal/overload"
	"github.com/isthmus-mesh/isthmus/internal/reprobe"
	"github.com/isthmus-mesh/isthmus/internal/retrybudget"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/route"
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
	g.backends = newBackends("west", cfg.OutlierDetection, nothingWitnessed, reprobe.New[mesh.EndpointID](ctx, hopSchedule), l.ask, l.listed, g.log, func(*mesh.Workload) {})
	defer g.backends.prober.Wait()
	defer cancel()
	doubted := g.backends.Doubts
	slow := func(client string, pod int) {
		w := podAt(pod, fmt.Sprintf("10.1.2.%d", pod))
		l.set(w)
		f := &forwarding{client: admission.Client{Identity: client}, lease: lease{Choice: picker.Choice{Pod: w}}, replayed: replay{complete: true, sent: time.Now()}}
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

// A pod that owes an answer is kept free while another does not. When all owe one, a
// client that asked for it gets it: elsewhere it would wait as long, and without a session
// to keep it would cost a handshake per connection.
func TestAPinnedPodThatIsSlowLikeAllOthersIsGiven(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	l := &listing{pods: map[mesh.EndpointID]*mesh.Workload{}, asked: map[netip.Addr]int{}}
	b := newBackends("west", DefaultConfig().OutlierDetection, nothingWitnessed, reprobe.New[mesh.EndpointID](ctx, hopSchedule), l.ask, l.listed, zerolog.Nop(), func(*mesh.Workload) {})
	defer b.prober.Wait()
	defer cancel()
	x := route.Exported{Service: &mesh.Service{Hostname: "a"}}
	for i := range 3 {
		w := podAt(i, fmt.Sprintf("10.1.2.%d", i))
		l.set(w)
		x.Members = append(x.Members, w)
	}
	first, svc := x.Members[0].Endpoint, b.Offer(x, time.Now())
	chosen := func() bool {
		now := time.Now()
		l, ok := b.choose(svc, picker.Request{Pin: first}, now)
		if ok && l.Pod.Endpoint != first {
			t.Fatalf("chosen %s, pinned to %s", l.Pod.UID, first)
		}
		return ok
	}
	owes := func() bool { return b.Owes(svc, first, time.Now()) != nil }
	doubt := func(w *mesh.Workload) { b.Doubt(w.Endpoint, time.Now()) }
	if !chosen() || owes() {
		t.Error("a pod that nothing is held against is refused")
	}
	for i, w := range x.Members {
		doubt(w)
		if got, want := chosen(), i == len(x.Members)-1; got != want || !owes() {
			t.Errorf("%d of %d pods owe an answer: given %v, want %v; told to owe one %v, want true", i+1, len(x.Members), got, want, owes())
		}
	}
	for range 100 { // until it is ejected
		b.Asked(x.Members[0], picker.Broken, "identity", time.Now(), time.Now())
	}
	if chosen() || owes() {
		t.Error("a pod that is out is given, or told to be slow only")
	}
}
