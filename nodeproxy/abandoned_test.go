package nodeproxy

import (
	"context"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/health"
)

// Whoever withdraws a connect keeps nobody from finding out that the application hangs, as
// soon as without that; and one slow connect of an application that answers is nobody's
// health.
func TestWithdrawnConnectsCountIfTheApplicationHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const port = 8080
		w := newTestWitness(t, "10.0.0.1")
		w.declares.Store(port)
		k := health.Key{Endpoint: w.pod.Load().Endpoint, Port: port}
		var hangs atomic.Bool
		w.connect = func(ctx context.Context, _ netip.AddrPort, timeout time.Duration) (net.Conn, error) {
			if !hangs.Load() {
				a, b := net.Pipe()
				b.Close()
				return a, nil
			}
			ctx, cancel := context.WithTimeoutCause(ctx, timeout, os.ErrDeadlineExceeded)
			defer cancel()
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}
		withdraws := func(after time.Duration) {
			t.Helper()
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			time.AfterFunc(after, func() { cancel(hbone.ErrWithdrawn) })
			if _, reason, err := w.dial(ctx, w.pod.Load(), port, netip.Addr{}); err == nil || reason != "" {
				t.Fatalf("reason %q, %v; want nobody's", reason, err)
			}
		}
		for range 10 { // it answers the witness
			hangs.Store(true)
			time.AfterFunc(slowConnect/2, func() { hangs.Store(false) })
			withdraws(slowConnect)
			synctest.Wait()
			if w.isOut(k) || w.prober.Active() > 0 || len(w.left) > 0 {
				t.Fatalf("out %t, %d series, %v remembered; want nothing", w.isOut(k), w.prober.Active(), w.left)
			}
		}
		if n := w.reports.Load(); n != 0 {
			t.Errorf("%d reports", n)
		}
		hangs.Store(true)
		for range 10 { // told of a full queue: whether that drains is seen
			withdraws(waitsLong)
		}
		if len(w.left) > 0 || w.prober.Active() > 0 {
			t.Errorf("%v are remembered, %d series; want nothing of connects that were not waited for", w.left, w.prober.Active())
		}
		began := time.Now()
		withdraws(slowConnect)
		for !w.isOut(k) {
			time.Sleep(time.Millisecond)
		}
		if took, want := time.Since(began), slowConnect+w.timeout; took > want+10*time.Millisecond {
			t.Errorf("out after %v; want as soon as one question has timed out, %v", took, want)
		}
		if f := w.All(); len(f) != 1 || f[0].Reason != "timeout" {
			t.Errorf("said %+v; want timeout", f)
		}
		hangs.Store(false)
		for w.isOut(k) {
			time.Sleep(time.Millisecond)
		}
		w.declares.Store(0)
		w.forget()
		if len(w.left) > 0 {
			t.Error("what discovery does not list is remembered")
		}
	})
}
