package names

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/isthmus-mesh/isthmus/internal/memory"
)

// slowDial dials a server that replies after latency, or never if that is zero.
func slowDial(latency time.Duration) func(context.Context, string, netip.AddrPort) (net.Conn, error) {
	return func(context.Context, string, netip.AddrPort) (net.Conn, error) {
		return pipeServer(func(m *dns.Msg) *dns.Msg {
			if latency == 0 {
				return nil
			}
			time.Sleep(latency)
			return new(dns.Msg).SetReply(m)
		}), nil
	}
}

// At every rate of a pod and latency of its server, with and without a memory budget: a
// query is refused only if as many as the limit are pending. All that is pending is charged,
// and given back when it is answered or its time is over.
func TestPendingQueriesAreBoundedByMemory(t *testing.T) {
	for _, size := range []int64{0, 8 << 20, 153 << 20} {
		for _, rate := range []int{50, 450, 1000} {
			for _, latency := range []time.Duration{20 * time.Millisecond, time.Second, 4 * time.Second, 0} {
				t.Run(fmt.Sprintf("budget %d MiB, %d a second, %v", size>>20, rate, latency), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { pendingQueries(t, size, rate, latency) })
				})
			}
		}
	}
}

func pendingQueries(t *testing.T, size int64, rate int, latency time.Duration) {
	const timeout = 5 * time.Second
	b := memory.NewBudget(size)
	s := still(nil)
	s = New(Config{Snapshot: s.cfg.Snapshot, Metrics: s.cfg.Metrics, Log: s.cfg.Log, Dial: slowDial(latency), Memory: b, Owner: func() string { return "pod" },
		Resolver: func() Resolver { return Resolver{Servers: servers("10.96.0.10"), Timeout: timeout} }})
	limit, takes := outstanding(b), latency
	if takes == 0 {
		takes = timeout - timeout/10
	}
	every := time.Second / time.Duration(rate)
	takes = takes/every*every + every/2 // never at the instant of a query
	if latency != 0 {
		s.up.dial = slowDial(takes)
	} else {
		takes = timeout - timeout/10
	}
	var answered sync.WaitGroup
	var ends []time.Time // of what the model has pending
	raw := packed(t, "example.com", dns.TypeA)
	for i := range min(2500, 2*int(takes/every)+200) {
		now := time.Now()
		for len(ends) > 0 && !ends[0].After(now) {
			ends = ends[1:]
		}
		synctest.Wait()
		if used := b.Used(); size > 0 && used != int64(len(ends))*queryMemory {
			t.Errorf("query %d: %d bytes are charged, want %d for each of %d that are pending", i, used, queryMemory, len(ends))
			break
		}
		q, _, later := s.atOnce(raw, true)
		if want := len(ends) < limit; later != want {
			t.Errorf("query %d beside %d that are pending, at most %d: accepted %v, want %v", i, len(ends), limit, later, want)
			break
		}
		if later {
			ends = append(ends, now.Add(takes))
			q = copied(q)
			answered.Go(func() {
				defer s.free(&q)
				if rcode := rcode(s.wait(t.Context(), &q, "udp", 512)); (rcode != dns.RcodeSuccess) != (latency == 0) {
					t.Errorf("query %d is answered with %d", i, rcode)
				}
			})
		}
		time.Sleep(every)
	}
	answered.Wait()
	if used := b.Used(); used != 0 {
		t.Errorf("%d bytes are charged when no query is pending", used)
	}
}
