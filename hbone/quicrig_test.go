package hbone_test

import (
	"context"
	"net"
	"os"
	"testing"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/quic"
)

// With HBONE_TRANSPORT=quic the tests of package hbone that need no particular transport run
// over QUIC.
func init() {
	if os.Getenv("HBONE_TRANSPORT") == "quic" {
		hbone.SetTransports(quicTransports)
	}
}

func quicTransports(t testing.TB) (client, server hbone.Transport) {
	t.Helper()
	clientTLS, serverTLS := hbone.TestTLS()
	clientTLS, serverTLS = clientTLS.Clone(), serverTLS.Clone()
	clientTLS.NextProtos, serverTLS.NextProtos = []string{"h3"}, []string{"h3"}
	socket := func() net.PacketConn {
		c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	l, err := quic.Listen(socket(), serverTLS, quic.ListenConfig{MaxStreams: 1000})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := quic.Dial(context.Background(), socket(), l.Addr(), clientTLS, quic.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Accept(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return c, s
}
