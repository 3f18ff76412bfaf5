package nodeproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/internal/accept"
	"github.com/isthmus-mesh/isthmus/internal/overload"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/route"
)

// maxAppConns bounds the application connections of one listener.
const maxAppConns = 65536

// outbound is one listener that local applications connect to.
type outbound struct {
	p        *Proxy
	listener *net.TCPListener
	serve    serve
	refuse   refuse // may be nil
	conns    sync.WaitGroup
}

// serve owns app. What it returns, unless nil, runs in another goroutine until the
// connection ends.
type serve func(ctx context.Context, app *net.TCPConn) (rest func(context.Context))

// refuse returns nil if there may be time for one more connection; else what refuses it.
type refuse func() func(app *net.TCPConn)

func (p *Proxy) listenOutbound(addr netip.AddrPort, field string, serve serve) (*outbound, error) {
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(addr))
	if err != nil {
		return nil, fmt.Errorf("%s: listen: %w: choose a free address", field, err)
	}
	return &outbound{p: p, listener: l, serve: serve}, nil
}

// refusal finds out in the accept loop which connections for o would be refused anyway,
// so that least is spent on them, and the kernel's queue, where the oldest goes first and
// what is too much is dropped and asked for again a second later, stays short.
func (p *Proxy) refusal(o Outbound) refuse {
	host, port, _ := splitTarget(o.To) // validated
	flow := flowTo(host, port)
	service, port := asked(flow)
	var snap *mesh.Snapshot // that key is by; with the accept loop alone
	key := ""
	end := p.refused(access{source: o.Workload, service: service, port: port})
	return func() func(*net.TCPConn) {
		if now := p.store.Current(); now != snap {
			snap, key = now, keyOf(now, o.Workload, flow)
		}
		if key != "" && p.towards.Refuse(key) || p.crowded() {
			return end
		}
		return nil
	}
}

// refusalOfAll is refusal for a listener whose connections say only later where they are
// to go: for want of processor time, and not for one destination.
func (p *Proxy) refusalOfAll(workload string) refuse {
	end := p.refused(access{source: workload})
	return func() func(*net.TCPConn) {
		if p.crowded() {
			return end
		}
		return nil
	}
}

// refused returns what ends a connection of which a is known.
func (p *Proxy) refused(a access) func(app *net.TCPConn) {
	a.direction, a.result, a.err = "outbound", string(header.ReasonOverload), overload.ErrOverloaded
	return func(app *net.TCPConn) {
		a := a
		a.started = time.Now()
		p.metrics.opened.WithLabelValues("source").Inc()
		app.SetLinger(0)
		app.Close()
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
	slots := make(chan struct{}, maxAppConns)
	var failures accept.Failures
	for {
		slots <- struct{}{}
		app, err := o.listener.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			<-slots
			if !pause(ctx, failures.Failed(o.p.log.With().Stringer("listen", o.listener.Addr()).Logger(), err, time.Now())) {
				return
			}
			continue
		}
		failures.Succeeded()
		if o.refuse != nil {
			if end := o.refuse(); end != nil {
				o.conns.Go(func() {
					end(app)
					<-slots
				})
				continue
			}
		}
		o.conns.Go(func() {
			rest := o.serve(ctx, app)
			if rest == nil {
				<-slots
				return
			}
			o.conns.Go(func() {
				rest(ctx)
				<-slots
			})
		})
	}
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
