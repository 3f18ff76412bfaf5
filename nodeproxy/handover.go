package nodeproxy

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/tcp"
	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
)

// sharedListener is a listener at an address of the configuration: of outbound, socks, or port 15008 of a workload that is not
// captured. The next generation of this node proxy may listen there too (SO_REUSEPORT).
type sharedListener struct {
	*net.TCPListener
	mark net.Conn // see markOf; nil in a captured pod, whose rules name the process that set them
}

// Close closes the mark last: no process shares a listener without one.
func (l *sharedListener) Close() error {
	err := l.TCPListener.Close()
	if l.mark != nil {
		l.mark.Close()
	}
	return err
}

// holder names what a listener is for. Generations of one node proxy share only listeners of the same holder.
func (p *Proxy) holder(kind, uid string) string {
	return fmt.Sprintf("%q", []string{kind, p.cfg.Network, p.cfg.Node, uid})
}

// markOf is the name of an abstract Unix socket, which shows the holder of the listener with that cookie.
func markOf(cookie uint64, holder string) *net.UnixAddr {
	sum := sha256.Sum256([]byte(holder))
	return &net.UnixAddr{Net: "unixgram", Name: fmt.Sprintf("@isthmus-nodeproxy/%x/%x", cookie, sum[:16])}
}

// A listener is without its mark for a moment when its process starts or stops: an address in use is tried again.
const (
	shareTries = 5
	shareAgain = 2 * time.Millisecond // and as much again at most, by chance: two processes may start at the same time
)

// listenShared listens on addr. If a node proxy listens there for the same holder, it keeps new connections until takeOver
// moves them, so an upgrade loses none. An address in use by any other process is an error.
func listenShared(addr netip.AddrPort, holder string) (s *sharedListener, err error) {
	for range shareTries {
		if s, err = tryListenShared(addr, holder); !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
		time.Sleep(shareAgain + rand.N(shareAgain))
	}
	return s, err
}

func tryListenShared(addr netip.AddrPort, holder string) (*sharedListener, error) {
	before, ours := sharers(addr, holder, 0)
	if before == 0 || !ours { // the kernel finds any other process
		l, err := listen(addr)
		if err != nil {
			return nil, err
		}
		l.Close()
	}
	l, err := listen(addr, capture.Share)
	if err != nil {
		return nil, err
	}
	if before == 1 {
		err = capture.Yield(l)
	}
	cookie, e := capture.Cookie(l)
	mark, me := net.ListenUnixgram("unixgram", markOf(cookie, holder))
	if err = errors.Join(err, e, me); err != nil {
		l.Close()
		return nil, err
	}
	s := &sharedListener{l, mark}
	if n, ours := sharers(addr, holder, cookie); n > 0 && !ours { // another one started at the same time
		s.Close()
		return nil, &net.OpError{Op: "listen", Net: "tcp", Addr: l.Addr(), Err: os.NewSyscallError("bind", syscall.EADDRINUSE)}
	}
	return s, nil
}

func listen(addr netip.AddrPort, more ...tcp.Control) (*net.TCPListener, error) {
	c := net.ListenConfig{KeepAlive: -1, Control: tcp.Controls(append(more, tcp.KeepAlive)...)}
	c.SetMultipathTCP(false) // an MPTCP socket takes no socket filter, which takeOver sets (EOPNOTSUPP)
	l, err := c.Listen(context.Background(), "tcp", addr.String())
	if err != nil {
		return nil, err
	}
	return l.(*net.TCPListener), nil
}

// sharers counts the listeners at addr beside the one with the cookie own, and reports whether all of them are of the holder. A
// kernel without sock_diag shows none.
func sharers(addr netip.AddrPort, holder string, own uint64) (n int, ours bool) {
	cookies, err := capture.SharersAt(nil, addr)
	if err != nil {
		return 0, false
	}
	ours = true
	for _, cookie := range cookies {
		if cookie == own {
			continue
		}
		n++
		mark, err := net.DialUnix("unixgram", nil, markOf(cookie, holder))
		if err != nil {
			ours = false
			continue
		}
		mark.Close()
	}
	return n, ours
}

// takeOver makes the kernel send new connections at l, a shared listener, to this process alone. It is called when this
// process is ready. Until then an earlier node proxy that took over keeps them.
func (p *Proxy) takeOver(l net.Listener) {
	s, ok := l.(*sharedListener)
	if !ok {
		return
	}
	if err := capture.Prefer(nil, s.TCPListener, true); err != nil {
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
	if s, ok := l.(*sharedListener); ok {
		if shared, err := capture.Shared(nil, s.TCPListener); err == nil && shared {
			capture.Idle(s.TCPListener, handOverWithin)
		}
	}
	l.Close()
}
