package meshtest

import (
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
)

// Wire is a stretch of network that can be cut: what connects to its address is
// carried to another one. Cutting it looks like the death of the process behind
// it: open connections are reset and new ones refused.
type Wire struct {
	// Carried counts connections.
	Carried atomic.Int64

	m        *Mesh
	from, to netip.AddrPort
	conns    sync.WaitGroup

	mu   sync.Mutex
	l    *net.TCPListener // nil while cut
	open map[*net.TCPConn]struct{}
}

// Wire listens on from and carries connections to to.
func (m *Mesh) Wire(from, to netip.AddrPort) *Wire {
	m.t.Helper()
	w := &Wire{m: m, from: from, to: to, open: map[*net.TCPConn]struct{}{}}
	w.Mend()
	m.t.Cleanup(func() {
		w.Cut()
		w.conns.Wait()
	})
	return w
}

// Mend makes the wire carry connections again.
func (w *Wire) Mend() {
	w.m.t.Helper()
	l, err := listen(w.from)
	if err != nil {
		w.m.t.Fatal(err)
	}
	w.mu.Lock()
	w.l = l
	w.mu.Unlock()
	w.conns.Go(func() { w.run(l) })
}

// Cut resets what is open and refuses what comes.
func (w *Wire) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.l != nil {
		w.l.Close()
		w.l = nil
	}
	for c := range w.open {
		c.SetLinger(0)
		c.Close()
	}
}

func (w *Wire) run(l *net.TCPListener) {
	for {
		a, err := l.AcceptTCP()
		if err != nil {
			return
		}
		c, err := net.Dial("tcp4", w.to.String())
		if err != nil {
			a.SetLinger(0)
			a.Close()
			continue
		}
		b := c.(*net.TCPConn)
		if !w.enter(l, a, b) {
			a.Close()
			b.Close()
			return
		}
		w.Carried.Add(1)
		w.conns.Go(func() { w.carry(a, b) })
		w.conns.Go(func() { w.carry(b, a) })
	}
}

func (w *Wire) enter(l *net.TCPListener, conns ...*net.TCPConn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range conns {
		if w.l == l {
			w.open[c] = struct{}{}
		}
	}
	return w.l == l
}

// carry copies one way; the end of a direction travels as it is.
func (w *Wire) carry(from, to *net.TCPConn) {
	_, err := io.Copy(to, from)
	if err != nil {
		from.SetLinger(0)
		to.SetLinger(0)
		from.Close()
		to.Close()
	} else {
		to.CloseWrite()
	}
	w.mu.Lock()
	delete(w.open, from)
	w.mu.Unlock()
}
