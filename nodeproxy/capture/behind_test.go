//go:build linux

package capture

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// What a pod passes on for others with its own address, as for a virtual machine or the containers of its own that it runs, is
// asked of its resolvers and answered by these, whether names are captured in the pod or not.
func TestQueriesOfWhoIsBehindAPodAreLeftAlone(t *testing.T) {
	p := newPod(t)
	must(t, p.Host("net", "guest", "10.71.1.3"))
	must(t, p.IP("guest", "link del eth0"))
	must(t, p.IP("pod", "link add in0 type veth peer name eth0 netns "+filepath.Base(p.Path("guest"))))
	must(t, p.IP("pod", "addr add 192.168.7.1/24 dev in0"))
	must(t, p.IP("pod", "link set in0 up"))
	must(t, p.IP("guest", "addr add 192.168.7.2/24 dev eth0"))
	must(t, p.IP("guest", "link set eth0 up"))
	must(t, p.IP("guest", "route add default via 192.168.7.1"))
	must(t, p.ns.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o600) }))
	must(t, p.ns.FD(func(fd int) error {
		c, err := nftables.New(nftables.WithNetNSFd(fd))
		must(t, err)
		table := c.AddTable(&nftables.Table{Name: "guests", Family: nftables.TableFamilyIPv4})
		chain := c.AddChain(&nftables.Chain{Name: "out", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte("eth0\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00")}, &expr.Masq{}}})
		return c.Flush()
	}))
	resolver, err := p.ListenPacket("other", otherAddress+":53")
	must(t, err)
	defer resolver.Close()
	go func() {
		b := make([]byte, 10)
		for {
			_, from, err := resolver.ReadFrom(b)
			if err != nil {
				return
			}
			resolver.WriteTo([]byte("resolver"), from)
		}
	}()
	guest, err := podns.Open(p.Path("guest"))
	must(t, err)
	defer guest.Close()
	ask := func(when string) {
		t.Helper()
		d := net.Dialer{Control: guest.Control}
		c, err := d.Dial("udp", otherAddress+":53")
		must(t, err)
		defer c.Close()
		c.SetDeadline(time.Now().Add(2 * time.Second))
		b := make([]byte, 10)
		_, err = c.Write([]byte("?"))
		n := 0
		if err == nil {
			n, err = c.Read(b)
		}
		if err != nil || string(b[:n]) != "resolver" {
			t.Errorf("%s the resolver answers %q (%v)", when, b[:n], err)
		}
	}
	ask("without rules")
	n, err := CaptureNames(p.ns, []netip.Addr{netip.MustParseAddr(otherAddress)})
	must(t, err)
	ask("captured,")
	must(t, n.Release())
	ask("released,")
	must(t, n.Close())
	ask("afterwards")
}
