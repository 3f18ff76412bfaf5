package nodeproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/internal/accept"
	"github.com/isthmus-mesh/isthmus/internal/overload"
	"github.com/isthmus-mesh/isthmus/internal/stack"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/route"
)

// maxAppConns bounds the application connections of one listener.
const maxAppConns = 65536

// outbound is one listener that local applications connect to.
type outbound struct {
	p        *Proxy
	listener *sharedListener
	serve    serve
	refuse   refuse
	conns    sync.WaitGroup
	slots    chan struct{}   // one for each connection
	raw      syscall.RawConn // of listener
	behind   atomic.Bool     // some are refused, and the accept loop has not seen the end of the kernel's queue since
	starting atomic.Int32    // connections whose goroutine has not run yet
}

// serve owns app. What it returns, unless nil, runs in another goroutine until the
// connection ends.
type serve func(ctx context.Context, app *net.TCPConn) (rest func(context.Context))

// refuse returns nil if there may be time for one more connection, beside those that are
// coming; else what notes that it is refused, to be called before it is: the client may
// see that at once, and the line in the log is not to be of later.
type refuse func(coming int) func()

func (p *Proxy) listenOutbound(addr netip.AddrPort, field, holder string, serve serve) (*outbound, error) {
	l, err := listenShared(addr, holder)
	if err != nil {
		return nil, fmt.Errorf("%s: listen: %w: choose a free address; only the next process of the same network, node and workload may share it", field, err)
	}
	o, err := p.newOutbound(l, serve)
	if err != nil {
		return nil, fmt.Errorf("%s: listen: %w", field, err)
	}
	return o, nil
}

// newOutbound owns l.
func (p *Proxy) newOutbound(l *sharedListener, serve serve) (*outbound, error) {
	raw, err := l.SyscallConn()
	if err != nil {
		l.Close()
		return nil, err
	}
	return &outbound{p: p, listener: l, serve: serve, slots: make(chan struct{}, maxAppConns), raw: raw}, nil
}

// refusal finds out where connections are accepted which ones for o would be refused anyway,
// so that least is spent on them, and the kernel's queue, where the oldest goes first and
// what is too much is dropped and asked for again a second later, stays short.
func (p *Proxy) refusal(o Outbound) refuse {
	host, port, _ := splitTarget(o.To) // validated
	flow := flowTo(host, port)
	service, port := asked(flow)
	type known struct {
		revision uint64 // of the snapshot that key is by, which a listener at rest must not hold
		key      string
	}
	var last atomic.Pointer[known]
	last.Store(&known{})
	end := p.refused(access{source: o.Workload, service: service, port: port})
	return func(coming int) func() {
		k := last.Load()
		if now := p.store.Current(); now.Revision != k.revision {
			k = &known{now.Revision, keyOf(now, o.Workload, flow)}
			last.Store(k)
		}
		if k.key != "" && p.towards.Refuse(k.key, coming) || p.crowded(coming) {
			return end
		}
		return nil
	}
}

// refusalOfAll is refusal for a listener whose connections say only later where they are
// to go: for want of processor time, and not for one destination.
func (p *Proxy) refusalOfAll(workload string) refuse {
	end := p.refused(access{source: workload})
	return func(coming int) func() {
		if p.crowded(coming) {
			return end
		}
		return nil
	}
}

// refused returns what notes the end of a connection of which a is known.
func (p *Proxy) refused(a access) func() {
	a.direction, a.result, a.err = "outbound", string(header.ReasonOverload), overload.ErrOverloaded
	opened := p.metrics.opened.WithLabelValues("source")
	return func() {
		a := a
		a.started = time.Now()
		opened.Inc()
		p.load.Refused()
		p.finish(&a)
	}
}

// keyOf is the sharedKey of flow from the workload uid; empty if that has no way by snap.
func keyOf(snap *mesh.Snapshot, uid string, flow route.Flow) string {
	if flow.Source = snap.Workload(uid); flow.Source == nil {
		return ""
	}
	plan, err := route.Resolve(snap, flow)
	if err != nil {
		return ""
	}
	return sharedKey(&plan)
}

// static serves one destination.
func (p *Proxy) static(o Outbound) serve {
	host, port, _ := splitTarget(o.To) // validated
	flow := flowTo(host, port)
	return func(ctx context.Context, app *net.TCPConn) func(context.Context) {
		return p.carry(ctx, app, o.Workload, flow, nil, nil, nil)
	}
}

// flowTo is a flow to a name or an address.
func flowTo(host string, port uint16) route.Flow {
	if a, err := netip.ParseAddr(host); err == nil {
		return route.Flow{Addr: netip.AddrPortFrom(a.Unmap(), port)}
	}
	return route.Flow{Host: host, Port: port}
}

// run accepts until the listener is closed and returns when the last of its
// connections has ended.
func (o *outbound) run(ctx context.Context) {
	defer o.conns.Wait()
	var failures accept.Failures
	for {
		o.slots <- struct{}{}
		app, err := o.listener.AcceptTCP()
		if err != nil {
			<-o.slots
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			if !pause(ctx, failures.Failed(o.p.log.With().Stringer("listen", o.listener.Addr()).Logger(), err, time.Now())) {
				return
			}
			continue
		}
		failures.Succeeded()
		if end := o.refuse(int(o.starting.Load())); end != nil {
			end()
			app.SetLinger(0)
			app.Close()
			<-o.slots
			o.behind.Store(true)
			o.refuseQueued(maxAppConns)
			continue
		}
		o.begin(ctx, app)
	}
}

// begin serves app, for which there is a slot.
func (o *outbound) begin(ctx context.Context, app *net.TCPConn) {
	o.starting.Add(1)
	o.conns.Go(func() {
		o.starting.Add(-1)
		stack.Grow()
		o.relieve()
		rest := o.serve(ctx, app)
		o.relieve()
		if rest == nil {
			<-o.slots
			return
		}
		o.conns.Go(func() {
			rest(ctx)
			<-o.slots
		})
	})
}

// relieve does a part of the accept loop's work while that is behind: the scheduler gives
// it no more time than any other goroutine, and of those there are many then.
func (o *outbound) relieve() {
	if o.behind.Load() {
		o.refuseQueued(relief)
	}
}

// relief is how many connections relieve refuses at most, when a connection begins and when
// it is open: enough for a few times what can be served. More would leave no time to
// serve anybody: what is refused sooner comes again sooner.
const relief = 2

// refuseQueued takes up to n connections out of the kernel's queue, for as long as they
// are refused: those cost a tenth of what they would cost as a net.Conn. One that may be
// served is left to the accept loop.
func (o *outbound) refuseQueued(n int) {
	o.raw.Control(func(fd uintptr) {
		for range n {
			end := o.refuse(int(o.starting.Load()))
			if end == nil {
				return
			}
			app, _, err := syscall.Accept4(int(fd), syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK)
			if err != nil { // none is left, or the accept loop is to find out
				o.behind.Store(false)
				return
			}
			end()
			syscall.SetsockoptLinger(app, syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1}) // a FIN would be an end that nobody has sent
			syscall.Close(app)
		}
	})
}

// drain returns when no connection is left or ctx has ended.
func (o *outbound) drain(ctx context.Context) {
	ended := make(chan struct{})
	go func() { // ends at the latest when the process stops its connections
		o.conns.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
}

func itoa(p uint16) string { return strconv.Itoa(int(p)) }
