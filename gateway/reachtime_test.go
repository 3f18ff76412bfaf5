package gateway

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/internal/resolve"
)

// Who asks waits half a minute, however many addresses are silent: what there was no time for
// is said, and each network is dialed, also beside one with many addresses.
func TestReachAnswersInTimeHoweverManyAreSilent(t *testing.T) {
	for _, silent := range []int{0, 1, 16, 61, 500} {
		t.Run(fmt.Sprint(silent), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var list []peerAddress
				for i := range silent {
					list = append(list, peerAddress{network: "a", address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, byte(i / 250), byte(i % 250)}), 15008)})
				}
				list = append(list, peerAddress{network: "b", address: netip.MustParseAddrPort("203.0.113.1:15008")}, peerAddress{network: "c"})
				began := time.Now()
				tried := tryAll(t.Context(), list, func(ctx context.Context, p peerAddress, x *answer.Tried) error {
					if p.network == "b" {
						x.Gateway = "b/gw-1"
						return nil
					}
					<-ctx.Done()
					return ctx.Err()
				}, nil)
				if took := time.Since(began); took > reachAll {
					t.Errorf("it took %v, want at most %v", took, reachAll)
				}
				dialled := 0
				for i, x := range tried {
					if x.Network != list[i].network || (x.Address == "") == list[i].address.IsValid() {
						t.Fatalf("%d: %+v is not of %+v", i, x, list[i])
					}
					if (x.Error == "") != (x.Gateway != "") {
						t.Errorf("%+v", x)
					}
					if x.Network == "a" && !x.Undialled {
						dialled++
					}
				}
				if want := min(silent, reachAtOnce*int(reachAll/reachTime)-1); dialled < want {
					t.Errorf("%d of %d were dialed, want %d", dialled, silent, want)
				}
				if b := tried[silent]; b.Gateway != "b/gw-1" {
					t.Errorf("beside %d silent ones: %+v", silent, b)
				}
			})
		})
	}
}

// Measuring a path takes longer than opening a tunnel. Paths of one network leave time for the tunnels of all others.
func TestReachOpensAllTunnelsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var list []peerAddress
		for i := range 250 {
			list = append(list, peerAddress{network: "a", address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 15008)})
		}
		began, measured := time.Now(), 0
		tried := tryAll(t.Context(), list, func(_ context.Context, _ peerAddress, x *answer.Tried) error {
			time.Sleep(100 * time.Millisecond)
			x.Connected = true
			return nil
		}, func(ctx context.Context, _ peerAddress, x *answer.Tried) {
			select {
			case <-ctx.Done():
				x.PathError = ctx.Err().Error()
			case <-time.After(2 * time.Second):
				x.Path = &answer.Path{}
			}
		})
		for _, x := range tried {
			if x.Undialled || x.Error != "" || (x.Path == nil) != (x.PathError != "") {
				t.Errorf("%+v, want a tunnel, and a path or why there is none", x)
			}
			if x.Path != nil {
				measured++
			}
		}
		if took := time.Since(began); took > reachAll || measured < 9*reachAtOnce {
			t.Errorf("%d paths were measured in %v, want %d or more in at most %v", measured, took, 9*reachAtOnce, reachAll)
		}
	})
}

// Each address for QUIC is a part of some address for TCP, and each of these has one.
func TestPeersHaveAllAddressesForQUIC(t *testing.T) {
	for tcp := range 4 {
		for quic := range 6 {
			var at []netip.AddrPort
			for i := range tcp + 1 {
				at = append(at, netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 15008))
			}
			seen := map[string]bool{}
			list := peersAt("west", spiffeid.ID{}, at, strings.Split("abcdef", "")[:quic+1])
			for _, p := range list {
				if len(p.quic) == 0 {
					t.Errorf("%d and %d: none at %s", tcp+1, quic+1, p.address)
				}
				for _, q := range p.quic {
					seen[q] = true
				}
			}
			if len(list) != tcp+1 || len(seen) != quic+1 {
				t.Errorf("%d and %d: %+v", tcp+1, quic+1, list)
			}
		}
	}
}

// A host name that a network publishes for UDP is resolved. What is of this network is not dialed.
func TestPublishedUDPAddressesAreResolved(t *testing.T) {
	g := &Gateway{cfg: Config{Network: "east"}, store: new(discovery.Store)}
	g.doors = newDoors("east", "cluster.local", g.store.Current, func(_ context.Context, host string) ([]netip.Addr, time.Duration, error) {
		if host == "gw.example.com" {
			return []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}, time.Minute, nil
		}
		return nil, 0, resolve.ErrNotFound
	})
	for _, c := range []struct {
		quic      []string
		at, wrong string
	}{
		{[]string{"192.0.2.9:443"}, "[192.0.2.9:443]", ""},
		{[]string{"gw.example.com:443", "192.0.2.2:443"}, "[192.0.2.1:443 192.0.2.2:443]", ""},
		{[]string{"gone.example.com:443", "192.0.2.2:443"}, "[192.0.2.2:443]", "the name has no addresses"},
		{[]string{"127.0.0.1:443"}, "[]", "its UDP address 127.0.0.1:443"},
	} {
		at, err := g.resolveQUIC(t.Context(), peerAddress{quic: c.quic, published: true})
		if fmt.Sprint(at) != c.at || (err != nil) != (c.wrong != "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%v: %v, %v; want %s and %q", c.quic, at, err, c.at, c.wrong)
		}
	}
}

// An unknown network gets no suggestion that is refused too.
func TestDialableNetworksHaveAddresses(t *testing.T) {
	at := netip.MustParseAddrPort("192.0.2.1:15008")
	list := []peerAddress{{network: "a", address: at}, {network: "a", address: at}, {network: "b"}, {network: "c", address: at}}
	if got := fmt.Sprint(dialable(list)); got != "[a c]" {
		t.Errorf("%s, want [a c]", got)
	}
}
