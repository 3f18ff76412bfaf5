package pods

import (
	"context"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/localfault"
	"github.com/isthmus-mesh/isthmus/internal/netspace"
	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// held is a pod with 40 local ports that is captured as far as its application is dialed.
func held(t *testing.T) (*netspace.Space, *Set) {
	t.Helper()
	netspace.NeedRoot(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	s, err := netspace.New("pods")
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	must(err)
	must(s.Segment("net", map[string][]string{"pod": {"10.71.1.1"}, "other": {"10.71.1.2"}}))
	must(s.In("pod", func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("40000 40039"), 0o600)
	}))
	ns, err := podns.Open(s.Path("pod"))
	must(err)
	t.Cleanup(func() { ns.Close() })
	must(capture.SetSource(ns, false))
	h := &Pod{uid: "hello", address: netip.MustParseAddr("10.71.1.1"), place: place{ns: ns}}
	h.ports, err = capture.PortsOf(ns)
	must(err)
	c := &Set{p: alone(), cfg: Options{Config: DefaultConfig()}, held: map[string]*Pod{h.uid: h}}
	h.source = &originalSource{c: c, h: h, own: []netip.Addr{h.address}}
	return s, c
}

// Connections come from the client's address, then from the pod's own, and fail
// locally when the pod has no port left. The pod's own calls work all the while.
func TestApplicationDialFallsBackPerPort(t *testing.T) {
	s, c := held(t)
	const client = "10.71.1.2"
	for host, address := range map[string]string{"pod": "10.71.1.1:8080", "other": client + ":8081"} {
		l, err := s.Listen(host, address)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
	dial := func() (net.Conn, error) {
		return c.ToApplication("hello", netip.MustParseAddr(client), nil)(context.Background(), netip.MustParseAddrPort("10.71.1.1:8080"), 5*time.Second)
	}
	open := map[string][]net.Conn{}
	var short error
	for range 100 {
		conn, err := dial()
		if err != nil {
			short = err
			break
		}
		defer conn.Close()
		from := conn.LocalAddr().(*net.TCPAddr).IP.String()
		open[from] = append(open[from], conn)
		own, err := s.Dial("pod", client+":8081")
		if err != nil {
			t.Fatalf("the pod's own call beside %d connections: %v", len(open[client])+len(open["10.71.1.1"]), err)
		}
		own.SetLinger(0) // or its port is in TIME_WAIT
		own.Close()
	}
	if !localfault.Is(short) {
		t.Errorf("without a free port: %v, want a local failure", short)
	}
	if a, b := len(open[client]), len(open["10.71.1.1"]); a < 5 || b < 25 || len(open) != 2 {
		t.Errorf("%d connections from the client's address and %d from the pod's own, of %d addresses; want most of 10 and most of 40", a, b, len(open))
	}
	for _, list := range open {
		for _, conn := range list {
			conn.(*net.TCPConn).SetLinger(0)
			conn.Close()
		}
	}
	for range 20 {
		conn, err := dial()
		if err != nil {
			t.Fatalf("after the shortage: %v", err)
		}
		if from := conn.LocalAddr().(*net.TCPAddr).IP.String(); from != client {
			t.Errorf("after the shortage a connection comes from %s, want %s", from, client)
		}
		conn.(*net.TCPConn).SetLinger(0)
		conn.Close()
	}
}
