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
)

// failsLocally is a dial that never leaves this host.
func failsLocally(errno syscall.Errno) error {
	return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", errno)}
}

func TestAProcessThatCannotDialEjectsNoApplication(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.ENOBUFS, syscall.EPERM} {
		t.Run(errno.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { cannotDial(t, errno) })
		})
	}
}

func cannotDial(t *testing.T, errno syscall.Errno) {
	w := newTestWitness(t, "127.99.5.5")
	w.declares.Store(8080)
	var fails atomic.Pointer[error]
	w.connect = func(context.Context, netip.AddrPort, time.Duration) (net.Conn, error) { return nil, *fails.Load() }
	set := func(errno syscall.Errno) { err := failsLocally(errno); fails.Store(&err) }

	set(errno)
	for range 20 {
		if _, reason, err := w.dial(t.Context(), w.pod.Load(), 8080, netip.Addr{}); err == nil || reason != header.ReasonOverload {
			t.Fatalf("reason %q, %v; want overload, which is nobody's health", reason, err)
		}
	}
	time.Sleep(time.Minute) // bubble time
	if n := w.reports.Load(); n != 0 || w.prober.Active() != 0 {
		t.Errorf("%d reports, %d series of probes; want none", n, w.prober.Active())
	}

	set(syscall.ECONNREFUSED) // and the series that this begins finds no descriptor
	w.dial(t.Context(), w.pod.Load(), 8080, netip.Addr{})
	set(errno)
	time.Sleep(time.Minute)
	key := health.Key{Endpoint: w.pod.Load().Endpoint, Port: 8080}
	w.mu.Lock() // another probe may be on
	s := w.tracker.State(key, time.Now())
	w.mu.Unlock()
	if s.Consecutive > 2 {
		t.Errorf("%d failures are held against the application; one, and at most one probe, reached it", s.Consecutive)
	}
}

func TestAHopThatCannotBeDialledIsNotIll(t *testing.T) {
	for _, at := range []layer{atGateway, atEndpoint} {
		f := hopFailure(at, hopOuter, failsLocally(syscall.EMFILE))
		if f.fault || f.final || f.reason != reasonLocal {
			t.Errorf("without a descriptor: fault %t, final %t, reason %s; want no fault, not final, %s", f.fault, f.final, f.reason, reasonLocal)
		}
		if f := hopFailure(at, hopOuter, failsLocally(syscall.ECONNREFUSED)); !f.fault || f.reason != reasonConnect {
			t.Errorf("refused: fault %t, reason %s; want a fault, %s", f.fault, f.reason, reasonConnect)
		}
	}
}
