package nodeproxy

import (
	"context"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/internal/localfault"
)

// failedCall is a dial that failed in a system call.
func failedCall(call string, errno syscall.Errno) error {
	return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError(call, errno)}
}

// failsLocally is a dial that never leaves this host.
func failsLocally(errno syscall.Errno) error { return failedCall("socket", errno) }

// eachFailedCall calls f with each errno of Linux in each call of a dial.
func eachFailedCall(f func(err error)) {
	for _, call := range []string{"socket", "setns", "setsockopt", "bind", "connect"} {
		for errno := syscall.Errno(1); errno <= 133; errno++ {
			f(failedCall(call, errno))
		}
	}
}

// All decisions about a failed dial follow the one table.
func TestLocalFailuresCountAgainstNoPeer(t *testing.T) {
	eachFailedCall(func(err error) {
		local := localfault.Is(err)
		if got := reasonOf(err) == header.ReasonOverload; got != local {
			t.Errorf("%v: reason %s of an application, local %t", err, reasonOf(err), local)
		}
		for _, at := range []layer{atGateway, atEndpoint} {
			if f := hopFailure(at, hopOuter, &dialError{err}); f.fault == local || (f.reason == reasonLocal) != local {
				t.Errorf("%v: fault %t with reason %s of layer %d, local %t", err, f.fault, f.reason, at, local)
			}
			want := health.Failure
			if local {
				want = health.Neutral
			}
			if got, _, _ := probed(at, hopSingle, &dialError{err}); got != want {
				t.Errorf("%v: a probe of layer %d has outcome %v, want %v", err, at, got, want)
			}
		}
		if got := anotherWay(1)(err); got == local {
			t.Errorf("%v: another dial of the gateway %t, local %t", err, got, local)
		}
	})
}

func TestWitnessIgnoresLocalFailures(t *testing.T) {
	eachFailedCall(func(err error) {
		if localfault.Is(err) {
			synctest.Test(t, func(t *testing.T) { cannotDial(t, err) })
		}
	})
}

// cannotDial has the dials of a witness fail with err, which neither ejects an
// application nor readmits one.
func cannotDial(t *testing.T, err error) {
	w := newTestWitness(t, "127.99.5.5")
	w.declares.Store(8080)
	var fails atomic.Pointer[error]
	w.connect = func(context.Context, netip.AddrPort, time.Duration) (net.Conn, error) {
		if err := *fails.Load(); err != nil {
			return nil, err
		}
		c, far := net.Pipe()
		far.Close()
		return c, nil
	}
	set := func(err error) { fails.Store(&err) }
	dial := func() (header.Reason, error) {
		c, reason, err := w.dial(t.Context(), w.pod.Load(), 8080, netip.Addr{})
		if err == nil {
			c.Close()
		}
		return reason, err
	}

	set(err)
	for range 5 {
		if reason, got := dial(); got == nil || reason != header.ReasonOverload {
			t.Fatalf("%v: reason %q, %v; want overload", err, reason, got)
		}
	}
	time.Sleep(time.Minute) // bubble time
	if n := w.reports.Load(); n != 0 || w.prober.Active() != 0 {
		t.Errorf("%v: %d reports, %d series of probes; want none", err, n, w.prober.Active())
	}

	set(syscall.ECONNREFUSED)
	dial() // starts a series of probes, the first of which may be refused too
	set(err)
	time.Sleep(time.Minute)
	key := health.Key{Endpoint: w.pod.Load().Endpoint, Port: 8080}
	w.mu.Lock() // another probe may be on
	s := w.tracker.State(key, time.Now())
	w.mu.Unlock()
	if s.Consecutive > 2 {
		t.Errorf("%v: %d failures count against the application; one, and at most one probe, reached it", err, s.Consecutive)
	}

	set(syscall.ECONNREFUSED)
	time.Sleep(2 * time.Second)
	if !w.isOut(key) {
		t.Fatal("an application that refuses is not ejected")
	}
	set(err)
	synctest.Wait()
	before := w.reports.Load()
	time.Sleep(time.Minute)
	if n := w.reports.Load() - before; !w.isOut(key) || n != 0 {
		t.Errorf("%v: after a minute of probes that fail locally ejected %t, %d more reports; want true, 0", err, w.isOut(key), n)
	}
	set(nil)
	time.Sleep(2 * time.Second)
	if w.isOut(key) {
		t.Errorf("%v: the application answers probes again, and is still ejected", err)
	}
}
