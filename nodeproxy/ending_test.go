package nodeproxy_test

import (
	"io"
	"net"
	"testing"

	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// A connection that somebody reset did not end well: both node proxies say who it was.
func TestTheResultSaysWhoResetAConnection(t *testing.T) {
	for result, byServer := range map[string]bool{"client_reset": false, "server_reset": true} {
		t.Run(result, func(t *testing.T) {
			p := newPair(t, 1)
			opened, reset := make(chan struct{}), make(chan struct{})
			p.pods[0].Serve(8080, func(c *net.TCPConn) {
				io.ReadFull(c, make([]byte, 1))
				c.Write([]byte("x"))
				<-opened
				if byServer {
					c.SetLinger(0)
					c.Close()
				}
				<-reset
				io.Copy(io.Discard, c)
			})
			p.Start()
			c, err := meshtest.Dial(p.listen.hello)
			if err != nil {
				t.Fatal(err)
			}
			c.Write([]byte("x"))
			if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			close(opened)
			if byServer {
				io.Copy(io.Discard, c)
			} else {
				c.SetLinger(0)
			}
			c.Close()
			close(reset)
			p.client().Log.Await(t, "connection", "direction", "outbound", "result", result, "level", "info")
			if l := p.node(1).Log.Await(t, "connection", "direction", "inbound"); !l.Has("result", result) {
				t.Errorf("the server's side: %v; want %s", l, result)
			}
			if n := p.client().Metric(t, `isthmus_connections_closed_total{reporter="source",result="`+result+`"}`); n != 1 {
				t.Errorf("%v connections are counted as %s; want 1", n, result)
			}
		})
	}
}
