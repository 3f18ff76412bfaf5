package testlb

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Front serves one address of a Balancer on the real network. Close it.
type Front struct {
	b        *Balancer
	listener *net.TCPListener
	dial     Dial
	work     sync.WaitGroup

	mu    sync.Mutex
	conns map[*net.TCPConn]struct{}
	dead  bool
}

// Dial connects to a backend.
type Dial func(ctx context.Context, address string) (*net.TCPConn, error)

// Serve listens on address for b.
func Serve(b *Balancer, address netip.AddrPort) (*Front, error) {
	return ServeBy(b, address, func(ctx context.Context, backend string) (*net.TCPConn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", backend)
		if err != nil {
			return nil, err
		}
		return c.(*net.TCPConn), nil
	})
}

// ServeBy is Serve with another way to the backends, such as that of a network namespace.
// It listens in the namespace of its caller's thread.
func ServeBy(b *Balancer, address netip.AddrPort, dial Dial) (*Front, error) {
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(address))
	if err != nil {
		return nil, err
	}
	f := &Front{b: b, listener: l, dial: dial, conns: map[*net.TCPConn]struct{}{}}
	f.work.Go(f.accept)
	return f, nil
}

// Remove takes the address away: nothing new comes by it, and what is open goes on.
func (f *Front) Remove() { f.listener.Close() }

// Close kills the front, and resets all connections that it carries.
func (f *Front) Close() {
	f.listener.Close()
	f.mu.Lock()
	f.dead = true
	for c := range f.conns {
		c.SetLinger(0)
		c.Close()
	}
	f.mu.Unlock()
	f.work.Wait()
}

func (f *Front) accept() {
	for {
		c, err := f.listener.AcceptTCP()
		if err != nil {
			return
		}
		f.work.Go(func() { f.carry(c) })
	}
}

// hold keeps c to be reset by Close; false: it is too late.
func (f *Front) hold(c *net.TCPConn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.dead {
		f.conns[c] = struct{}{}
	}
	return !f.dead
}

func (f *Front) end(c *net.TCPConn) {
	f.mu.Lock()
	delete(f.conns, c)
	f.mu.Unlock()
	c.Close()
}

// carry moves one connection.
func (f *Front) carry(client *net.TCPConn) {
	defer f.end(client)
	if !f.hold(client) {
		client.SetLinger(0)
		return
	}
	backend, ended, err := f.b.Pick(client.RemoteAddr().(*net.TCPAddr).AddrPort().Addr())
	if err != nil {
		client.SetLinger(0)
		return
	}
	defer ended()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	server, err := f.dial(ctx, backend)
	cancel()
	if err != nil {
		client.SetLinger(0)
		return
	}
	defer f.end(server)
	if !f.hold(server) {
		server.SetLinger(0)
		client.SetLinger(0)
		return
	}
	var both sync.WaitGroup
	both.Go(func() { pass(server, client) })
	both.Go(func() { pass(client, server) })
	both.Wait()
}

// pass moves what from sends; a reset travels on as one.
func pass(to, from *net.TCPConn) {
	if _, err := io.Copy(to, from); err != nil {
		to.SetLinger(0)
		from.SetLinger(0)
		to.Close()
		from.Close()
		return
	}
	to.CloseWrite()
}
