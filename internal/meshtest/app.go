package meshtest

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/isthmus-mesh/isthmus/drill/demoapp"
)

// App runs the demonstration application as p on ports. It answers the line
// "hello <n>" with "<name> <port> <n>", and falls ill on command.
func (p *Pod) App(ports ...uint16) *demoapp.App { return p.app(demoapp.Request, ports) }

// BannerApp is App, but it speaks first: "<name> <port>".
func (p *Pod) BannerApp(ports ...uint16) *demoapp.App { return p.app(demoapp.Banner, ports) }

func (p *Pod) app(x demoapp.Exchange, ports []uint16) *demoapp.App {
	p.m.t.Helper()
	c := demoapp.Config{Name: p.Name, Exchange: x}
	for _, port := range ports {
		c.Listen = append(c.Listen, p.At(port))
	}
	a, err := demoapp.Start(context.Background(), c)
	if err != nil {
		p.m.t.Fatal(err)
	}
	p.m.t.Cleanup(a.Close)
	return a
}

// Server is a TCP server of a test's own making.
type Server struct {
	// Accepted counts connections.
	Accepted atomic.Int64

	l     *net.TCPListener
	conns sync.WaitGroup

	mu     sync.Mutex
	open   map[*net.TCPConn]struct{}
	closed bool
}

// Serve runs handle for every connection to the pod's port until the test ends
// or the server is closed. The connection is closed when handle returns.
func (p *Pod) Serve(port uint16, handle func(*net.TCPConn)) *Server {
	p.m.t.Helper()
	return p.m.Serve(p.At(port), handle)
}

// Serve runs handle for every connection to addr.
func (m *Mesh) Serve(addr netip.AddrPort, handle func(*net.TCPConn)) *Server {
	m.t.Helper()
	l, err := listen(addr)
	if err != nil {
		m.t.Fatal(err)
	}
	s := &Server{l: l, open: map[*net.TCPConn]struct{}{}}
	s.conns.Go(func() { s.run(handle) })
	m.t.Cleanup(s.Close)
	return s
}

func (s *Server) run(handle func(*net.TCPConn)) {
	for {
		c, err := s.l.AcceptTCP()
		if err != nil {
			return
		}
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			c.Close()
			return
		}
		s.open[c] = struct{}{}
		s.mu.Unlock()
		s.Accepted.Add(1)
		s.conns.Go(func() {
			defer func() {
				c.Close()
				s.mu.Lock()
				delete(s.open, c)
				s.mu.Unlock()
			}()
			handle(c)
		})
	}
}

// Close stops accepting, closes every connection and waits for the handlers.
func (s *Server) Close() {
	s.l.Close()
	s.mu.Lock()
	s.closed = true
	for c := range s.open {
		c.Close()
	}
	s.mu.Unlock()
	s.conns.Wait()
}
