package nodeproxy_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

func TestSocksReachesServicesByNameAndByAddress(t *testing.T) {
	p := newPair(t, 1)
	vip := netip.MustParseAddr("240.240.0.7")
	p.EditService("hello", func(s *discovery.Service) { s.VIPs = []netip.Addr{vip} })
	neighbour := p.Pod("east", "east-2", "local-1")
	neighbour.App(7000)
	p.pods[0].App(8080)
	p.Start()
	for _, to := range []struct{ address, answers string }{
		{hello, "hello-1"},
		{"HELLO.default.svc.cluster.local.:80", "hello-1"},
		{"hello.default.mesh.internal:80", "hello-1"},
		{"240.240.0.7:80", "hello-1"},
		{neighbour.At(7000).String(), "local-1"},
	} {
		c, err := p.shop.Connect(to.address)
		if err != nil {
			t.Errorf("%s: %v", to.address, err)
			continue
		}
		if got, err := meshtest.Ask(c, "1"); err != nil || got != to.answers {
			t.Errorf("%s: answered by %q, %v; want %s", to.address, got, err, to.answers)
		}
		c.Close()
	}
}

func TestSocksRepliesSayWhyThereIsNoWay(t *testing.T) {
	p := newPair(t, 1)
	p.Service("private", 80, 8080)
	p.EditService("private", func(s *discovery.Service) { s.Global = false })
	p.Pod("west", "west-1", "private-1", "private")
	p.Service("empty", 80, 8080)
	p.Start() // and no application anywhere
	for _, c := range []struct {
		name, to string
		code     byte
	}{
		{"unknown service", "nobody.default.svc.cluster.local:80", 4},
		{"unknown port", "hello.default.svc.cluster.local:99", 4},
		{"no endpoint", "empty.default.svc.cluster.local:80", 4},
		{"unknown address", "203.0.113.9:80", 4},
		{"not for other networks", "private.default.svc.cluster.local:80", 2},
		{"refused", hello, 5},
		{"port 0", "hello.default.svc.cluster.local:0", 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, err := p.shop.Connect(c.to)
			var se *meshtest.SocksError
			if err == nil {
				conn.Close()
			}
			if !errors.As(err, &se) || se.Code != c.code {
				t.Errorf("%s: %v; want SOCKS reply code %d", c.to, err, c.code)
			}
		})
	}
}

func TestSocksSurvivesMalformedGreetings(t *testing.T) {
	p := newPair(t, 1)
	p.pods[0].App(8080)
	p.Start()
	connect := func(kind byte, rest ...byte) []byte { return append([]byte{5, 1, 0, 5, 1, 0, kind}, rest...) }
	long := append([]byte{255}, append(make([]byte, 255), 0, 80)...)
	for _, c := range []struct {
		name  string
		send  []byte
		reply []byte // what comes back before the end
	}{
		{"nothing", nil, nil},
		{"version 4", []byte{4, 1, 0, 80, 127, 0, 0, 1, 0}, nil},
		{"HTTP", []byte("GET / HTTP/1.1\r\n\r\n"), nil},
		{"only authentication", []byte{5, 1, 2}, []byte{5, 0xff}},
		{"no methods at all", []byte{5, 0}, []byte{5, 0xff}},
		{"BIND", []byte{5, 1, 0, 5, 2, 0, 1, 127, 0, 0, 1, 0, 80}, []byte{5, 0, 5, 7}},
		{"address type 9", connect(9), []byte{5, 0, 5, 8}},
		{"empty name", connect(3, 0, 0, 80), []byte{5, 0, 5, 8}},
		{"cut in the name", connect(3, 200, 'a'), []byte{5, 0}},
		{"zeros for a name", connect(3, long...), []byte{5, 0, 5, 4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, err := meshtest.Dial(p.shop.Socks)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conn.Write(c.send)
			conn.CloseWrite()
			got, err := io.ReadAll(conn)
			if err != nil && !isReset(err) {
				t.Fatalf("%v; want an end of some kind", err)
			}
			if len(got) < len(c.reply) || string(got[:len(c.reply)]) != string(c.reply) || len(c.reply) < 3 && len(got) != len(c.reply) {
				t.Errorf("answer % x; want % x", got, c.reply)
			}
		})
	}
	c, err := p.shop.Connect(hello)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, err := meshtest.Ask(c, "1"); err != nil || got != "hello-1" {
		t.Errorf("after all that: %q, %v; want hello-1", got, err)
	}
}

func isReset(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && !op.Timeout()
}

func TestSocksSaysYesOnlyWhenTheFarApplicationHasAccepted(t *testing.T) {
	p := newPair(t, 2)
	sick := p.pods[0].App(8080)
	p.pods[1].App(8080)
	p.Start()
	if err := sick.Refuse(context.Background(), 8080); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		c, err := p.shop.Connect(hello)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := meshtest.Ask(c, "1"); err != nil || got != "hello-2" {
			t.Errorf("%q, %v; want hello-2", got, err)
		}
		c.Close()
	}
}

func TestSocksPipelinedBytesReachTheApplication(t *testing.T) {
	p := newPair(t, 1)
	p.pods[0].App(8080)
	p.Start()
	c, err := meshtest.Dial(p.shop.Socks)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	name := "hello.default.svc.cluster.local"
	all := append([]byte{5, 1, 0, 5, 1, 0, 3, byte(len(name))}, name...)
	all = binary.BigEndian.AppendUint16(all, 80)
	all = append(all, "hello 5\n"...) // before any answer
	if _, err := c.Write(all); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 12)); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len("hello-1 8080 5\n"))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "hello-1 8080 5\n" {
		t.Errorf("answer %q, %v", got, err)
	}
}
