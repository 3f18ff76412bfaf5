package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// scopeSite is a pod of an exported service, on two ports, and of a private one,
// with something on a port of no service.
func scopeSite(t *testing.T) (*site, *meshtest.Pod) {
	s := newSite(t, 1)
	s.Service("private", 5432, 5432)
	s.EditService("private", func(x *discovery.Service) { x.Global = false })
	pod := s.Pod("west", "west-1", "both-1", "hello", "private")
	s.pods[0].Edit(func(w *discovery.Workload) { w.State = "notReady" })
	for _, port := range []uint16{8080, 5432, 9999} {
		pod.Serve(port, func(c *net.TCPConn) { fmt.Fprintf(c, "port %d", port) })
	}
	return s, pod
}

var scopeCases = []struct {
	authority string // port alone: at the pod's address
	answer    string
	declared  bool
	exported  bool
}{
	{"hello.default.svc.cluster.local:80", "port 8080", true, true},
	{"hello.default.mesh.internal:80", "port 8080", true, true},
	{"8080", "port 8080", true, true},
	{"private.default.svc.cluster.local:5432", "port 5432", true, false},
	{"5432", "port 5432", true, false},
	{"9999", "port 9999", false, false},
}

// ask opens a session with pod as the shop, on conn or directly, and asks for
// every authority; what is refused must be so by policy.
func (s *site) ask(t *testing.T, pod *meshtest.Pod, conn func() net.Conn, allowed func(i int) bool, h hbone.Header) {
	t.Helper()
	for i, c := range scopeCases {
		authority := c.authority
		if authority[0] <= '9' {
			authority = pod.Addr.String() + ":" + authority
		}
		tt, err := hbone.ClientTLS(context.Background(), conn(), s.TLS(s.shop.Identity(), "h2", pod.Identity()))
		if err != nil {
			t.Fatal(err)
		}
		session, err := hbone.NewClient(context.Background(), tt, hbone.DefaultConfig())
		if err != nil {
			t.Fatal(err)
		}
		st, _, err := session.Open(context.Background(), &hbone.Request{Authority: authority, Header: h})
		var se *hbone.StatusError
		switch {
		case allowed(i) && err != nil:
			t.Errorf("CONNECT %s: %v", authority, err)
		case allowed(i):
			if b, _ := io.ReadAll(st); string(b) != c.answer {
				t.Errorf("CONNECT %s: %q, want %q", authority, b, c.answer)
			}
		case !errors.As(err, &se) || se.Status != 403 || se.Reason() != header.ReasonNotExported:
			t.Errorf("CONNECT %s: %v, want 403 not_exported", authority, err)
		}
		session.Close(nil)
	}
}

// What comes through a gateway may ask for what is exported, whatever it says of
// itself; what comes from the own network as far as inbound.ports goes.
func TestOtherNetworksReachWhatIsExportedAndNothingElse(t *testing.T) {
	s, pod := scopeSite(t)
	s.Start()
	session := s.dial(t)
	through := func() net.Conn {
		st, _, refused := connect(t, session, hello, nil)
		if refused != nil {
			t.Fatal(refused)
		}
		return st
	}
	exported := func(i int) bool { return scopeCases[i].exported }
	for _, network := range []string{"", "east", "west"} {
		t.Run("a client that says it is of network "+network, func(t *testing.T) {
			h := hbone.Header{}
			if network != "" {
				h[header.NameForwardedNetwork] = network
			}
			s.ask(t, pod, through, exported, h)
		})
	}
	direct := func() net.Conn {
		c, err := net.Dial("tcp4", pod.At(meshtest.HBONEPort).String())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	t.Run("the own network", func(t *testing.T) { s.ask(t, pod, direct, func(int) bool { return true }, nil) })
	t.Run("a gateway that discovery does not list", func(t *testing.T) {
		s.ask(t, pod, direct, exported, hbone.Header{header.NameForwardedNetwork: "east"})
		if l := s.Process("node proxy west-1").Log.Find("a connection of another network comes from an address that discovery does not list for any gateway: set gateways[].sources, or everything that comes from there and does not say so may ask for every port"); len(l) != 1 || l[0].Text("level") != "warn" {
			t.Errorf("%d warnings, want one a minute: %v", len(l), l)
		}
	})
	t.Run("a gateway that discovery has just forgotten", func(t *testing.T) {
		st := through()
		s.Config.Gateways[0].Sources = []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}
		s.Write()
		node := s.Process("node proxy west-1")
		meshtest.Eventually(t, "the node proxy knows", func() bool { return node.State(t)["revision"] == float64(2) })
		s.ask(t, pod, through, exported, nil)
		st.Close()
	})
	if l := s.gateway().Log.Find("outlier changed"); len(l) > 0 {
		t.Errorf("asking for what is not exported moved health: %v", l[0])
	}
}

func TestASwitchClosesPodsToTheOwnNetworkToo(t *testing.T) {
	for ports, allowed := range map[string]func(i int) bool{
		nodeproxy.PortsDeclared: func(i int) bool { return scopeCases[i].declared },
		nodeproxy.PortsExported: func(i int) bool { return scopeCases[i].exported },
	} {
		t.Run(ports, func(t *testing.T) {
			s, pod := scopeSite(t)
			s.EachNode = func(c *nodeproxy.Config) { c.Inbound.Ports = ports }
			s.Start()
			s.ask(t, pod, func() net.Conn {
				c, err := net.Dial("tcp4", pod.At(meshtest.HBONEPort).String())
				if err != nil {
					t.Fatal(err)
				}
				return c
			}, allowed, nil)
		})
	}
}
