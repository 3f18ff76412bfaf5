package pods

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

func TestAddressesThatNoApplicationSees(t *testing.T) {
	addr := netip.MustParseAddr
	c := &Set{cfg: Options{Config: DefaultConfig()}}
	for pod, want := range map[string]map[string]bool{
		"10.1.0.7": {"10.1.0.8": true, "192.168.3.4": true, "203.0.113.9": true, "10.1.0.7": false, "10.1.0.77": false, "fd00::8": false, "127.0.0.1": false, "127.9.9.9": false, "0.0.0.0": false, "0.1.2.3": false,
			"224.0.0.1": false, "239.1.1.1": false, "169.254.7.127": false, "255.255.255.255": false, "240.240.0.1": false, "10.96.0.9": false},
		"fd00::7": {"fd00::8": true, "2600::1": true, "fd00::7": false, "10.1.0.8": false, "::1": false, "::": false, "ff02::1": false, "fe80::1": false, "fe80::1%eth0": false, "fd00::8%eth0": false, "2001:2::1": false, "fd96::9": false},
	} {
		h := &Pod{address: addr(pod), rules: capture.Rules{Ranges: c.cfg.Ranges, Addresses: []netip.Addr{addr("10.96.0.9"), addr("fd96::9")}}}
		s := &originalSource{c: c, h: h, own: []netip.Addr{addr(pod), addr("10.1.0.77")}}
		for client, can := range want {
			if got := s.carries(addr(client)); got != can {
				t.Errorf("an application at %s sees %s: %t, want %t", pod, client, got, can)
			}
		}
		s.off.Store(true)
		for client := range want {
			if s.carries(addr(client)) {
				t.Errorf("%s is seen where it is switched off", client)
			}
		}
	}
	var none *originalSource
	if none.carries(addr("10.1.0.8")) || none.carries(netip.Addr{}) {
		t.Error("without rules a client is seen")
	}
}

// The rules of a namespace are taken out by the last user alone, and never under one that comes meanwhile.
func TestSourcesAreTakenOutByTheLastUser(t *testing.T) {
	s := sources{uses: map[podns.ID]*sourceUse{}}
	var set [3]atomic.Bool // the rules of each namespace
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for n := range 500 {
				i := (worker + n) % len(set)
				id := podns.ID{Inode: uint64(i)}
				u := s.use(id)
				u.rules.Lock()
				set[i].Store(true)
				u.rules.Unlock()
				for range 3 {
					if !set[i].Load() {
						t.Errorf("rules of %d are taken out under a user", i)
					}
				}
				s.end(id, u, func() { set[i].Store(false) })
			}
		})
	}
	wg.Wait()
	if len(s.uses) > 0 {
		t.Errorf("%d namespaces are kept that nobody uses", len(s.uses))
	}
	for i := range set {
		if set[i].Load() {
			t.Errorf("the rules of %d are left", i)
		}
	}
}
