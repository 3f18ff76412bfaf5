package identity_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/identity"
)

// traffic is a server that echoes, and a client that opens one connection after the other
// and keeps one open, all under certificates of their moment.
type traffic struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	l      net.Listener

	mu     sync.Mutex
	n      int
	failed []error
}

func startTraffic(t *testing.T, server, client *identity.Manager, id spiffeid.ID) *traffic {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	x := &traffic{cancel: cancel, l: l}
	t.Cleanup(func() { x.stop() })
	cfg := server.ServerTLS(id, nil, "h2")
	x.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			x.wg.Go(func() {
				defer c.Close()
				s := tls.Server(c, cfg)
				io.Copy(s, s)
			})
		}
	})
	lasting, err := x.dial(ctx, client, id)
	if err != nil {
		t.Fatal(err)
	}
	x.wg.Go(func() {
		defer lasting.Close()
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			x.count(echo(lasting))
			<-tick.C
		}
	})
	x.wg.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for ; ctx.Err() == nil; <-tick.C {
			c, err := x.dial(ctx, client, id)
			if err == nil {
				err = echo(c)
				c.Close()
			}
			if ctx.Err() == nil {
				x.count(err)
			}
		}
	})
	return x
}

func (x *traffic) dial(ctx context.Context, client *identity.Manager, id spiffeid.ID) (net.Conn, error) {
	cfg, err := client.ClientTLS(ctx, id, []spiffeid.ID{id}, "h2")
	if err != nil {
		return nil, err
	}
	d := tls.Dialer{Config: cfg, NetDialer: &net.Dialer{Timeout: 5 * time.Second}}
	return d.DialContext(ctx, "tcp", x.l.Addr().String())
}

// echo sends a few bytes and reads them back.
func echo(c net.Conn) error {
	c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := c.Write([]byte("hello")); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	var b [5]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	return nil
}

func (x *traffic) count(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.n++; err != nil {
		x.failed = append(x.failed, err)
	}
}

func (x *traffic) done() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.n
}

// stop ends the traffic, and returns what failed.
func (x *traffic) stop() []error {
	x.cancel()
	x.l.Close()
	x.wg.Wait()
	return x.failed
}
