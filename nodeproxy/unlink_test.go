package nodeproxy_test

import (
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// unlink takes networks out of a federation.networks.
func unlink(t *testing.T, path string, networks ...string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := keyfile.ParseFile(path, b)
	if err != nil {
		t.Fatal(err)
	}
	f.Networks = slices.DeleteFunc(f.Networks, func(n keyfile.Network) bool { return slices.Contains(networks, n.Name) })
	if err := os.WriteFile(path+".new", f.Format(), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// Three networks of one trust domain, of which two serve hello. One is unlinked, then the
// other: new connections go elsewhere, then nowhere, and open ones have timeouts.drain.
func TestUnlinkEndsConnections(t *testing.T) {
	const drain = 2 * time.Second
	m := meshtest.New(t)
	m.Networks("east", "west", "north")
	host := m.Service("hello", 80, 8080)
	client := m.Pod("east", "east-1", "client-1")
	for _, n := range []string{"east", "west", "north"} {
		m.Gateway(n, "gw-1")
		if n == "east" {
			continue
		}
		m.Pod(n, n+"-1", "hello-"+n, "hello").Serve(8080, func(c *net.TCPConn) {
			io.WriteString(c, n+"\n")
			io.Copy(c, c)
		})
	}
	at := client.Outbound(host + ":80")
	files, lists := map[string]string{}, map[string]string{}
	for _, n := range []string{"east", "west", "north"} {
		files[n], lists[n] = m.WriteOwn(n), m.LinkFile(n)
	}
	m.EachGateway = func(c *gateway.Config) {
		c.Discovery.File, c.Federation.Networks = files[c.Network], lists[c.Network]
	}
	m.EachNode = func(c *nodeproxy.Config) {
		c.Discovery.File, c.Federation.Networks = files[c.Network], lists[c.Network]
		c.Timeouts.Drain = drain
	}
	m.Start()
	node := m.Process("node proxy east-1")
	open := func() (c *net.TCPConn, network string, err error) {
		if c, err = meshtest.Dial(at); err != nil {
			return nil, "", err
		}
		c.SetDeadline(time.Now().Add(10 * time.Second))
		var b [1]byte
		for err == nil && !strings.HasSuffix(network, "\n") {
			if _, err = c.Read(b[:]); err == nil {
				network += string(b[:])
			}
		}
		return c, strings.TrimSpace(network), err
	}
	echo := func(c *net.TCPConn) error {
		c.SetDeadline(time.Now().Add(time.Minute))
		if _, err := c.Write([]byte("x")); err != nil {
			return err
		}
		_, err := io.ReadFull(c, make([]byte, 1))
		return err
	}
	held := map[string][]*net.TCPConn{}
	meshtest.Eventually(t, "connections to both", func() bool {
		if c, network, err := open(); err == nil {
			t.Cleanup(func() { c.Close() })
			held[network] = append(held[network], c)
		}
		return len(held["west"]) >= 5 && len(held["north"]) >= 5
	})
	// ended waits for the reset of all that are held of network.
	ended := func(network string, since time.Time) {
		t.Helper()
		for _, c := range held[network] {
			c.SetDeadline(time.Now().Add(meshtest.Patience))
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("a connection to %s that was open ends by %v, want a reset", network, err)
			}
		}
		if took := time.Since(since); took < drain-200*time.Millisecond {
			t.Errorf("open connections to %s were reset after %v, want timeouts.drain (%v)", network, took, drain)
		}
		node.Log.Await(t, "connection", "direction", "outbound", "network", network, "result", "tunnel_lost")
		if l := node.Log.Find("connection", "direction", "outbound", "network", network, "result", "tunnel_lost"); !strings.Contains(l[0].Text("error"), "was removed from federation.networks") {
			t.Errorf("the access log says %v", l[0])
		}
	}
	draining := func(times int) time.Time {
		meshtest.Eventually(t, "the node proxy has read the file", func() bool { return len(node.Log.Find("sessions of unlinked networks draining")) >= times })
		return time.Now()
	}

	unlink(t, lists["east"], "west")
	since := draining(1)
	for range 20 {
		if c, network, err := open(); err != nil || network != "north" {
			t.Errorf("west is unlinked: a new connection goes to %q, %v", network, err)
		} else {
			c.Close()
		}
	}
	for _, c := range held["west"] {
		if err := echo(c); err != nil {
			t.Errorf("a connection that is open, before the drain is over: %v", err)
		}
	}
	ended("west", since)
	for _, c := range held["north"] {
		if err := echo(c); err != nil {
			t.Errorf("a connection to a network that is linked: %v", err)
		}
	}
	unlink(t, lists["east"], "north")
	since = draining(2)
	if _, network, err := open(); err == nil {
		t.Errorf("all are unlinked: a new connection goes to %q", network)
	}
	if line := node.Log.Await(t, "connection", "direction", "outbound", "result", "unknown_service"); line.Text("error") == "" {
		t.Errorf("the refusal has no reason: %v", line)
	}
	ended("north", since)
}
