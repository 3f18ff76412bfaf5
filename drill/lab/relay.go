package lab

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// relay passes TCP connections on to one gateway, and can be cut: then bytes
// are swallowed, connections stay open, and nobody is told. Healing closes the
// connections that lost bytes; new ones work. Safe for concurrent use.
type relay struct {
	listener net.Listener
	forward  netip.AddrPort
	at       *network

	mu     sync.Mutex
	cut    bool
	closed bool
	conns  map[*link]struct{}
	work   sync.WaitGroup

	passed    atomic.Int64 // bytes let through, in all
	swallowed atomic.Int64 // bytes, while cut
	met       atomic.Int64 // connections that came while cut
}

// link is one connection through a relay.
type link struct {
	a, b net.Conn // b is nil if it came while the relay was cut
	lost bool     // it was open while the relay was cut
}

func newRelay(ctx context.Context, at *network, on, to netip.AddrPort) (*relay, error) {
	l, err := at.listen(ctx, on)
	if err != nil {
		return nil, fmt.Errorf("relay to %s: listen on %s: %w", to, on, err)
	}
	r := &relay{listener: l, forward: to, at: at, conns: map[*link]struct{}{}}
	r.work.Go(r.accept)
	return r, nil
}

func (r *relay) accept() {
	for {
		c, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.work.Go(func() { r.serve(c) })
	}
}

func (r *relay) serve(c net.Conn) {
	l := &link{a: c}
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		c.Close()
		return
	}
	l.lost = r.cut
	r.conns[l] = struct{}{}
	r.mu.Unlock()
	defer r.forget(l)
	if l.lost {
		r.met.Add(1)
		r.pump(l, nil, c)
		return
	}
	b, err := r.at.dial(context.Background(), time.Now().Add(2*time.Second), r.forward)
	if err != nil {
		return // the gateway is dead: so is this connection
	}
	r.mu.Lock()
	l.b = b
	closed := r.closed
	r.mu.Unlock()
	if closed {
		return
	}
	var back sync.WaitGroup
	back.Go(func() { r.pump(l, c, b) })
	r.pump(l, b, c)
	back.Wait()
}

// pump copies src to dst until either ends; then both do.
func (r *relay) pump(l *link, dst, src net.Conn) {
	defer l.close()
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		if n > 0 && !r.pass(l, dst, buf[:n]) {
			return
		}
		if err != nil {
			return
		}
	}
}

// pass writes p to dst, or swallows it. It reports whether to go on.
func (r *relay) pass(l *link, dst net.Conn, p []byte) bool {
	r.mu.Lock()
	if r.cut {
		l.lost = true
	}
	lost := l.lost
	if !lost { // before the cut, even where the write ends after it
		r.passed.Add(int64(len(p)))
	}
	r.mu.Unlock()
	if lost {
		r.swallowed.Add(int64(len(p)))
		return true
	}
	_, err := dst.Write(p)
	return err == nil
}

func (l *link) close() {
	l.a.Close()
	if l.b != nil {
		l.b.Close()
	}
}

func (r *relay) forget(l *link) {
	r.mu.Lock()
	delete(r.conns, l)
	r.mu.Unlock()
	l.close()
}

// setCut cuts the relay or heals it.
func (r *relay) setCut(cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cut == cut {
		return
	}
	r.cut = cut
	for l := range r.conns {
		if cut {
			l.lost = true
		} else if l.lost {
			l.close()
		}
	}
}

// close ends every connection and waits for the relay's goroutines.
func (r *relay) close() {
	r.mu.Lock()
	r.closed = true
	for l := range r.conns {
		l.close()
	}
	r.mu.Unlock()
	r.listener.Close()
	r.work.Wait()
}
