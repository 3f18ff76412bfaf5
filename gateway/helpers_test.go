package gateway_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

const hello = "hello.default.svc.cluster.local:80"

// site is one network with a gateway and pods of hello; tests speak to the
// gateway as shop of another network would.
type site struct {
	*meshtest.Mesh
	shop *meshtest.Pod // its node proxy does not run
	pods []*meshtest.Pod
}

// newSite describes a site with n pods on as many nodes; nothing runs yet.
func newSite(t testing.TB, n int) *site {
	s := &site{Mesh: meshtest.New(t)}
	s.Networks("east", "west")
	s.Service("hello", 80, 8080, 81, 8081)
	s.Gateway("west", "gw-1")
	s.shop = s.Pod("east", "", "shop-1")
	for i := range n {
		s.pods = append(s.pods, s.Pod("west", fmt.Sprintf("west-%d", i+1), fmt.Sprintf("hello-%d", i+1), "hello"))
	}
	return s
}

func (s *site) gateway() *meshtest.Process { return s.Process("gateway west/gw-1") }

// dial opens an outer session with gw-1 as shop.
func (s *site) dial(t testing.TB) *hbone.Session {
	t.Helper()
	session, err := s.Session(s.shop.Identity(), s.GatewayAt("west", "gw-1"), s.ID("isthmus-system/gateway-west"))
	if err != nil {
		t.Fatal(err)
	}
	return session
}

// connect sends an outer CONNECT. Exactly one of answer and refused is set.
func connect(t testing.TB, s *hbone.Session, authority string, h hbone.Header) (stream *hbone.Stream, answer *hbone.Response, refused *hbone.StatusError) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), meshtest.ExchangeTimeout)
	defer cancel()
	stream, answer, err := s.Open(ctx, &hbone.Request{Authority: authority, Header: h})
	if err == nil {
		t.Cleanup(func() { stream.Close() })
		return stream, answer, nil
	}
	if !errors.As(err, &refused) {
		t.Fatalf("CONNECT %s: %v; want an answer", authority, err)
	}
	return nil, nil, refused
}

// chosen opens an outer stream, which must succeed, closes it and says which
// endpoint the gateway chose.
func chosen(t testing.TB, s *hbone.Session, h hbone.Header) uint64 {
	t.Helper()
	stream, answer, refused := connect(t, s, hello, h)
	if refused != nil {
		t.Fatalf("CONNECT %s: %v", hello, refused)
	}
	stream.Close()
	return answer.Endpoint()
}

// clientHello is the first flight of a TLS client.
func clientHello(t testing.TB) []byte {
	t.Helper()
	a, b := net.Pipe()
	defer b.Close()
	go func() {
		tls.Client(a, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}).Handshake()
		a.Close()
	}()
	buf := make([]byte, 16<<10)
	n, err := b.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return buf[:n]
}
