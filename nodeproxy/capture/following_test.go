//go:build linux

package capture

import (
	"net"
	"net/netip"
	"testing"
	"time"
)

// While queries of a pod are captured by what it resolved by and by what it does now, answers come from whom it has asked,
// also to what it asked before: resolvers of libraries take none of anybody else.
func TestAnswersAreOfWhoWasAskedWhileResolversChange(t *testing.T) {
	p := newPod(t)
	a, b, c := netip.MustParseAddr(otherAddress), netip.MustParseAddr("10.99.7.7"), netip.MustParseAddr("10.99.7.8")
	for _, x := range []struct{ before, now []netip.Addr }{
		{[]netip.Addr{a}, []netip.Addr{b}},
		{[]netip.Addr{a, b}, []netip.Addr{b, a}},
		{[]netip.Addr{a, b}, []netip.Addr{c, b}},
		{nil, []netip.Addr{b}},
	} {
		now := Following(x.before, x.now)
		first, err := CaptureNames(p.ns, x.before)
		must(t, err)
		lc := net.ListenConfig{Control: p.ns.Control}
		var sockets []net.PacketConn
		asked, answer := make(chan struct{}, 10), make(chan struct{})
		for _, at := range QueriesTo(now) {
			u, err := lc.ListenPacket(t.Context(), "udp", at.String())
			must(t, err)
			sockets = append(sockets, u)
			go func() {
				for buf := make([]byte, 10); ; {
					n, from, err := u.ReadFrom(buf)
					if err != nil {
						return
					}
					asked <- struct{}{}
					<-answer
					u.WriteTo(buf[:n], from)
				}
			}()
		}
		ask := func(at netip.Addr) net.Conn {
			t.Helper()
			u, err := p.dial("udp", netip.AddrPortFrom(at, 53).String(), nil) // hears of that address alone
			must(t, err)
			t.Cleanup(func() { u.Close() })
			u.SetDeadline(time.Now().Add(2 * time.Second))
			u.Write([]byte("?"))
			<-asked
			return u
		}
		answered := func(u net.Conn, when string) {
			t.Helper()
			if _, err := u.Read(make([]byte, 10)); err != nil {
				t.Errorf("from %v to %v, a query to %v %s: %v", x.before, x.now, u.RemoteAddr(), when, err)
			}
		}
		var early []net.Conn
		for _, at := range x.before {
			early = append(early, ask(at))
		}
		next, err := CaptureNames(p.ns, now)
		must(t, err)
		must(t, first.Release())
		close(answer)
		for _, u := range early {
			answered(u, "before they change")
		}
		for _, at := range x.now {
			answered(ask(at), "while the first ones are answered still")
		}
		must(t, first.Close())
		for _, at := range x.now {
			answered(ask(at), "after that")
		}
		must(t, next.Close())
		for _, u := range sockets {
			u.Close()
		}
	}
}
