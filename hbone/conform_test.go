package hbone

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"testing"

	"github.com/isthmus-mesh/isthmus/internal/h2conform"
	"github.com/isthmus-mesh/isthmus/internal/simnet"
)

// What RFC 9113 demands of a session, on a connection and inside a stream of
// another session. nodeproxy runs the same table against whole processes.
func TestConformance(t *testing.T) {
	for _, target := range []h2conform.Target{
		{Name: "server", Server: &h2conform.Server{Dial: dialServer, Authority: "app.default:80"}},
		{Name: "inner server", Server: &h2conform.Server{Dial: dialInnerServer, Authority: "app.default:80"}},
		{Name: "client", Client: &h2conform.Client{Start: startConformClient}},
		{Name: "inner client", Client: &h2conform.Client{Start: startInnerClient}},
	} {
		t.Run(target.Name, func(t *testing.T) { h2conform.Run(t, target) })
	}
}

// conformConfig has windows that a row can use up.
func conformConfig() Config {
	c := DefaultConfig()
	c.StreamWindow, c.ConnWindow = 128<<10, 192<<10
	return c
}

func serveEcho(t testing.TB, tr Transport, cfg Config) {
	t.Helper()
	done, ended := make(chan struct{}), make(chan struct{})
	s := NewServer(tr, cfg, func(ctx context.Context, in *Incoming) {
		st, err := in.Accept(nil)
		if err != nil {
			return
		}
		h2conform.Echo(st, done)
	})
	go func() {
		defer close(ended)
		s.Serve(context.Background())
	}()
	t.Cleanup(func() {
		close(done)
		s.Close(nil)
		<-ended
	})
}

func dialServer(t testing.TB) net.Conn {
	t.Helper()
	a, b := simnet.Pair(simnet.Options{Buffer: 1 << 20})
	serveEcho(t, plainTransport{b}, conformConfig())
	return a
}

// outerStream is both ends of a stream: what a session inside runs on.
func outerStream(t testing.TB) (client, server *Stream) {
	t.Helper()
	ends := make(chan *Stream, 1)
	r := newRig(t, rigConfig{pair: simPair(simnet.Options{Buffer: 1 << 20}), handler: func(ctx context.Context, in *Incoming) {
		st, err := in.Accept(nil)
		if err != nil {
			return
		}
		ends <- st
		<-ctx.Done()
	}})
	return open(t, r.client), <-ends
}

func dialInnerServer(t testing.TB) net.Conn {
	t.Helper()
	a, b := outerStream(t)
	clientTLS, serverTLS := testTLS()
	go func() {
		if st, err := ServerTLS(context.Background(), b, serverTLS); err == nil {
			serveEcho(t, st, conformConfig())
		}
	}()
	c := tls.Client(a, clientTLS)
	check(t, c.Handshake())
	return c
}

func startConformClient(t testing.TB) (net.Conn, func() net.Conn) {
	t.Helper()
	a, b := simnet.Pair(simnet.Options{Buffer: 1 << 20})
	return a, clientOn(t, plainTransport{b})
}

func startInnerClient(t testing.TB) (net.Conn, func() net.Conn) {
	t.Helper()
	a, b := outerStream(t)
	clientTLS, serverTLS := testTLS()
	c := tls.Server(b, serverTLS)
	shaken := make(chan error, 1)
	go func() { shaken <- c.Handshake() }()
	ct, err := ClientTLS(context.Background(), a, clientTLS)
	check(t, err)
	check(t, <-shaken)
	return c, clientOn(t, ct)
}

// clientOn starts a client session and returns what opens a stream on it.
func clientOn(t testing.TB, tr Transport) func() net.Conn {
	t.Helper()
	s, err := StartClient(tr, conformConfig())
	check(t, err)
	t.Cleanup(func() { s.Close(nil) })
	return func() net.Conn {
		st, err := s.Start(&Request{Authority: "app.default:80"})
		if err != nil {
			return failedConn{Conn: nil, err: err}
		}
		go st.AwaitResponse(context.Background())
		return st
	}
}

// failedConn is a connection that could not be opened.
type failedConn struct {
	net.Conn
	err error
}

func (c failedConn) Read([]byte) (int, error)  { return 0, c.err }
func (c failedConn) Write([]byte) (int, error) { return 0, c.err }
func (c failedConn) Close() error              { return nil }

var _ io.ReadWriteCloser = failedConn{}
