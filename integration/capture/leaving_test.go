//go:build linux

package capture

import (
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// A pod that leaves the mesh with open connections and comes back before they end is captured as if it had never left.
func TestAPodThatLeavesForAMoment(t *testing.T) {
	t.Parallel()
	w := newWorldWith(t, "")
	w.write(t, "node-a.yaml", strings.Replace(w.node("a", admin, "shop-1", "shop-2"), "drain: 2s", "drain: 20s", 1))
	must(t, w.nodes["node-a"].Stop(syscall.SIGTERM, 5*time.Second))
	w.start(t, "node-a")
	var open net.Conn
	for open == nil { // until one is with shop-2, through its node proxy
		c, err := w.Dial("shop-1", local+":80")
		must(t, err)
		defer c.Close()
		b := make([]byte, len("shop-2"))
		c.SetDeadline(time.Now().Add(5 * time.Second))
		_, err = io.ReadFull(c, b)
		must(t, err)
		if string(b) == "shop-2" {
			open = c
		}
	}
	var rest strings.Builder
	for line := range strings.Lines(mesh) {
		if !strings.Contains(line, "uid: shop-2") {
			rest.WriteString(line)
		}
	}
	w.write(t, "mesh.yaml", rest.String())
	w.until(t, 2*time.Second, "shop-2", hello+":80", func(_ string, err error) bool { return err != nil && !refused("", err) })
	w.write(t, "mesh.yaml", mesh)
	t.Logf("captured %v after it came back", w.until(t, 8*time.Second, "shop-2", hello+":80", answered))
}

// A query that was asked before a node proxy was told to stop is answered.
func TestQueriesAreAnsweredWhileANodeProxyStops(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	u, err := w.ListenPacket("gateway", addresses["gateway"]+":53")
	must(t, err)
	l, err := w.Listen("gateway", addresses["gateway"]+":53")
	must(t, err)
	asked := make(chan struct{}, 10)
	slow := dns.HandlerFunc(func(rw dns.ResponseWriter, q *dns.Msg) {
		asked <- struct{}{}
		time.Sleep(500 * time.Millisecond)
		rw.WriteMsg(new(dns.Msg).SetReply(q))
	})
	for _, server := range []*dns.Server{{PacketConn: u, Handler: slow}, {Listener: l, Handler: slow}} {
		go server.ActivateAndServe()
		t.Cleanup(func() { server.Shutdown() })
	}
	ns, err := podns.Open(w.Path("shop-1"))
	must(t, err)
	defer ns.Close()
	d := net.Dialer{Control: ns.Control}
	var conns []*dns.Conn
	for _, network := range []string{"udp", "tcp"} {
		c, err := d.Dial(network, addresses["gateway"]+":53")
		must(t, err)
		defer c.Close()
		conns = append(conns, &dns.Conn{Conn: c})
		must(t, conns[len(conns)-1].WriteMsg(new(dns.Msg).SetQuestion("other.example.", dns.TypeA)))
		<-asked
	}
	w.nodes["node-a"].Signal(syscall.SIGTERM)
	for i, c := range conns {
		c.SetDeadline(time.Now().Add(3 * time.Second))
		if _, err := c.ReadMsg(); err != nil {
			t.Errorf("query %d is not answered: %v", i, err)
		}
	}
}
