package istioca

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"github.com/isthmus-mesh/isthmus/identity/istioca/istiocapb"
)

// countingListener counts the connections that are accepted and not closed.
type countingListener struct {
	net.Listener
	open, most atomic.Int64
}

type countedConn struct {
	net.Conn
	l    *countingListener
	once sync.Once
}

func (l *countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if n := l.open.Add(1); n > l.most.Load() { // one goroutine accepts
		l.most.Store(n)
	}
	return &countedConn{Conn: c, l: l}, nil
}

func (c *countedConn) Close() error {
	c.once.Do(func() { c.l.open.Add(-1) })
	return c.Conn.Close()
}

// idlers are connections without a request, by how far they go.
var idlers = []struct {
	name string
	do   func(c net.Conn, roots *x509.CertPool) error
}{
	{"silent", func(net.Conn, *x509.CertPool) error { return nil }},
	{"TLS", func(c net.Conn, roots *x509.CertPool) error { _, err := secured(c, roots); return err }},
	{"HTTP/2", func(c net.Conn, roots *x509.CertPool) error { _, err := framed(c, roots); return err }},
	{"half a request", func(c net.Conn, roots *x509.CertPool) error {
		f, err := framed(c, roots)
		if err != nil {
			return err
		}
		// :method POST, :scheme https, :path, content-type: indexed or literal, without Huffman
		block := []byte{0x83, 0x87}
		for _, h := range [][2]string{{":path", "/istio.v1.auth.IstioCertificateService/CreateCertificate"}, {":authority", "localhost"}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
			block = append(block, 0, byte(len(h[0])))
			block = append(append(block, h[0]...), byte(len(h[1])))
			block = append(block, h[1]...)
		}
		return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block, EndHeaders: true})
	}},
}

func secured(c net.Conn, roots *x509.CertPool) (*tls.Conn, error) {
	c.SetDeadline(time.Now().Add(20 * time.Second))
	t := tls.Client(c, &tls.Config{RootCAs: roots, ServerName: "localhost", NextProtos: []string{"h2"}})
	return t, t.Handshake()
}

func framed(c net.Conn, roots *x509.CertPool) (*http2.Framer, error) {
	t, err := secured(c, roots)
	if err != nil {
		return nil, err
	}
	if _, err := t.Write([]byte(http2.ClientPreface)); err != nil {
		return nil, err
	}
	f := http2.NewFramer(t, t)
	return f, f.WriteSettings()
}

// However many connections are opened, from one address or many, and however far they go
// without a request: no more than maxConns are open, what they take is bounded, and a
// request of another client is answered meanwhile.
func TestServerBoundsIdleConnections(t *testing.T) {
	const idle, every = 1200, 100
	for seed, addresses := range []int{1, 50} {
		t.Run(fmt.Sprint(addresses, " addresses"), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(uint64(seed), 1))
			s := newServer(t, time.Hour)
			raw, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			l := &countingListener{Listener: raw}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- s.Serve(ctx, l) }()
			roots := x509.NewCertPool()
			roots.AddCert(s.authority.Current().Certificate())
			request := func() error {
				c, err := grpc.NewClient("passthrough:///"+raw.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots, ServerName: "localhost"})))
				if err != nil {
					return err
				}
				defer c.Close()
				text, _ := csr(t, cart)
				rctx, cancel := context.WithTimeout(ctx, 30*time.Second)
				defer cancel()
				return c.Invoke(rctx, "/istio.v1.auth.IstioCertificateService/CreateCertificate", &istiocapb.IstioCertificateRequest{Csr: text}, new(istiocapb.IstioCertificateResponse), grpc.WaitForReady(true))
			}
			if err := request(); err != nil {
				t.Fatal(err)
			}
			before := heapInUse()
			var conns []net.Conn
			defer func() {
				for _, c := range conns {
					c.Close()
				}
				cancel()
				if err := <-done; err != nil {
					t.Errorf("Serve: %v", err)
				}
			}()
			for i := range idle {
				d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+rng.IntN(addresses)))}}
				c, err := d.DialContext(ctx, "tcp", raw.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				conns = append(conns, c)
				if kind := idlers[rng.IntN(len(idlers))]; kind.do(c, roots) != nil && addresses > 1 && i < maxConns/2 {
					t.Errorf("seed %d: connection %d (%s) was closed while there was room", seed, i, kind.name)
				}
				if i%every == every-1 {
					if err := request(); err != nil {
						t.Errorf("seed %d: a request beside %d connections: %v", seed, i+1, err)
					}
				}
			}
			if n := l.most.Load(); n > maxConns+1 { // the one that is being accepted
				t.Errorf("seed %d: %d connections were open at once, want at most %d", seed, n, maxConns)
			}
			// Both ends of a connection, the client's as well, take 32 to 68 KiB here, with the race detector and
			// on a busy machine; with gRPC's default buffers it is some 64 KiB more.
			const each = 96 << 10
			if n := heapInUse() - before; n > maxConns*each {
				t.Errorf("seed %d: %d idle connections take %d KiB, want at most %d KiB", seed, l.open.Load(), n>>10, maxConns*each>>10)
			}
		})
	}
}

// heldAuthorizer authenticates after release is closed.
type heldAuthorizer struct {
	tokens
	entered, release chan struct{}
}

func (h heldAuthorizer) Authenticate(ctx context.Context, from netip.Addr, token string) (Caller, error) {
	close(h.entered)
	select {
	case <-h.release:
	case <-ctx.Done():
	}
	return h.tokens.Authenticate(ctx, from, token)
}

// While the API server reviews the token of a request, its address opens connections beyond
// the limit. The request is answered.
func TestConnectionWithRequestIsNotEvicted(t *testing.T) {
	held := heldAuthorizer{tokens{"node": {"node", []string{cart}}}, make(chan struct{}), make(chan struct{})}
	s := newServer(t, time.Hour)
	s.authorizer = held
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &countingListener{Listener: raw}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	}()
	roots := x509.NewCertPool()
	roots.AddCert(s.authority.Current().Certificate())
	c, err := grpc.NewClient("passthrough:///"+raw.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots, ServerName: "localhost"})))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	answered := make(chan error, 1)
	text, _ := csr(t, cart)
	go func() {
		withToken := metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer node")
		answered <- c.Invoke(withToken, "/istio.v1.auth.IstioCertificateService/CreateCertificate", &istiocapb.IstioCertificateRequest{Csr: text, Metadata: asking(t, cart)}, new(istiocapb.IstioCertificateResponse))
	}()
	select {
	case <-held.entered:
	case err := <-answered:
		t.Fatalf("the request was not authenticated: %v", err)
	}
	var first net.Conn
	for i := range maxConns + 1 { // two beyond the limit
		d, err := net.Dial("tcp", raw.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		if i == 0 {
			first = d
		}
	}
	first.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := first.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the oldest connection without a request is not closed: %v", err)
	}
	close(held.release)
	if err := <-answered; err != nil {
		t.Errorf("a request beside %d connections: %v", maxConns+1, err)
	}
}

func heapInUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}
