//go:build linux

package nodeproxy

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
)

// Whatever order processes start and end in: all that listen at an address are of one network, node, workload and kind, and
// another one of these may always start.
func TestListenSharedAdmitsOneHolder(t *testing.T) {
	holders := []string{
		(&Proxy{cfg: Config{Network: "east", Node: "one"}}).holder("socks", "shop"),
		(&Proxy{cfg: Config{Network: "west", Node: "one"}}).holder("socks", "shop"),
		(&Proxy{cfg: Config{Network: "east", Node: "two"}}).holder("socks", "shop"),
		(&Proxy{cfg: Config{Network: "east", Node: "one"}}).holder("socks", "bank"),
		(&Proxy{cfg: Config{Network: "east", Node: "one"}}).holder("outbound", "shop"),
	}
	for _, at := range []string{"127.0.0.1", "::1"} {
		l, err := net.Listen("tcp", net.JoinHostPort(at, "0"))
		if err != nil {
			t.Skip(err)
		}
		addr := netip.MustParseAddrPort(l.Addr().String())
		if _, err := listenShared(addr, holders[0]); err == nil {
			t.Errorf("%s: shared with a process that is no node proxy", at)
		}
		l.Close()
		seed := rand.Uint64()
		rng := rand.New(rand.NewPCG(seed, 1))
		var open []*sharedListener
		held := ""
		for i := range 200 {
			if len(open) == 4 || len(open) > 0 && rng.IntN(3) == 0 {
				k := rng.IntN(len(open))
				open[k].Close()
				open = slices.Delete(open, k, k+1)
				continue
			}
			holder := holders[rng.IntN(len(holders))]
			if len(open) > 0 && rng.IntN(2) == 0 {
				holder = held
			}
			l, err := listenShared(addr, holder)
			switch wanted := len(open) == 0 || holder == held; {
			case wanted && err != nil:
				t.Fatalf("seed %d, step %d: %s does not listen beside %d of %s: %v", seed, i, holder, len(open), held, err)
			case !wanted && err == nil:
				t.Fatalf("seed %d, step %d: %s listens beside %d of %s", seed, i, holder, len(open), held)
			case !wanted && !errors.Is(err, syscall.EADDRINUSE):
				t.Fatalf("seed %d, step %d: %v, want an address in use", seed, i, err)
			case err == nil:
				held, open = holder, append(open, l)
			}
		}
		for _, l := range open {
			l.Close()
		}
	}
}

// A process that starts while another one of the same node proxy starts, or stops, listens too.
func TestListenSharedRacesWithItself(t *testing.T) {
	any := netip.MustParseAddrPort("127.0.0.1:0")
	for i := range 200 {
		old, err := listenShared(any, "holder")
		if err != nil {
			t.Fatal(err)
		}
		addr := netip.MustParseAddrPort(old.Addr().String())
		if i%2 == 0 {
			old.Close()
		}
		var all sync.WaitGroup
		start := make(chan struct{})
		all.Go(func() {
			<-start
			old.Close()
		})
		opened := make([]*sharedListener, 2)
		errs := make([]error, len(opened))
		for j := range opened {
			all.Go(func() {
				<-start
				opened[j], errs[j] = listenShared(addr, "holder")
			})
		}
		close(start)
		all.Wait()
		for j, l := range opened {
			if errs[j] != nil {
				t.Fatalf("run %d, process %d: %v", i, j, errs[j])
			}
			l.Close()
		}
	}
}
