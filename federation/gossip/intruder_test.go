package gossip

import (
	"context"
	"crypto/tls"
	"net"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/isthmus-mesh/isthmus/internal/link"
)

// one makes a single gateway of west.
func one(t testing.TB) (*world, *site) {
	w := newWorld(t)
	g := w.add("west", "gw-1")
	return w, w.start(g, w.relays()[g], 1, nil)
}

// raw attaches to s without a gateway of its own.
func (w *world) raw(s *site, as, alpn string) (*tls.Conn, error) {
	return link.Dial(link.TCP).TLS(context.Background(), w.identity, workload(as), s.Identity, s.listener.Addr().String(), alpn, 5*time.Second)
}

func TestWrongIdentityIsRefusedByFederation(t *testing.T) {
	w, s := one(t)
	w.add("east", "gw-1")
	for _, as := range []string{"nodeproxy", "app"} {
		before := rejected(s.metrics, "identity")
		conn, err := w.raw(s, as, ALPN)
		if err != nil {
			t.Fatal(err)
		}
		conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := conn.Read(make([]byte, 1)); err == nil || isTimeout(err) {
			t.Errorf("%s: got %v, want the connection closed", as, err)
		}
		conn.Close()
		eventually(t, as+" is counted", func() bool { return rejected(s.metrics, "identity") > before })
	}
}

func isTimeout(err error) bool {
	ne, ok := err.(net.Error)
	return ok && ne.Timeout()
}

func TestMalformedFederationFramesCloseTheirConnectionOnly(t *testing.T) {
	w, sites := startAll(newWorld(t), "east", "west")
	for _, c := range []struct {
		name, reason string
		bytes        []byte
	}{
		{"unknown kind", "malformed", []byte{9}},
		{"oversized packet", "oversized", []byte{kindPacket, 0xff, 0xff, 0xff, 0xff}},
	} {
		before := rejected(sites[0].metrics, c.reason)
		conn, err := w.raw(sites[0], "gateway-west", ALPN)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(c.bytes); err != nil {
			t.Fatal(err)
		}
		conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := conn.Read(make([]byte, 1)); err == nil || isTimeout(err) {
			t.Errorf("%s: got %v, want the connection closed", c.name, err)
		}
		conn.Close()
		eventually(t, c.name+" is counted", func() bool { return rejected(sites[0].metrics, c.reason) > before })
	}
	// Garbage for memberlist itself, as packet and as stream.
	for _, garbage := range [][]byte{link.AppendFrame([]byte{kindPacket}, []byte("\x07\xff\xff\xff")), []byte("\x02\x06\xff\xff\xff\xff\xff")} {
		conn, err := w.raw(sites[0], "gateway-west", ALPN)
		if err != nil {
			t.Fatal(err)
		}
		conn.Write(garbage)
		conn.Close()
	}
	sites[2].publish(4)
	eventually(t, "the others go on", func() bool { return sites[0].believes("west", 4) && sites[1].believes("west", 4) })
}

func TestStrangerDoesNotBecomeMember(t *testing.T) {
	_, sites := startAll(newWorld(t), "east", "west")
	d := (*delegate)(sites[0].federation)
	if err := d.NotifyAlive(memberNamed("north/gw-1")); err == nil {
		t.Error("a gateway that discovery does not know became a member")
	}
	if err := d.NotifyAlive(memberNamed("west/gw-2")); err != nil {
		t.Error(err)
	}
}

func memberNamed(name string) *memberlist.Node { return &memberlist.Node{Name: name} }
