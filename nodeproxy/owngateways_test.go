package nodeproxy

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/discovery/excerpt"
	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/mesh"
)

func TestGatewaysBesideThoseOfConfiguration(t *testing.T) {
	at := func(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
	id := spiffeid.RequireFromString("spiffe://cluster.local/ns/isthmus-system/sa/gateway")
	other := spiffeid.RequireFromString("spiffe://cluster.local/ns/shop/sa/thief")
	one, two, shared := at("10.0.0.1:15008"), at("10.0.0.2:15008"), at("10.96.0.9:15008")
	listed := []*mesh.Gateway{{Name: "gw-1", Address: one, Federation: one, Identity: other}, {Name: "gw-2", Address: shared, Federation: two, Identity: id}}
	for what, x := range map[string]struct {
		configured []netip.AddrPort
		names      map[netip.AddrPort]string
		up         []netip.AddrPort
		want       []netip.AddrPort
	}{
		"all are configured":                    {configured: []netip.AddrPort{one, two}, want: []netip.AddrPort{one, two}},
		"one is":                                {configured: []netip.AddrPort{one}, want: []netip.AddrPort{one, two}},
		"an address for all leads to the first": {configured: []netip.AddrPort{shared}, names: map[netip.AddrPort]string{shared: "gw-1"}, up: []netip.AddrPort{shared}, want: []netip.AddrPort{shared, two}},
		"it leads to one with another stream": {configured: []netip.AddrPort{shared}, names: map[netip.AddrPort]string{shared: "gw-2", two: "gw-2"}, up: []netip.AddrPort{shared, two},
			want: []netip.AddrPort{shared, one}},
		"it leads nowhere now":                   {configured: []netip.AddrPort{shared}, names: map[netip.AddrPort]string{shared: "gw-1", two: "gw-2"}, up: []netip.AddrPort{two}, want: []netip.AddrPort{shared, one, two}},
		"a gateway is listed by another name":    {configured: []netip.AddrPort{shared}, names: map[netip.AddrPort]string{shared: "first", one: "first"}, up: []netip.AddrPort{shared}, want: []netip.AddrPort{shared, two}},
		"one has the address that another had":   {names: map[netip.AddrPort]string{two: "gw-2", one: "gw-2"}, up: []netip.AddrPort{two}, want: []netip.AddrPort{one, two}},
		"so, behind an address for all":          {configured: []netip.AddrPort{shared}, names: map[netip.AddrPort]string{shared: "gw-2", one: "gw-2"}, up: []netip.AddrPort{shared}, want: []netip.AddrPort{shared, one}},
		"so, and both are listed by other names": {names: map[netip.AddrPort]string{two: "first", one: "first"}, up: []netip.AddrPort{two}, want: []netip.AddrPort{one, two}},
	} {
		var configured []*mesh.Gateway
		for _, a := range x.configured {
			configured = append(configured, &mesh.Gateway{Name: a.String(), Address: a, Identity: id})
		}
		up := map[netip.AddrPort]bool{}
		for _, a := range x.up {
			up[a] = true
		}
		var got []netip.AddrPort
		for _, g := range beside(configured, listed, id, x.names, up) {
			if got = append(got, g.Address); g.Identity != id {
				t.Errorf("%s: %s may be %s: only configuration says who", what, g.Address, g.Identity)
			}
		}
		if !slices.Equal(got, x.want) {
			t.Errorf("%s: %v, want %v", what, got, x.want)
		}
	}
}

// A cache that is to be written anew for its age alone, and cannot be, is tried again within minutes.
func TestACacheThatWasNotWrittenIsTriedAgain(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "cache")
	now := time.Now()
	o := &ownNetwork{cache: discoveryCache{path: path, log: zerolog.Nop()}, ask: func([]string) {}}
	o.keeper = excerpt.NewKeeper(excerpt.NewHeld("east", "n1", "cluster.local"), func(...discovery.Change) {}, func(string) bool { return true }, func() time.Time { return now })
	o.keeper.Lead("gw-1")
	if _, err := o.keeper.Take(&pb.Excerpt{Whole: true, End: true, Base: &pb.Base{TrustDomain: "cluster.local", Networks: []*pb.ExcerptNetwork{{Name: "east"}}}}); err != nil {
		t.Fatal(err)
	}
	o.cache.keep(o.keeper, now, false)
	if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil { // in the way
		t.Fatal(err)
	}
	now = now.Add(cacheAgain)
	if o.cache.keep(o.keeper, now, false); o.cache.state().LastError == "" {
		t.Fatal("there is a directory in the way, and no error")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	now = now.Add(cacheEvery)
	if o.cache.keep(o.keeper, now, false); o.cache.state().LastError != "" || !o.cache.state().Written.Equal(now) {
		t.Errorf("a minute later: %+v, want it to be written", o.cache.state())
	}
}

// A gateway that begins to lead and dies without a word does not keep a node proxy from its cache.
func TestAStartFromTheCacheWhenTheLeaderDies(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache")
	fresh := func() *ownNetwork {
		o := &ownNetwork{cache: discoveryCache{path: path, log: zerolog.Nop()}, ask: func([]string) {}}
		o.keeper = excerpt.NewKeeper(excerpt.NewHeld("east", "n1", "cluster.local"), func(...discovery.Change) {}, func(string) bool { return true }, time.Now)
		return o
	}
	synctest.Test(t, func(t *testing.T) {
		o := fresh()
		o.keeper.Lead("gw-1")
		if _, err := o.keeper.Take(&pb.Excerpt{Whole: true, End: true, Base: &pb.Base{TrustDomain: "cluster.local", Networks: []*pb.ExcerptNetwork{{Name: "east"}}}}); err != nil {
			t.Fatal(err)
		}
		o.cache.keep(o.keeper, time.Now(), true)
		if _, err := os.Stat(path); err != nil {
			t.Fatal(err)
		}
		for what, leads := range map[string]func(*excerpt.Keeper){
			"it is not noticed": func(k *excerpt.Keeper) { k.Lead("gw-1") },
			"it is noticed late": func(k *excerpt.Keeper) {
				k.Lead("gw-1")
				time.AfterFunc(settleLimit+time.Second/2, k.Leave)
			},
			"it is noticed at once": func(k *excerpt.Keeper) { k.Lead("gw-1"); time.AfterFunc(time.Second, k.Leave) },
		} {
			o, began := fresh(), time.Now()
			leads(o.keeper)
			done := make(chan struct{})
			go func() { defer close(done); o.await(t.Context()) }()
			select {
			case <-done:
				if took := time.Since(began); took > firstWhole+time.Second/2 || o.keeper.Status().Cached.IsZero() {
					t.Errorf("%s: %+v after %v; want a start from the cache", what, o.keeper.Status(), took)
				}
			case <-time.After(time.Minute):
				t.Fatalf("%s: it is not started after a minute", what)
			}
			synctest.Wait()
		}
	})
}
