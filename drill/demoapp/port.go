package demoapp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"
)

// port is one listening address, perhaps ill.
type port struct {
	app  *App
	addr netip.AddrPort

	op        sync.Mutex // one fault or heal at a time
	mu        sync.Mutex
	listener  *net.TCPListener // nil while refusing or shut
	accepted  chan struct{}    // closed when the accept loop of listener ended
	answering chan struct{}    // closed unless silent: who sends first waits for it
	delay     time.Duration    // before a new connection is served
	prompt    chan struct{}    // closed when the delay is over for those that wait
	conns     map[net.Conn]struct{}
	closed    bool
}

// open listens and starts to accept. It replaces no listener.
func (p *port) open(ctx context.Context) error {
	var lc net.ListenConfig
	lc.SetMultipathTCP(false) // an MPTCP socket takes no socket filter (EOPNOTSUPP)

	network := "tcp" // [::] is both families
	if p.addr.Addr().Is4() {
		network = "tcp4"
	}
	l, err := lc.Listen(ctx, network, p.addr.String())
	if err != nil {
		return fmt.Errorf("listen on %s: %w: choose a free address", p.addr, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listener = l.(*net.TCPListener)
	p.accepted = make(chan struct{})
	if p.answering == nil {
		p.answering = make(chan struct{})
		close(p.answering)
		p.conns = map[net.Conn]struct{}{}
	}
	go p.accept(p.listener, p.accepted)
	return nil
}

// accept serves connections until the listener is closed or its deadline, set
// to now by refuse once no SYN gets in any more, finds the queue empty.
func (p *port) accept(l *net.TCPListener, done chan<- struct{}) {
	defer close(done)
	for {
		c, err := l.Accept()
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(5 * time.Millisecond) // out of descriptors: the peer waits in the queue
			continue
		}
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			c.Close()
			continue
		}
		delay, prompt := p.delay, p.prompt
		p.conns[c] = struct{}{}
		p.mu.Unlock()
		p.app.conns.Go(func() {
			p.wait(delay, prompt)
			p.serve(c)
			p.mu.Lock()
			delete(p.conns, c)
			p.mu.Unlock()
		})
	}
}

// wait lets a new connection wait while the port is slow.
func (p *port) wait(delay time.Duration, prompt <-chan struct{}) {
	if delay == 0 {
		return
	}
	t := time.NewTimer(delay)
	defer t.Stop()
	select {
	case <-t.C:
	case <-prompt:
	}
}

// A handshake whose SYN came before the filter takes microseconds on loopback, and
// longer where the processor is taken from the client in the middle of it. Refuse looks
// every handshakeGrace, and gives up on clients that are gone after handshakeLimit.
const (
	handshakeGrace = 2 * time.Millisecond
	handshakeLimit = 5 * time.Second
)

// awaitHandshakes returns when no handshake with the listener is under way.
func (p *port) awaitHandshakes(ctx context.Context) error {
	for limit := time.Now().Add(handshakeLimit); ; {
		select {
		case <-time.After(handshakeGrace):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		n, err := handshakes(p.addr)
		if err != nil {
			return err
		}
		if n == 0 || time.Now().After(limit) {
			return nil
		}
	}
}

// refuse closes the listener so that nobody in its queue is reset: first no
// new SYN gets in, then the queue is emptied, then it is closed.
func (p *port) refuse(ctx context.Context) error {
	p.op.Lock()
	defer p.op.Unlock()
	p.mu.Lock()
	l, done := p.listener, p.accepted
	p.mu.Unlock()
	if l == nil {
		return nil
	}
	// Some kernels let only root attach a filter. Without one, a connection that
	// arrives between the last look into the queue and the close is reset.
	if err := dropSYN(l); err != nil && !errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("refuse %s: %w", p.addr, err)
	}
	if err := p.awaitHandshakes(ctx); err != nil {
		return errors.Join(err, keepSYN(l))
	}
	if err := p.drain(l, done); err != nil {
		return fmt.Errorf("refuse %s: %w", p.addr, err)
	}
	p.mu.Lock()
	p.listener = nil
	p.mu.Unlock()
	return l.Close()
}

// drain ends the accept loop at a moment when the queue is empty: a deadline in
// the past makes Accept return at once, without looking at the queue, so what
// is left is then taken without waiting.
func (p *port) drain(l *net.TCPListener, done <-chan struct{}) error {
	if err := l.SetDeadline(time.Unix(1, 0)); err != nil {
		return err
	}
	<-done
	conns, err := takeQueue(l)
	for _, c := range conns {
		p.mu.Lock()
		p.conns[c] = struct{}{}
		p.mu.Unlock()
		p.app.conns.Go(func() {
			p.serve(c)
			p.mu.Lock()
			delete(p.conns, c)
			p.mu.Unlock()
		})
	}
	return err
}

func (p *port) hang() error {
	p.op.Lock()
	defer p.op.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener == nil {
		return fmt.Errorf("hang %s: the port refuses already: heal it first", p.addr)
	}
	err := dropSYN(p.listener)
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("hang %s: attach a socket filter: %w: this kernel lets only root do so: run as root, or take another fault, such as freeze", p.addr, err)
	}
	return err
}

func (p *port) silence() error {
	p.op.Lock()
	defer p.op.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.answering:
		p.answering = make(chan struct{})
	default:
	}
	return nil
}

func (p *port) slow(delay time.Duration) error {
	if delay <= 0 {
		return fmt.Errorf("slow %s: the delay is %v: give it a positive one", p.addr, delay)
	}
	p.op.Lock()
	defer p.op.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hurry()
	p.delay, p.prompt = delay, make(chan struct{})
	return nil
}

// hurry ends the delay, also of those that wait. p.mu is held.
func (p *port) hurry() {
	if p.delay > 0 {
		close(p.prompt)
		p.delay = 0
	}
}

func (p *port) heal(ctx context.Context) error {
	p.op.Lock()
	defer p.op.Unlock()
	p.mu.Lock()
	p.hurry()
	select {
	case <-p.answering:
	default:
		close(p.answering)
	}
	l := p.listener
	p.mu.Unlock()
	if l == nil {
		return p.open(ctx)
	}
	return keepSYN(l)
}

// shut ends the port for good.
func (p *port) shut() {
	p.op.Lock()
	defer p.op.Unlock()
	p.mu.Lock()
	p.closed = true
	p.hurry()
	l, done := p.listener, p.accepted
	p.listener = nil
	for c := range p.conns {
		c.Close()
	}
	select {
	case <-p.answering:
	default:
		close(p.answering)
	}
	p.mu.Unlock()
	if l != nil {
		l.Close()
		<-done
	}
}

// awaitAnswering waits until the port answers, or the connection's end.
func (p *port) awaitAnswering() {
	p.mu.Lock()
	v := p.answering
	p.mu.Unlock()
	<-v
}
