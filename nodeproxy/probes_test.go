package nodeproxy

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// testWitness is a witness of one pod whose declared port is set by the test:
// zero while discovery does not list the pod at all.
type testWitness struct {
	*witness
	pod      atomic.Pointer[mesh.Workload]
	declares atomic.Uint32
	reports  atomic.Int64
}

func newTestWitness(t *testing.T, addr string) *testWitness {
	ctx, cancel := context.WithCancel(context.Background())
	w := &testWitness{}
	w.pod.Store(&mesh.Workload{UID: "x", Network: "west", Endpoint: mesh.EndpointIDOf("west", "x"), Addresses: []netip.Addr{netip.MustParseAddr(addr)}})
	c := DefaultConfig()
	c.Network = "west"
	declared := func(k health.Key) *mesh.Workload {
		if pod := w.pod.Load(); k.Endpoint == pod.Endpoint && k.Port != 0 && uint32(k.Port) == w.declares.Load() {
			return pod
		}
		return nil
	}
	w.witness = newWitness(ctx, c, declared, dialKernel(0), func(r ...healthstream.Target) { w.reports.Add(int64(len(r))) }, zerolog.Nop())
	t.Cleanup(func() {
		cancel()
		w.prober.Wait()
	})
	return w
}

// closedPort is a port of addr that nobody listens on.
func closedPort(t *testing.T, addr string) uint16 {
	t.Helper()
	l, err := net.Listen("tcp4", addr+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return addrPort(l.Addr()).Port()
}

func (w *testWitness) refused(t *testing.T, port uint16) {
	t.Helper()
	if c, reason, err := w.dial(t.Context(), w.pod.Load(), port, netip.Addr{}); err == nil || reason != header.ReasonRefused {
		t.Fatalf("connection %v, reason %q, %v; want refused", c, reason, err)
	}
}

func within(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for limit := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("%s: not within 30 s", what)
		}
	}
}

func TestPortsThatDiscoveryDoesNotDeclareAreNobodysHealth(t *testing.T) {
	w := newTestWitness(t, "127.99.5.1")
	w.declares.Store(1)
	for range 20 {
		w.refused(t, closedPort(t, "127.99.5.1"))
	}
	if n := w.prober.Active(); n != 0 || len(w.facts) != 0 || w.reports.Load() != 0 {
		t.Errorf("%d series of probes, %d facts, %d reports; want none", n, len(w.facts), w.reports.Load())
	}
}

func TestWhatIsNoLongerDeclaredIsAskedNoMore(t *testing.T) {
	w := newTestWitness(t, "127.99.5.2")
	port := closedPort(t, "127.99.5.2")
	w.declares.Store(uint32(port))
	w.refused(t, port)
	within(t, "ejected", func() bool { return w.reports.Load() == 1 })
	if w.prober.Active() != 1 || len(w.All()) != 1 {
		t.Fatalf("%d series, %d facts; want one each", w.prober.Active(), len(w.All()))
	}
	w.declares.Store(0)
	w.forget()
	within(t, "the series ends", func() bool { return w.prober.Active() == 0 })
	w.refused(t, port) // by a client that had asked before
	if n := len(w.All()); n != 0 || w.prober.Active() != 0 {
		t.Errorf("%d facts, %d series about a pod that is gone", n, w.prober.Active())
	}
}

func TestAPodThatMovedIsAskedWhereItIs(t *testing.T) {
	w := newTestWitness(t, "127.99.5.3")
	port := closedPort(t, "127.99.5.4")
	w.declares.Store(uint32(port))
	w.refused(t, port)
	within(t, "ejected", func() bool { return w.reports.Load() == 1 })
	moved := *w.pod.Load()
	moved.Addresses = []netip.Addr{netip.MustParseAddr("127.99.5.4")}
	w.pod.Store(&moved)
	l, err := net.Listen("tcp4", netip.AddrPortFrom(moved.Addresses[0], port).String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	within(t, "readmitted by its answer at the new address", func() bool { return w.reports.Load() == 2 })
}
