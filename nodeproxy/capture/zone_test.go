//go:build linux

package capture

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"
)

// With all of a pod's connections captured its application has one from the address of each client beside the client's
// own: both may have the same port, whichever was there first.
func TestTheClientMayHaveThePortThatIsDrawnForIt(t *testing.T) {
	p := newSource(t)
	p.application(t, "pod", ":8080")
	in := p.listen(t, "tcp", "[::]:15006")
	must(t, Set(p.ns, all()))
	echo := func() {
		c, err := in.Accept()
		if err == nil {
			t.Cleanup(func() { c.Close() })
			go io.Copy(c, c)
		}
	}
	for client, own := range map[string]string{otherAddress: podAddress, other6: pod6} {
		at := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(client), port) }
		to := netip.AddrPortFrom(netip.MustParseAddr(own), 8080).String()
		theirs := func(port uint16) (c net.Conn) {
			t.Helper()
			go echo()
			must(t, p.In("other", func() (err error) {
				d := net.Dialer{Timeout: 2 * time.Second, LocalAddr: net.TCPAddrFromAddrPort(at(port))}
				c, err = d.Dial("tcp", to)
				return err
			}))
			t.Cleanup(func() { c.Close() })
			return c
		}
		ours := func(port uint16) net.Conn {
			t.Helper()
			c, err := p.as(at(port), to)
			must(t, err)
			t.Cleanup(func() { c.Close() })
			if got := seen(t, c); got != at(port).String() {
				t.Errorf("the application sees %s, want %s", got, at(port))
			}
			return c
		}
		var list []net.Conn
		list = append(list, theirs(45001), ours(45001), ours(45003), theirs(45003))
		must(t, SetSource(p.ns, false)) // as the next node proxy does
		list = append(list, ours(45005))
		for range 3 {
			for i, c := range list {
				if err := echoed(c); err != nil {
					t.Errorf("client %s, connection %d: %v", client, i, err)
				}
			}
		}
	}
}
