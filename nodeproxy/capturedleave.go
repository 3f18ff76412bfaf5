package nodeproxy

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/pool"
	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
)

// leave ends the capture of a workload that is gone or whose namespace is another one's; whole:
// it may go on without the mesh, so its rules go as well.
func (c *captures) leave(ctx context.Context, h *captured, whole bool) {
	c.mu.Lock()
	delete(c.held, h.uid)
	c.mu.Unlock()
	if whole && h.place.told != nil {
		c.discard(h.place.told)
	}
	released := whole && h.place.alive()
	if released {
		if err := capture.Set(h.place.ns, capture.Rules{Owner: h.rules.Owner}); err != nil { // without the table open connections would break
			c.p.log.Error().Str("workload", h.uid).Err(err).Msg("rules are left in a pod that is captured no more")
		}
	}
	h.names.release()
	h.closeListeners()
	h.watch.Close()
	c.p.pool.Retire(func(k pool.Key) bool { return k.From == h.uid }) // the next ones begin where it is then
	c.leaving.Go(func() {
		dctx, cancel := context.WithTimeout(ctx, c.p.cfg.Timeouts.Drain)
		defer cancel()
		defer h.stop()
		h.drain(dctx)
		if released { // not before: what applications answer would leave the pod
			c.closeSource(h, true)
			h.place.close()
		}
	})
	if !released {
		c.closeSource(h, false)
		h.place.close() // its sockets may be all that keeps the namespace
	}
	c.p.log.Info().Str("workload", h.uid).Msg("captured no more")
}

// idleWithin bounds the wait for an empty queue: of a listener that the next process has been preferred to it is empty.
const idleWithin = 100 * time.Millisecond

// drain returns when what is open of h has ended or ctx has.
func (h *captured) drain(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { h.names.drain(ctx) })
	wg.Go(func() { h.in.drain(ctx) })
	for _, o := range h.outs {
		wg.Go(func() { o.drain(ctx) })
	}
	wg.Wait()
}

// drain takes no more connections, and returns when those that are open have ended or ctx has.
func (c *captures) drain(ctx context.Context) {
	var wg sync.WaitGroup
	held := c.list()
	for _, h := range held {
		h.names.release()
		for _, l := range h.listeners() { // what is in its queue would be reset
			wg.Go(func() { capture.Idle(l, idleWithin) })
		}
	}
	wg.Wait()
	for _, h := range held {
		h.closeListeners()
		wg.Go(func() { h.drain(ctx) })
	}
	wg.Wait()
}

// close lets go of all namespaces, when follow has ended. Their rules stay: what they lead to is refused until
// the next node proxy is there.
func (c *captures) close() {
	if c == nil {
		return
	}
	c.leaving.Wait()
	c.node.close()
	for _, h := range c.list() {
		c.mu.Lock()
		delete(c.held, h.uid)
		c.mu.Unlock()
		h.stop()
		h.names.close()
		h.closeListeners()
		h.watch.Close()
		h.place.close()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.announced { // nobody waits any more
		a.ns.Close()
	}
	clear(c.announced)
}

func (h *captured) closeListeners() {
	for _, l := range h.listeners() {
		l.Close()
	}
}

// listeners are those that it has opened so far.
func (h *captured) listeners() (out []*net.TCPListener) {
	if h.in != nil {
		out = append(out, h.in.listener.(*net.TCPListener))
	}
	for _, o := range h.outs {
		out = append(out, o.listener)
	}
	return out
}
