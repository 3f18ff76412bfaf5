//go:build linux

package capture

import (
	"net"
	"net/netip"
	"testing"
	"time"
)

// nodeLocal is where NodeLocal DNSCache answers.
const nodeLocal = "169.254.20.10"

// A resolver library that keeps its socket (Netty, dnsmasq) is answered by the node proxy from the moment that names are
// captured, and by its own resolvers from the moment that they are not any more.
func TestASocketThatAsksForLongFollowsTheCapture(t *testing.T) {
	p := newPod(t)
	answer := func(c net.PacketConn, who string) {
		t.Cleanup(func() { c.Close() })
		go func() {
			b := make([]byte, 10)
			for {
				_, from, err := c.ReadFrom(b)
				if err != nil {
					return
				}
				c.WriteTo([]byte(who), from)
			}
		}()
	}
	lc := net.ListenConfig{Control: p.ns.Control}
	type asking struct {
		net.Conn
		of string
	}
	var sockets []asking
	resolvers := []netip.Addr{netip.MustParseAddr(otherAddress), netip.MustParseAddr(other6), netip.MustParseAddr(nodeLocal)}
	must(t, p.IP("other", "addr add "+nodeLocal+"/32 dev eth0"))
	must(t, p.IP("pod", "route add "+nodeLocal+" dev eth0"))
	for _, a := range resolvers {
		c, err := p.ListenPacket("other", netip.AddrPortFrom(a, 53).String())
		must(t, err)
		answer(c, "resolver")
	}
	for _, at := range []string{otherAddress + ":53", "[" + other6 + "]:53", nodeLocal + ":53"} {
		c, err := p.dial("udp", at, nil)
		must(t, err)
		defer c.Close()
		sockets = append(sockets, asking{c, at})
	}
	unconnected, err := lc.ListenPacket(t.Context(), "udp", podAddress+":0")
	must(t, err)
	defer unconnected.Close()
	expect := func(when, want string) {
		t.Helper()
		for range 3 {
			for _, c := range sockets {
				c.SetDeadline(time.Now().Add(time.Second))
				b := make([]byte, 10)
				_, err := c.Write([]byte("?"))
				n := 0
				if err == nil {
					n, err = c.Read(b)
				}
				if got := string(b[:n]); err != nil || got != want {
					t.Errorf("%s %s answers %q (%v), want %s", when, c.of, got, err, want)
				}
			}
			at := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(otherAddress + ":53"))
			unconnected.SetDeadline(time.Now().Add(time.Second))
			b := make([]byte, 10)
			unconnected.WriteTo([]byte("?"), at)
			n, from, err := unconnected.ReadFrom(b)
			if got := string(b[:n]); err != nil || got != want || from.String() != at.String() {
				t.Errorf("%s %q answers an unconnected socket from %v (%v), want %s from %v", when, got, from, err, want, at)
			}
		}
	}
	must(t, Set(p.ns, mesh))
	expect("at first", "resolver")
	for range 2 {
		var proxies []net.PacketConn
		for _, at := range QueriesTo(resolvers) {
			c, err := lc.ListenPacket(t.Context(), "udp", at.String())
			must(t, err)
			answer(c, "proxy")
			proxies = append(proxies, c)
		}
		n, err := CaptureNames(p.ns, resolvers)
		must(t, err)
		expect("captured,", "proxy")
		must(t, n.Close())
		for _, c := range proxies {
			c.Close()
		}
		expect("after the process has ended", "resolver")
	}
}
