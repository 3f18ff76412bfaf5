package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/hbone"
)

// handoverALPN is what a process of a gateway offers to the next one on its address.
const handoverALPN = "isthmus-handover/1"

const (
	// handoverDials is how often a new process dials its own address. The kernel decides
	// which process takes the connection: with one other process all of them miss it once
	// in 65 536 starts.
	handoverDials = 16
	// yieldAfter is how long a health stream lasts while another process is to have it:
	// long enough for the welcome, after which a node proxy dials again without backing
	// off.
	yieldAfter = 100 * time.Millisecond
)

// handover sends node proxies to the process that takes over. A node proxy keeps one
// stream to a gateway, so of two processes on one address (reusePort) one alone would
// hear it. The new process dials its own address until the old one answers, and keeps
// the connection; as long as there is one, the old process ends health streams, those
// that it has at once and others [yieldAfter] their beginning. What they have said is
// held for [healthstream.Held]. If the new process ends first, the old one keeps streams
// again. Of two that have not settled, since they start together, that with the greater
// instance is the new one. Make it with newHandover. Safe for concurrent use.
type handover struct {
	ask chan struct{} // holds one: there is another process that is to yield, and may not have been met

	mu         sync.Mutex
	successors int
	streams    context.Context // nil, or ends when there is a successor
	end        context.CancelFunc
	// before are processes that yield to this one, or are to: it never yields to them.
	before map[record.Instance]bool
}

func newHandover() *handover {
	return &handover{ask: make(chan struct{}, 1), before: map[record.Instance]bool{}}
}

// takeOver notes that the process id yields.
func (h *handover) takeOver(id record.Instance) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.before[id] = true
}

// refuses reports whether the process id, which wants the health streams of own, is
// rather to yield itself. Then it has to be asked.
func (h *handover) refuses(own, id record.Instance, settled bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.before[id] && (settled || bytes.Compare(own[:], id[:]) < 0) {
		return false
	}
	if !h.before[id] {
		h.before[id] = true
		select {
		case h.ask <- struct{}{}:
		default: // all are asked
		}
	}
	return true
}

// yield ends health streams until as many calls of resume; first says that it did not
// before.
func (h *handover) yield() (first bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.successors++
	if h.end != nil {
		h.end()
		h.streams, h.end = nil, nil
	}
	return h.successors == 1
}

// resume takes back one yield; last says that it was the only one.
func (h *handover) resume() (last bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.successors--
	return h.successors == 0
}

// yields reports whether another process is to have the health streams.
func (h *handover) yields() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.successors > 0
}

// stream returns a context that lasts as long as a health stream may.
func (h *handover) stream(ctx context.Context) (context.Context, context.CancelFunc) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.successors > 0 {
		return context.WithTimeout(ctx, yieldAfter)
	}
	if h.streams == nil {
		h.streams, h.end = context.WithCancel(context.Background())
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(h.streams, cancel)
	return ctx, func() { stop(); cancel() }
}

// succeed makes other processes on this address yield, until ctx ends. It returns when
// they were asked; those that start later and are to yield are asked when they come.
func (g *Gateway) succeed(ctx context.Context) {
	met := map[record.Instance]bool{g.fed.Instance(): true}
	g.askToYield(ctx, met)
	g.conns.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-g.handover.ask:
				g.askToYield(ctx, met)
			}
		}
	})
}

// askToYield makes those yield that are not in met.
func (g *Gateway) askToYield(ctx context.Context, met map[record.Instance]bool) {
	limit, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	for range handoverDials { // one more than two processes may be at work
		conn, id, err := g.meet(limit)
		if err != nil {
			g.log.Debug().Err(err).Msg("no answer from the address of this gateway")
			continue
		}
		if met[id] {
			conn.Close()
			continue
		}
		met[id] = true
		g.handover.takeOver(id)
		g.log.Info().Stringer("from", id).Msg("health streams taken over from another process of this gateway")
		g.conns.Go(func() { hold(ctx, conn) })
	}
}

// meet dials the own address, and returns the process that answers there.
func (g *Gateway) meet(ctx context.Context) (conn *hbone.TLSTransport, id record.Instance, err error) {
	ctx, cancel := context.WithTimeout(ctx, g.cfg.Timeouts.Handshake)
	defer cancel()
	cfg, err := g.ids.ClientTLS(ctx, g.self.Identity, []spiffeid.ID{g.self.Identity}, handoverALPN)
	if err != nil {
		return nil, id, err
	}
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", g.listener.Addr().String())
	if err != nil {
		return nil, id, err
	}
	if conn, err = hbone.ClientTLS(ctx, raw, cfg); err != nil {
		return nil, id, err
	}
	own := g.fed.Instance()
	deadline, _ := ctx.Deadline()
	conn.NetConn().SetDeadline(deadline)
	if _, err = conn.NetConn().Write(own[:]); err == nil {
		_, err = io.ReadFull(conn.NetConn(), id[:])
	}
	if err != nil {
		conn.Close()
		return nil, id, err
	}
	return conn, id, nil
}

// hold keeps conn until its other end or ctx ends it.
func hold(ctx context.Context, conn *hbone.TLSTransport) {
	c := conn.NetConn()
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Now()) })
	defer stop()
	defer conn.Close()
	c.SetDeadline(time.Time{})
	if ctx.Err() == nil {
		io.Copy(io.Discard, c)
	}
}

// sameMachine reports whether a connection between these addresses was made here: what a
// process dials of its own comes from there, or from a loopback address.
func sameMachine(remote, local net.Addr) bool {
	r := addressOf(remote).Unmap()
	return r.IsLoopback() || r.IsValid() && r == addressOf(local).Unmap()
}

// maySucceed says why the process at the other end may not have the health streams.
func (g *Gateway) maySucceed(t *hbone.TLSTransport) error {
	if id := t.Peer().ID; id != g.self.Identity {
		return fmt.Errorf("%q is not the identity of this gateway (%s)", id, g.self.Identity)
	}
	if !sameMachine(t.RemoteAddr(), t.LocalAddr()) {
		return fmt.Errorf("%v is another machine", t.RemoteAddr())
	}
	return nil
}

// serveSuccessor yields to the process at the other end for as long as it lives, or sends
// it away if that is to yield to this one.
func (g *Gateway) serveSuccessor(t *hbone.TLSTransport) {
	if err := g.maySucceed(t); err != nil {
		g.metrics.refused.WithLabelValues("not_gateway").Inc()
		g.lines.Sample(g.log.Warn(), t.Peer().ID.String(), "handover").Err(err).Stringer("peer", t.Peer().ID).Msg("refused to hand over health streams")
		t.Close()
		return
	}
	own, id, err := g.fed.Instance(), record.Instance{}, error(nil)
	t.NetConn().SetDeadline(time.Now().Add(g.cfg.Timeouts.Handshake))
	if _, err = io.ReadFull(t.NetConn(), id[:]); err == nil && id != own && g.handover.refuses(own, id, g.isSettled()) {
		err = errors.New("that process is to yield to this one")
	}
	if err == nil {
		_, err = t.NetConn().Write(own[:])
	}
	if err != nil || id == own {
		t.Close()
		return
	}
	if g.handover.yield() {
		g.log.Info().Stringer("to", id).Msg("health streams handed over to another process of this gateway")
	}
	hold(g.background, t)
	if g.handover.resume() {
		g.log.Warn().Stringer("to", id).Msg("the process that took over the health streams has ended: they are kept here again")
	}
}

func (g *Gateway) isSettled() bool {
	select {
	case <-g.settled:
		return true
	default:
		return false
	}
}
