package nodeproxy

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/tcp"
	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
)

// listenShared listens on addr, an address of the configuration: of outbound, socks, or port 15008 of a workload that is
// not captured. A second node proxy of the same user may listen there too (SO_REUSEPORT). takeOver moves new connections
// to it, so an upgrade loses none. An address in use by any other process is an error.
func listenShared(addr netip.AddrPort) (*net.TCPListener, error) {
	c := net.ListenConfig{KeepAlive: -1, Control: tcp.Controls(tcp.KeepAlive, capture.Share)}
	c.SetMultipathTCP(false) // an MPTCP socket takes no socket filter, which takeOver sets (EOPNOTSUPP)
	l, err := c.Listen(context.Background(), "tcp", addr.String())
	if err != nil {
		return nil, err
	}
	return l.(*net.TCPListener), nil
}

// takeOver makes the kernel send new connections at l, a shared listener, to this process alone. It is called when this
// process is ready. Until then an earlier node proxy that took over keeps them.
func (p *Proxy) takeOver(l net.Listener) {
	t, ok := l.(*net.TCPListener)
	if !ok {
		return
	}
	if err := capture.Prefer(nil, t, true); err != nil {
		p.log.Warn().Err(err).Stringer("listen", l.Addr()).Msg("shared listener not taken over: connections that an earlier node proxy has not accepted when it stops are reset")
	}
}

// takeOverAll calls takeOver for all shared listeners.
func (p *Proxy) takeOverAll() {
	for _, o := range p.outbounds {
		p.takeOver(o.listener)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, in := range p.inbounds {
		p.takeOver(in.listener)
	}
}

// handOverWithin bounds the wait for the queue of a shared listener to become empty.
const handOverWithin = 100 * time.Millisecond

// handOver closes l. If another process shares the address, it first waits until the queue of l is empty, because closing
// resets what is queued. The accept loop of l runs meanwhile.
func handOver(l net.Listener) {
	if t, ok := l.(*net.TCPListener); ok {
		if shared, err := capture.Shared(nil, t); err == nil && shared {
			capture.Idle(t, handOverWithin)
		}
	}
	l.Close()
}
