package link

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Source gives client configurations; the Manager of package identity is one.
type Source interface {
	ClientTLS(ctx context.Context, id spiffeid.ID, expect []spiffeid.ID, alpn ...string) (*tls.Config, error)
}

// Dial connects to an address. Tests have another one than [TCP].
type Dial func(ctx context.Context, address string) (net.Conn, error)

// TCP dials by TCP.
func TCP(ctx context.Context, address string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", address)
}

// TLS connects to address as self and expects the identity want there.
// TCP and TLS are each given timeout.
func (dial Dial) TLS(ctx context.Context, source Source, self, want spiffeid.ID, address, alpn string, timeout time.Duration) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*timeout)
	defer cancel()
	config, err := source.ClientTLS(ctx, self, []spiffeid.ID{want}, alpn)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	connect, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	raw, err := dial(connect, address)
	if err != nil {
		return nil, err // says what it tried
	}
	conn := tls.Client(raw, config)
	handshake, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := conn.HandshakeContext(handshake); err != nil {
		raw.Close()
		return nil, fmt.Errorf("dial %s: TLS handshake: %w", address, err)
	}
	if got := conn.ConnectionState().NegotiatedProtocol; got != alpn {
		raw.Close()
		return nil, fmt.Errorf("dial %s: peer speaks %q instead of %q: is it a gateway?", address, got, alpn)
	}
	return conn, nil
}

// CloseAbruptly closes conn without close_notify, which would wait up to five
// seconds on a connection that is stuck. The other end sees an unexpected end,
// as it does when a process dies; our streams have nothing that it could cut.
func CloseAbruptly(conn net.Conn) {
	if c, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = c.NetConn()
	}
	conn.Close()
}

// Pause waits for d between two dials; not ok if ctx ended first.
func Pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
