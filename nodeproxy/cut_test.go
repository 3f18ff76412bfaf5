package nodeproxy_test

import (
	"context"
	"io"
	"net"
	"testing"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// What ends an upload to a server that has said all it has to say. A client of ours
// ends each stream itself, so that the end of its connection is none. A stock client
// leaves its last END_STREAM out now and then: a connection that came through a gateway
// and ends is an end, and a process that dies resets (TestAKilledRelayResets in hbone).
func TestTheEndOfAConnectionEndsTheUploadsOfStockClientsAlone(t *testing.T) {
	for _, c := range []struct {
		name            string
		header          hbone.Header
		reset, complete bool
	}{
		{"ours", hbone.Header{header.NameForwardedNetwork: "east", header.NameEnds: "explicit"}, false, false},
		{"stock", hbone.Header{header.NameForwardedNetwork: "east"}, false, true},
		{"stock, reset", hbone.Header{header.NameForwardedNetwork: "east"}, true, false},
		{"stock, without a gateway", nil, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t, 1)
			uploaded := make(chan error, 1)
			p.pods[0].Serve(8080, func(c *net.TCPConn) {
				io.WriteString(c, "go ahead\n")
				c.CloseWrite()
				_, err := io.ReadAll(c)
				uploaded <- err
			})
			p.Start()
			raw, err := net.Dial("tcp4", p.pods[0].At(meshtest.HBONEPort).String()) // as the gateway does
			if err != nil {
				t.Fatal(err)
			}
			transport, err := hbone.ClientTLS(context.Background(), raw, p.TLS(p.shop.Identity(), "h2", p.pods[0].Identity()))
			if err != nil {
				t.Fatal(err)
			}
			s, err := hbone.NewClient(context.Background(), transport, hbone.DefaultConfig())
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close(nil)
			st, _, err := s.Open(context.Background(), &hbone.Request{Authority: hello, Header: c.header})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadAll(st); err != nil {
				t.Fatal(err)
			}
			if _, err := st.Write(make([]byte, 1000)); err != nil { // of a million
				t.Fatal(err)
			}
			if c.reset {
				raw.(*net.TCPConn).SetLinger(0)
				raw.Close()
			} else {
				raw.(*net.TCPConn).CloseWrite() // FIN, without a closing alert
			}
			if err := <-uploaded; (err == nil) != c.complete {
				t.Errorf("the server's upload ended with %v; want a clean end %v", err, c.complete)
			}
		})
	}
}
