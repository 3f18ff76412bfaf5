package nodeproxy

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/internal/resolve"
)

// The host name of other networks' gateways leads where DNS says, within its time to live
// and 2 s; all of its addresses are used, the one that was first stays so as long as answers
// have it, and nothing that is not found, or is none of another network's, takes one away.
func TestHostNamesOfGatewaysAreFollowed(t *testing.T) {
	const ttl = 5 * time.Second
	synctest.Test(t, func(t *testing.T) {
		w := newToldWorld(t, "")
		var mu sync.Mutex
		var zone []netip.Addr
		set := func(list ...string) {
			mu.Lock()
			defer mu.Unlock()
			zone = nil
			for _, a := range list {
				zone = append(zone, netip.MustParseAddr(a))
			}
		}
		names := resolve.New(func(context.Context, string) ([]netip.Addr, time.Duration, error) {
			mu.Lock()
			defer mu.Unlock()
			return zone, ttl, nil
		}, func() { w.relocated() })
		w.resolveBy(names)
		w.proven.gateways["west"] = nil
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { names.Run(ctx) })
		for i := range 3 {
			name := fmt.Sprint("gw-", i)
			w.proven.gateways["west"] = append(w.proven.gateways["west"], healthstream.Gateway{Name: name, Live: true,
				Body: &record.Network{Gateway: name, Addresses: []record.Address{{Host: "gw.west.example.com", Port: 15008}}}})
		}
		w.proven.offer(shopName, shopExport(nil))
		w.update(shopName)
		at := func() (out []string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			for _, g := range w.snap.Gateways("west") {
				one := []string{g.Address.Addr().String()}
				for _, m := range g.More {
					one = append(one, m.Addr().String())
				}
				out = append(out, fmt.Sprint(one))
			}
			return slices.Compact(out)
		}
		if got := at(); len(got) > 0 {
			t.Errorf("before DNS has answered the gateways are at %v", got)
		}
		for _, step := range []struct {
			zone []string
			want string
		}{
			{[]string{"203.0.113.5", "203.0.113.7"}, "[203.0.113.5 203.0.113.7]"},
			{[]string{"203.0.113.7", "203.0.113.5", "203.0.113.1"}, "[203.0.113.5 203.0.113.1 203.0.113.7]"},
			{nil, "[203.0.113.5 203.0.113.1 203.0.113.7]"},
			{[]string{"169.254.169.254", "203.0.113.1", "127.0.0.1"}, "[203.0.113.1]"},
			{[]string{"2001:db8::9"}, "[2001:db8::9]"},
		} {
			set(step.zone...)
			time.Sleep(ttl + 2*time.Second)
			if got := at(); !slices.Equal(got, []string{step.want}) {
				t.Errorf("once it leads to %v all gateways are at %v; want %s", step.zone, got, step.want)
			}
			time.Sleep(40 * time.Second) // until failures have been forgotten
			if got := at(); !slices.Equal(got, []string{step.want}) {
				t.Errorf("long after it leads to %v all gateways are at %v; want %s", step.zone, got, step.want)
			}
		}
		cancel()
		run.Wait()
	})
}

// A gateway that says a host name in place of where it was, as when a load balancer is made anew,
// is dialed where it was until DNS has answered.
func TestAGatewayIsWhereItWasUntilItsNewNameIsResolved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newToldWorld(t, "")
		names := resolve.New(func(_ context.Context, host string) ([]netip.Addr, time.Duration, error) {
			time.Sleep(3 * time.Second)
			if host == "gone.example.com" {
				return nil, 0, resolve.ErrNotFound
			}
			return []netip.Addr{netip.MustParseAddr("203.0.113.9")}, time.Minute, nil
		}, func() { w.relocated() })
		w.resolveBy(names)
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { names.Run(ctx) })
		w.proven.offer(shopName, shopExport(nil))
		for _, step := range []struct{ host, first, then string }{
			{"203.0.113.5", "203.0.113.5", "203.0.113.5"},
			{"gw.west.example.com", "203.0.113.5", "203.0.113.9"},
			{"new.west.example.com", "203.0.113.9", "203.0.113.9"},
			{"gone.example.com", "203.0.113.9", ""},
		} {
			w.proven.gateways["west"] = []healthstream.Gateway{{Name: "gw-x", Live: true, Body: &record.Network{Gateway: "gw-x", Addresses: []record.Address{{Host: step.host, Port: 15008}}}}}
			w.update(shopName)
			at := func() (out string) {
				w.mu.Lock()
				defer w.mu.Unlock()
				for _, g := range w.snap.Gateways("west") {
					out += g.Address.Addr().String()
				}
				return out
			}
			if got := at(); got != step.first {
				t.Errorf("at once at %s it is dialed at %q, want %q", step.host, got, step.first)
			}
			time.Sleep(4 * time.Second)
			w.relocated() // as every linksEvery
			if got := at(); got != step.then {
				t.Errorf("at %s it is dialed at %q, want %q", step.host, got, step.then)
			}
		}
		cancel()
		run.Wait()
	})
}
