package quic

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/meshtest/trust"
)

var (
	clientID = trust.Workload("client")
	serverID = trust.Workload("gateway")
)

// rig is a listener and a client session with it.
type rig struct {
	t        testing.TB
	ids      *identity.Manager
	listener *Listener
	client   *hbone.Session
	socket   net.PacketConn // of the listener

	mu       sync.Mutex
	sessions []*hbone.Session // of the listener
	served   chan error
	serving  sync.WaitGroup
}

type rigConfig struct {
	client, server hbone.Config
	listen         ListenConfig
	handler        hbone.Handler
	decline        string
	socket         net.PacketConn // of the listener; nil: any
	from           net.PacketConn // of the client; nil: any
}

func newRig(t testing.TB, c rigConfig) *rig {
	t.Helper()
	r := &rig{t: t, ids: trust.NewManager(t), served: make(chan error, 16)}
	if r.socket = c.socket; c.socket == nil {
		r.socket = udp(t)
	}
	var err error
	r.listener, err = Listen(r.socket, r.ids.ServerTLS(serverID, nil, Protocols(hbone.ServerProtocols("a"))...), c.listen)
	check(t, err)
	if c.handler == nil {
		c.handler = echo
	}
	if c.from == nil {
		c.from = udp(t)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.serving.Go(func() { r.accept(ctx, c) })
	t.Cleanup(func() {
		cancel()
		r.listener.Close()
		r.serving.Wait()
	})
	r.client = r.start(r.pipeFrom(c.from), c.client)
	t.Cleanup(func() {
		r.client.Close(nil)
		<-r.client.Closed()
	})
	return r
}

func (r *rig) accept(ctx context.Context, c rigConfig) {
	for {
		p, err := r.listener.Accept(ctx)
		if err != nil {
			return
		}
		s := hbone.NewServer(p, c.server, c.handler)
		r.mu.Lock()
		r.sessions = append(r.sessions, s)
		r.mu.Unlock()
		r.serving.Go(func() {
			if c.decline != "" {
				s.Decline(ctx, c.decline)
				return
			}
			r.served <- s.Serve(ctx)
		})
	}
}

func (r *rig) server(i int) *hbone.Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sessions[i]
}

func (r *rig) clientTLS() *tls.Config {
	r.t.Helper()
	cfg, err := r.ids.ClientTLS(context.Background(), clientID, []spiffeid.ID{serverID}, Protocols(hbone.ClientProtocols("a"))...)
	check(r.t, err)
	return cfg
}

func (r *rig) pipe() *hbone.Pipe { return r.pipeFrom(udp(r.t)) }

func (r *rig) pipeFrom(socket net.PacketConn) *hbone.Pipe {
	r.t.Helper()
	p, err := Dial(context.Background(), socket, r.listener.Addr(), r.clientTLS(), DialConfig{})
	check(r.t, err)
	return p
}

func (r *rig) dial(cfg hbone.Config) *hbone.Session { return r.start(r.pipe(), cfg) }

func (r *rig) start(p *hbone.Pipe, cfg hbone.Config) *hbone.Session {
	r.t.Helper()
	s, err := hbone.StartClient(p, cfg)
	check(r.t, err)
	return s
}

func udp(t testing.TB) net.PacketConn {
	t.Helper()
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	check(t, err)
	return c
}

func echo(_ context.Context, in *hbone.Incoming) {
	st, err := in.Accept(nil)
	if err != nil {
		return
	}
	io.Copy(struct{ io.Writer }{st}, struct{ io.Reader }{st})
	st.Close()
}

func open(t testing.TB, s *hbone.Session) *hbone.Stream {
	t.Helper()
	st, _, err := s.Open(context.Background(), &hbone.Request{Authority: "app.default:80"})
	check(t, err)
	return st
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still not: %s", what)
		}
	}
}

func closed(t testing.TB, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(20 * time.Second):
		t.Fatalf("still not: %s", what)
	}
}
