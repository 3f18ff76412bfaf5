package kubernetes

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// relay carries connections to a server, and counts bytes.
type relay struct {
	net.Listener
	up, down atomic.Int64
}

// startRelay has what comes to l carried to an address of this host.
func startRelay(t *testing.T, l net.Listener, to string) *relay {
	t.Helper()
	r := &relay{Listener: l}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() { r.carry(ctx, c, to) })
		}
	})
	t.Cleanup(func() {
		stop()
		l.Close()
		running.Wait()
	})
	return r
}

// bytes is how many there were, both ways.
func (r *relay) bytes() int64 { return r.up.Load() + r.down.Load() }

func (r *relay) address() string { return r.Addr().String() }

func (r *relay) carry(ctx context.Context, c net.Conn, to string) {
	defer c.Close()
	s, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer s.Close()
	defer context.AfterFunc(ctx, func() { c.Close(); s.Close() })()
	var both sync.WaitGroup
	one := func(to, from net.Conn, n *atomic.Int64) {
		io.Copy(counter{to, n}, from)
		c.Close()
		s.Close()
	}
	both.Go(func() { one(s, c, &r.up) })
	both.Go(func() { one(c, s, &r.down) })
	both.Wait()
}

// counter counts what is written.
type counter struct {
	io.Writer
	n *atomic.Int64
}

// Write implements io.Writer.
func (c counter) Write(b []byte) (int, error) {
	n, err := c.Writer.Write(b)
	c.n.Add(int64(n))
	return n, err
}
