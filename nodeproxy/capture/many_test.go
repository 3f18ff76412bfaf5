//go:build linux

package capture

import (
	"net/netip"
	"testing"

	"github.com/google/nftables"
)

// many are so many addresses.
func many(n int) (out []netip.Addr) {
	a := netip.MustParseAddr("10.96.0.1")
	for range n {
		out = append(out, a)
		a = a.Next().Next()
	}
	return out
}

// elements counts those of a set.
func (p *pod) elements(t *testing.T, set string) (n int) {
	t.Helper()
	must(t, p.ns.FD(func(fd int) error {
		c, err := nftables.New(nftables.WithNetNSFd(fd))
		must(t, err)
		list, err := c.GetSetElements(&nftables.Set{Name: set, Table: &nftables.Table{Name: table, Family: nftables.TableFamilyINet}})
		n = len(list)
		return err
	}))
	return n
}

// A mesh may have thousands of services whose own addresses lead to other networks: what is not among the
// rules leaves the pod as it is.
func TestRulesHoldThousandsOfAddresses(t *testing.T) {
	p := newPod(t)
	l := p.listen(t, "tcp4", "127.0.0.1:15001")
	for _, n := range []int{maxElements, maxElements + 1, 2000, 4000, 20000} {
		all := many(n)
		if err := Set(p.ns, Rules{Ranges: mesh.Ranges, Addresses: all}); err != nil {
			t.Errorf("%d addresses: %v", n, err)
			continue
		}
		if got := p.elements(t, "addresses4"); got != n {
			t.Errorf("%d addresses are %d in the kernel", n, got)
		}
		for _, a := range []netip.Addr{all[0], all[n/2], all[n-1]} {
			c, err := p.dial("tcp", netip.AddrPortFrom(a, 80).String(), nil)
			if err != nil {
				t.Errorf("of %d addresses %v is not captured: %v", n, a, err)
				continue
			}
			c.Close()
			got, err := l.Accept()
			must(t, err)
			got.Close()
		}
	}
}
