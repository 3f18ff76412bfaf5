package gateway_test

import (
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/internal/lines"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// newUDPSite runs gateways of two networks, with lines.transport of each.
func newUDPSite(t *testing.T, east, west string) *site {
	s := newSite(t, 1)
	s.Gateway("east", "gw-e")
	s.EachGateway = func(c *gateway.Config) {
		if c.Lines.Transport = east; c.Network == "west" {
			c.Lines.Transport = west
		}
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
			r := s.reach(t)
			x := r.Tried[0]
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
				if x.UDP != nil || r.Transport != "" || strings.Contains(body, "udp") || strings.Contains(body, "transport") {
					t.Errorf("%s\nwant nothing of UDP", body)
				}
				return
			}
			if r.Transport != c.east || x.UDP == nil || x.UDP.Failure != c.failure || (x.UDP.HandshakeMS > 0) != (c.failure == "") {
				t.Errorf("%q: %+v; want failure %q", r.Transport, x.UDP, c.failure)
			}
		})
	}
}

func TestReachChecksUDPOnceAtATime(t *testing.T) {
	s := newUDPSite(t, lines.QUIC, lines.TCP)
	socket, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(s.GatewayAt("west", "gw-1")))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	var both sync.WaitGroup
	var got [2]answer.Tried
	for i := range got {
		both.Go(func() { got[i] = s.reach(t).Tried[0] })
	}
	both.Wait()
	if got[0].UDP == nil {
		got[0], got[1] = got[1], got[0]
	}
	if got[0].UDP == nil || got[1].UDP != nil || !strings.Contains(got[1].UDPError, "another check of UDP") {
		t.Errorf("%+v\n%+v\nwant one check of UDP", got[0], got[1])
	}
	meshtest.Eventually(t, "the next check runs", func() bool { return s.reach(t).Tried[0].UDP != nil })
}
