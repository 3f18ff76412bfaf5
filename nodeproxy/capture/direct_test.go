//go:build linux

package capture

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"
)

// Of the connections in a pod EndDirect offers those that others opened to its listeners, accepted or not yet, and resets
// those that it is told to: neither the pod's own, nor those of a node proxy that have the address of their client.
func TestEndDirectResetsWhatOthersOpened(t *testing.T) {
	p := newPod(t)
	must(t, SetSource(p.ns, false))
	type side struct{ client, server net.Conn }
	open := map[string]side{}
	var offered []string
	name := map[netip.AddrPort]string{} // by the client's end
	listen := func(host, at string) net.Listener {
		l, err := p.Listen(host, at)
		must(t, err)
		t.Cleanup(func() { l.Close() })
		return l
	}
	pair := func(what string, l net.Listener, accept bool, dial func(to string) (net.Conn, error)) {
		c, err := dial(l.Addr().String())
		must(t, err)
		s := side{client: c}
		if accept {
			s.server, err = l.Accept()
			must(t, err)
		}
		open[what] = s
		name[c.LocalAddr().(*net.TCPAddr).AddrPort()] = what
	}
	from := func(host string) func(string) (net.Conn, error) {
		return func(to string) (net.Conn, error) { return p.Dial(host, to) }
	}
	source := func(to string) (net.Conn, error) { // as a node proxy connects for a client
		d := net.Dialer{Timeout: 5 * time.Second, Control: func(n, a string, c syscall.RawConn) error {
			return errors.Join(p.ns.Control(n, a, c), Mark(n, a, c), Source(netip.MustParseAddr(otherAddress), p.ports(t))(n, a, c))
		}}
		return d.Dial("tcp", to)
	}
	app4, app6 := listen("pod", podAddress+":8080"), listen("pod", "["+pod6+"]:8080")
	pair("others 4", app4, true, from("other"))
	pair("others 6", app6, true, from("other"))
	pair("the pod to itself", app4, true, from("pod"))
	pair("the pod over loopback", listen("pod", "127.0.0.1:8081"), true, from("pod"))
	pair("the pod to another", listen("other", otherAddress+":8080"), true, from("pod"))
	pair("a node proxy for another", app4, true, source)
	pair("others 4, not accepted", app4, false, from("other"))
	for _, ends := range []bool{false, true} {
		offered = nil
		n, err := EndDirect(p.ns, func(local, remote netip.AddrPort) bool {
			offered = append(offered, name[remote])
			return ends
		})
		must(t, err)
		slices.Sort(offered)
		want := []string{"others 4", "others 4, not accepted", "others 6"}
		if !slices.Equal(offered, want) || ends && n != len(want) || !ends && n != 0 {
			t.Fatalf("offered %v and ended %d, want %v", offered, n, want)
		}
		for what, s := range open {
			s.client.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			_, err := s.client.Read(make([]byte, 1))
			timeout, is := err.(net.Error)
			if goesOn := is && timeout.Timeout(); goesOn == (ends && slices.Contains(want, what)) {
				t.Errorf("ends %v: %s: %v", ends, what, err)
			}
		}
	}
}
