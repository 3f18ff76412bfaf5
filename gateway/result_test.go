package gateway_test

import (
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// The result of a connection says how it ended, and there is an error beside every
// one but ended and server_ended.
func TestResultAndErrorOfAConnectionAgree(t *testing.T) {
	echoOnce := func(c *net.TCPConn) { io.CopyN(c, c, 1); io.Copy(io.Discard, c) }
	talk := func(st *hbone.Stream) {
		st.Write([]byte("x"))
		io.ReadFull(st, make([]byte, 1))
	}
	reset := func(st *hbone.Stream) { talk(st); st.Reset(http2.ErrCodeConnect) }
	for name, c := range map[string]struct {
		authority string                                     // hello if empty
		pod       func(*net.TCPConn)                         // nobody listens if nil
		client    func(*hbone.Stream)                        // with an open stream
		also      func(*testing.T, *site, *meshtest.Process) // when client has returned
		want      string
	}{
		"in order":                           {pod: echo, client: func(st *hbone.Stream) { talk(st); st.CloseWrite(); io.ReadAll(st) }, want: "ended"},
		"the client leaves in order":         {pod: echo, client: func(st *hbone.Stream) { talk(st); st.Reset(http2.ErrCodeCancel) }, want: "ended"},
		"the client resets":                  {pod: echo, client: reset, want: "client_reset"},
		"the client resets before its hello": {pod: echo, client: func(st *hbone.Stream) { st.Reset(http2.ErrCodeConnect) }, want: "client_reset"},
		"the pod's process is killed":        {pod: func(c *net.TCPConn) { io.CopyN(c, c, 1) }, client: func(st *hbone.Stream) { talk(st); io.ReadAll(st); st.CloseWrite() }, want: "server_ended"},
		"the pod ends before the client":     {pod: func(c *net.TCPConn) { io.CopyN(c, c, 1) }, client: func(st *hbone.Stream) { talk(st); io.ReadAll(st); st.Reset(http2.ErrCodeCancel) }, want: "server_ended"},
		"the pod resets":                     {pod: func(c *net.TCPConn) { io.CopyN(c, c, 1); c.SetLinger(0) }, client: func(st *hbone.Stream) { talk(st); st.WaitReadable() }, want: "server_reset"},
		"the session is lost":                {pod: echo, client: func(st *hbone.Stream) { talk(st); st.Session().Close(io.ErrUnexpectedEOF) }, want: "tunnel_lost"},
		"the client goes on":                 {pod: func(c *net.TCPConn) { io.CopyN(c, c, 1); c.CloseWrite(); io.Copy(io.Discard, c) }, client: talk, want: "half_closed"},
		"no hello":                           {pod: echoOnce, client: func(*hbone.Stream) {}, want: "no_hello"},
		"the gateway stops":                  {pod: echo, client: talk, also: func(t *testing.T, _ *site, gw *meshtest.Process) { gw.Stop(t) }, want: "stopped"},
		"the pod's address is another's": {pod: echo, client: talk, want: "reassigned", also: func(_ *testing.T, s *site, _ *meshtest.Process) {
			s.pods[0].Edit(func(w *discovery.Workload) { w.UID += "-anew" })
			s.Write()
		}},
		"nobody listens":  {want: "unreachable"},
		"unknown service": {authority: "nobody.default.svc.cluster.local:80", want: "unknown_service"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, 1)
			s.EachGateway = func(g *gateway.Config) {
				alone(g)
				switch c.want { // where a time decides it is short, and nowhere else over
				case "no_hello":
					g.Timeouts.Hello = 500 * time.Millisecond
				case "half_closed":
					g.Timeouts.HalfClosed = 50 * time.Millisecond
				case "stopped":
					g.Timeouts.Drain = 50 * time.Millisecond
				default:
					g.Timeouts.Hello, g.Timeouts.HalfClosed = time.Hour, time.Hour
				}
			}
			s.Write()
			gw := s.StartGateway("west", "gw-1")
			gw.AwaitReady(t)
			if c.pod != nil {
				s.pods[0].Serve(meshtest.HBONEPort, c.pod)
			}
			authority := hello
			if c.authority != "" {
				authority = c.authority
			}
			st, _, _ := connect(t, s.dial(t), authority, nil)
			if st != nil {
				c.client(st)
			}
			if c.also != nil {
				c.also(t, s, gw)
			}
			line := gw.Log.Await(t, "tunnel")
			if line.Text("result") != c.want || (line.Text("error") == "") != (c.want == "ended" || c.want == "server_ended") {
				t.Errorf("result %q, error %q; want result %q", line.Text("result"), line.Text("error"), c.want)
			}
		})
	}
}

// An application's connection that its node proxy tries again and again is one warning.
func TestRepeatsOfAConnectionAreOneWarning(t *testing.T) {
	s := newSite(t, 1)
	s.EachGateway = alone
	s.Write()
	gw := s.StartGateway("west", "gw-1")
	gw.AwaitReady(t)
	session := s.dial(t)
	const first, second = "4bf92f3577b34da6a3ce929d0e0e4736", "5bf92f3577b34da6a3ce929d0e0e4736"
	for _, trace := range []string{first, first, second, first} {
		connect(t, session, hello, hbone.Header{header.NameTraceparent: "00-" + trace + "-00f067aa0ba902b7-01"})
	}
	meshtest.Eventually(t, "four lines", func() bool { return len(gw.Log.Find("tunnel")) == 4 })
	for trace, lines := range map[string]int{first: 3, second: 1} {
		if all, warned := len(gw.Log.Find("tunnel", "opened_by", trace)), len(gw.Log.Find("tunnel", "opened_by", trace, "level", "warn")); all != lines || warned != 1 {
			t.Errorf("%d lines of one connection, %d of them warnings; want %d and 1", all, warned, lines)
		}
	}
}
