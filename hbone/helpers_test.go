package hbone

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// rig is a client and a server session over TLS over a connected pair.
type rig struct {
	client, server *Session
	served         chan error
}

type rigConfig struct {
	client, server Config
	handler        Handler
	pair           func(testing.TB) (net.Conn, net.Conn)
}

func echoHandler(ctx context.Context, in *Incoming) {
	st, err := in.Accept(nil)
	if err != nil {
		return
	}
	io.Copy(struct{ io.Writer }{st}, struct{ io.Reader }{st})
	st.CloseWrite()
	st.Close()
}

func endStream(st *Stream) {
	st.CloseWrite()
	io.Copy(io.Discard, st)
	st.Close()
}

func tcpPair(t testing.TB) (net.Conn, net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	check(t, err)
	b, err := l.Accept()
	check(t, err)
	return a, b
}

// newRig starts both sessions; everything is closed when the test ends.
func newRig(t testing.TB, c rigConfig) *rig {
	t.Helper()
	if c.handler == nil {
		c.handler = echoHandler
	}
	var ct, st Transport
	if c.pair == nil && transports != nil {
		ct, st = transports(t)
	} else {
		if c.pair == nil {
			c.pair = tcpPair
		}
		a, b := c.pair(t)
		ct, st = tlsOver(t, a, b)
	}
	r := &rig{served: make(chan error, 1)}
	r.server = NewServer(st, c.server, c.handler)
	go func() { r.served <- r.server.Serve(context.Background()) }()
	var err error
	r.client, err = NewClient(context.Background(), ct, c.client)
	check(t, err)
	t.Cleanup(r.close)
	return r
}

func (r *rig) close() {
	r.client.Close(nil)
	<-r.client.life.transportClosed
	r.server.Close(nil)
	<-r.server.life.transportClosed
}

// tlsOver does both handshakes over a and b.
func tlsOver(t testing.TB, a, b net.Conn) (client, server *TLSTransport) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	clientTLS, serverTLS := testTLS()
	var wg sync.WaitGroup
	var serr error
	wg.Go(func() { server, serr = ServerTLS(ctx, b, serverTLS) })
	client, err := ClientTLS(ctx, a, clientTLS)
	wg.Wait()
	check(t, err)
	check(t, serr)
	return client, server
}

func open(t testing.TB, s *Session) *Stream {
	t.Helper()
	st, _, err := s.Open(context.Background(), &Request{Authority: "app.default:80"})
	check(t, err)
	return st
}

// eventually polls until ok or a generous deadline.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still not: %s", what)
		}
	}
}
