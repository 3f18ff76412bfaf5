package nodeproxy

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/internal/simnet"
)

// lossy is a distant world whose gateway gw-1 can be lost, and what it is dialed for.
type lossy struct {
	*distant
	dials atomic.Int64 // of gw-1
	conns int
}

func newLossy() *lossy {
	w := &lossy{distant: newDistant(2, 2, time.Millisecond)}
	w.client.self = torturedID("node")
	dial := w.client.dialHop
	w.client.dialHop = func(ctx context.Context, addr netip.AddrPort, timeout time.Duration) (net.Conn, error) {
		if addr == w.gateways[0].Address {
			w.dials.Add(1)
		}
		return dial(ctx, addr, timeout)
	}
	return w
}

// lose is distant.lose, seen by who had a connection there: what a connection writes
// between the cut and its being read is lost (early data is not repeated).
func (w *lossy) lose(address string) {
	w.distant.lose(address)
	synctest.Wait()
}

func (w *lossy) is(out bool) bool {
	return w.client.view.GatewayBelief("west/gw-1", time.Now()).Phase == health.Ejected == out
}

// traffic makes a connection every so often for a time, or until ok says so; it returns how
// often gw-1 was dialed meanwhile.
func (w *lossy) traffic(t *testing.T, every, lasts time.Duration, ok func() bool) (dials int) {
	t.Helper()
	before := w.dials.Load()
	for end := time.Now().Add(lasts); time.Now().Before(end) && (ok == nil || !ok()); time.Sleep(every) {
		if _, err := w.connect(w.conns, 0); err != nil {
			t.Fatalf("connection %d: %v", w.conns, err)
		}
		w.conns++
	}
	return int(w.dials.Load() - before)
}

// A gateway that is down is asked densely at first, since most are back within
// seconds, and rarely once it has been down for long, whatever its neighbours carry.
func TestADeadGatewayIsAskedLessAndLess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newLossy()
		defer w.end()
		address := w.gateways[0].Address.String()
		w.traffic(t, 100*time.Millisecond, 5*time.Second, nil)

		for range 3 { // restarts
			w.lose(address)
			w.traffic(t, 100*time.Millisecond, time.Minute, func() bool { return w.is(true) })
			if !w.is(true) {
				t.Fatal("a gateway that is down is not out")
			}
			w.traffic(t, 100*time.Millisecond, 4*time.Second, nil)
			w.listen(address)
			back := time.Now()
			w.traffic(t, 50*time.Millisecond, time.Minute, func() bool { return w.is(false) })
			if took := time.Since(back); took > 2100*time.Millisecond {
				t.Errorf("a gateway that was down for a few seconds is used %v after it is back; want at most the pause of 2 s", took)
			}
			w.traffic(t, 100*time.Millisecond, 10*time.Second, nil)
		}

		w.lose(address)
		if n := w.traffic(t, 100*time.Millisecond, time.Minute, nil); n < 30 {
			t.Errorf("dialed %d times in the first minute; want one every two seconds at least", n)
		}
		if n := w.traffic(t, time.Second, time.Hour, nil); n > 400 {
			t.Errorf("dialed %d times in the hour after; want at most 400", n)
		}
		w.listen(address)
		back := time.Now()
		w.traffic(t, 100*time.Millisecond, time.Hour, func() bool { return w.is(false) })
		if took := time.Since(back); took > 31*time.Second {
			t.Errorf("a gateway that was down for an hour is used %v after it is back; want at most 30 s", took)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := w.client.gatewayProbes.Active(); n != 0 {
			t.Errorf("%d series of probes although every gateway answers", n)
		}
	})
}

// With nobody else left, connections go by gateways that are out: the first one that
// succeeds ends the wait for a probe.
func TestAConnectionThatAGatewayCarriesEndsItsProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLossy()
		defer w.end()
		w.traffic(t, 100*time.Millisecond, 5*time.Second, nil)
		for _, g := range w.gateways {
			w.lose(g.Address.String())
		}
		for end := time.Now().Add(time.Hour); time.Now().Before(end); time.Sleep(time.Minute) {
			if _, err := w.connect(w.conns, 0); err == nil {
				t.Fatal("a connection without any gateway")
			}
			w.conns++
		}
		for _, g := range w.gateways {
			w.listen(g.Address.String())
		}
		if _, err := w.connect(w.conns, 0); err != nil {
			t.Fatalf("the first connection after both gateways are back: %v", err)
		}
		time.Sleep(2 * time.Second) // bubble time: who carried it was asked once more
		synctest.Wait()
		if n := w.client.gatewayProbes.Active(); n > 1 {
			t.Errorf("%d gateways are asked two seconds after one of two carried a connection", n)
		}
	})
}

// A gateway may answer each question and serve no connection, of many or of few.
func TestAGatewayThatAnswersQuestionsAloneIsTakenBackLessAndLess(t *testing.T) {
	for _, every := range []time.Duration{500 * time.Millisecond, 5 * time.Second} {
		t.Run(every.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newLossy()
				defer w.end()
				w.traffic(t, 100*time.Millisecond, 5*time.Second, nil)
				address := w.gateways[0].Address.String()
				w.lose(address)
				l, err := w.net.Listen(address)
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				var tunnels atomic.Int64
				w.work.Go(func() {
					for {
						conn, err := l.Accept()
						if err != nil {
							return
						}
						w.work.Go(func() {
							if tls, err := hbone.ServerTLS(w.ctx, conn, w.client.ids.ServerTLS(torturedID("gateway"), nil, "h2")); err == nil {
								hbone.NewServer(tls, hbone.DefaultConfig(), func(context.Context, *hbone.Incoming) {
									tunnels.Add(1)
									conn.(*simnet.Conn).Cut()
								}).Serve(w.ctx)
							}
						})
					}
				})
				w.traffic(t, every, 5*time.Minute, nil)
				if n := tunnels.Swap(0); n < 2 || n > 40 {
					t.Errorf("%d tunnels were asked for in five minutes; want it to be tried, and at most 40", n)
				}
				w.traffic(t, every, 5*time.Minute, nil)
				if n := tunnels.Load(); n > 20 {
					t.Errorf("%d tunnels were asked for in the five minutes after; want a few a minute", n)
				}
				l.Close()
				w.listen(address)
				back := time.Now()
				w.traffic(t, 100*time.Millisecond, time.Hour, func() bool { return w.is(false) })
				if took := time.Since(back); took > 91*time.Second {
					t.Errorf("used %v after it serves again; want the longest penalty, and the pause of a probe, at most", took)
				}
			})
		})
	}
}

// A gateway that ends each session behind its handshake is out until it serves one: what
// asks it finds it ill, before a connection tries it.
func TestAGatewayThatEndsSessionsBehindTheirHandshakeStaysOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newLossy()
		defer w.end()
		w.traffic(t, 100*time.Millisecond, 5*time.Second, nil)
		address := w.gateways[0].Address.String()
		w.lose(address)
		l, err := w.net.Listen(address)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		w.work.Go(func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				w.work.Go(func() {
					if tls, err := hbone.ServerTLS(w.ctx, conn, w.client.ids.ServerTLS(torturedID("gateway"), nil, "h2")); err == nil {
						tls.Close()
					}
				})
			}
		})
		w.traffic(t, 100*time.Millisecond, time.Minute, func() bool { return w.is(true) })
		const checks = 3000
		tried := 0
		for range checks {
			w.traffic(t, 100*time.Millisecond, 100*time.Millisecond, nil)
			if w.is(false) {
				tried++
			}
		}
		if tried > checks/50 {
			t.Errorf("in %d of %d moments connections may try a gateway that serves nobody; want one in 50 at most, while it is asked", tried, checks)
		}
		l.Close()
		w.listen(address)
		back := time.Now()
		w.traffic(t, 100*time.Millisecond, time.Hour, func() bool { return w.is(false) })
		if took := time.Since(back); took > 31*time.Second {
			t.Errorf("used %v after it serves again; want at most 30 s", took)
		}
	})
}
