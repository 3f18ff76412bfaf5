package gateway_test

import (
	"maps"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/internal/lines"
	"github.com/isthmus-mesh/isthmus/internal/testlb"
)

// newUDPSite runs gateways of two networks, with lines.transport of each.
func newUDPSite(t *testing.T, east, west string, more ...func(*site)) *site {
	s := newSite(t, 1)
	s.Gateway("east", "gw-e")
	s.EachGateway = func(c *gateway.Config) {
		if c.Lines.Transport = east; c.Network == "west" {
			c.Lines.Transport = west
		}
	}
	for _, f := range more {
		f(s)
	}
	s.Start()
	return s
}

func TestReachChecksUDP(t *testing.T) {
	for _, c := range []struct {
		name, east, west string
		silent           bool
		failure          answer.UDPFailure
	}{
		{"auto, served", lines.Auto, lines.QUIC, false, ""},
		{"quic, refused", lines.QUIC, lines.TCP, false, answer.UDPRefused},
		{"quic, silent", lines.QUIC, lines.TCP, true, answer.UDPSilent},
		{"tcp", lines.TCP, lines.QUIC, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newUDPSite(t, c.east, c.west)
			if c.silent {
				socket, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(s.GatewayAt("west", "gw-1")))
				if err != nil {
					t.Fatal(err)
				}
				defer socket.Close()
			}
			x := s.reach(t).Tried[0]
			t.Logf("%+v, %+v", x.UDP, x.Path)
			if x.Error != "" || x.Path == nil || x.UDPError != "" {
				t.Fatalf("%+v; want a tunnel and its path", x)
			}
			for _, name := range []string{"gateway east/gw-e", "gateway west/gw-1"} {
				if l := s.Process(name).Log.Above(); len(l) > 0 {
					t.Errorf("%s logs the check: %v", name, l)
				}
			}
			if c.east == lines.TCP {
				_, body := s.Process("gateway east/gw-e").Get(t, "/reach")
				if x.UDP != nil || x.Transport != "" || strings.Contains(body, "udp") || strings.Contains(body, "transport") {
					t.Errorf("%s\nwant nothing of UDP", body)
				}
				return
			}
			if x.Transport != c.east || len(x.UDP) != 1 || x.UDP[0].Failure != c.failure || (x.UDP[0].HandshakeMS > 0) != (c.failure == "") {
				t.Errorf("%q: %+v; want failure %q", x.Transport, x.UDP, c.failure)
			}
		})
	}
}

// Two operators may check at the same time.
func TestReachChecksUDPForEachCaller(t *testing.T) {
	s := newUDPSite(t, lines.QUIC, lines.QUIC)
	var both sync.WaitGroup
	var got [2]answer.Tried
	for i := range got {
		both.Go(func() { got[i] = s.reach(t).Tried[0] })
	}
	both.Wait()
	for _, x := range got {
		if len(x.UDP) != 1 || x.UDP[0].Failure != "" || x.UDPError != "" {
			t.Errorf("%+v, want that UDP passes", x)
		}
	}
}

// lines.transports of the gateway holds for its check too.
func TestReachChecksUDPByNetwork(t *testing.T) {
	for _, c := range []struct{ transport, west, want string }{
		{lines.TCP, lines.QUIC, lines.QUIC}, {lines.QUIC, lines.TCP, ""}, {lines.QUIC, lines.Auto, lines.Auto},
	} {
		s := newUDPSite(t, c.transport, lines.QUIC, func(s *site) {
			each := s.EachGateway
			s.EachGateway = func(g *gateway.Config) { each(g); g.Lines.Transports = map[string]string{"west": c.west} }
		})
		if x := s.reach(t).Tried[0]; x.Transport != c.want || (len(x.UDP) > 0) != (c.want != "") {
			t.Errorf("%+v: transport %q and UDP %+v, want %q", c, x.Transport, x.UDP, c.want)
		}
	}
}

// Each UDP address is checked, also with fewer or more of them than of TCP.
func TestReachChecksEachUDPAddress(t *testing.T) {
	var silent, passes netip.AddrPort
	s := newUDPSite(t, lines.QUIC, lines.QUIC, func(s *site) {
		silent, passes = netip.AddrPortFrom(s.Addr(), 443), netip.AddrPortFrom(s.Addr(), 443)
		socket, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(silent))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { socket.Close() })
		for i := range s.Config.Gateways {
			if g := &s.Config.Gateways[i]; g.Network == "west" {
				u, err := testlb.ServeUDP(passes, g.Address)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(u.Close)
				g.QUICAddresses = []netip.AddrPort{silent, passes}
			}
		}
	})
	x := s.reach(t).Tried[0]
	found := map[string]answer.UDPFailure{}
	for _, u := range x.UDP {
		found[u.Address] = u.Failure
	}
	if want := map[string]answer.UDPFailure{silent.String(): answer.UDPSilent, passes.String(): ""}; !maps.Equal(found, want) || x.UDPError != "" {
		t.Errorf("%v, %q; want %v", found, x.UDPError, want)
	}
}
