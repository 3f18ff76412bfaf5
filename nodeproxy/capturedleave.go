package nodeproxy

import (
	"context"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/pool"
	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
)

// leave ends the capture of a workload that is gone or whose namespace is another one's; whole:
// it may go on without the mesh, so its rules go as well. If it is not known whether they are this process's, h stays
// as it is, for the next look.
func (c *captures) leave(ctx context.Context, h *captured, whole bool) {
	released, err := c.releases(h, whole)
	if err != nil {
		return
	}
	left := make(chan struct{})
	c.mu.Lock()
	delete(c.held, h.uid)
	c.came.Store(true)
	c.gone[left] = struct{}{}
	c.mu.Unlock()
	if whole && h.place.told != nil {
		c.discard(h.place.told)
	}
	if released {
		err := capture.Set(h.place.ns, capture.Rules{Owner: h.rules.Owner}) // without the table open connections would break
		if h.emptied = err == nil; err != nil {
			c.p.log.Error().Str("workload", h.uid).Err(err).Msg("rules are left in a pod that is captured no more")
		}
	}
	h.names.release()
	if released {
		h.idle() // new ones do not come: the rules are gone
	}
	h.closeListeners()
	h.watch.Close()
	c.p.pool.Retire(func(k pool.Key) bool { return k.From == h.uid }) // the next ones begin where it is then
	c.leaving.Go(func() {
		dctx, cancel := context.WithTimeout(ctx, c.p.cfg.Timeouts.Drain)
		defer cancel()
		defer func() {
			h.stop()
			c.mu.Lock()
			delete(c.gone, left)
			c.mu.Unlock()
			close(left)
		}()
		h.drain(dctx)
		if released { // not before: what applications answer would leave the pod
			c.awaitOthers(dctx, h)
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

// releases reports whether the rules of h go when it is left: not those of the next process, nor for one that is about to
// take over.
func (c *captures) releases(h *captured, whole bool) (bool, error) {
	if !whole || !h.place.alive() {
		return false, nil
	}
	if c.p.draining.Load() {
		if others, err := c.others(h); others || err != nil {
			return false, err
		}
	}
	younger, err := c.younger(h)
	return !younger && err == nil, err
}

// idleWithin bounds the wait for an empty queue: of a listener that the next process has been preferred to it is empty.
const idleWithin = 100 * time.Millisecond

// othersEvery is how often connections of another process are looked for.
const othersEvery = 100 * time.Millisecond

// awaitOthers waits until no process has connections in the pod of h that need our tables, such as the node proxy before
// this one that drains, or ctx has ended.
func (c *captures) awaitOthers(ctx context.Context, h *captured) {
	for {
		carried, err := capture.Carried(h.place.ns)
		if err != nil {
			c.p.log.Warn().Str("workload", h.uid).Err(err).Msg("rules go from a pod that is captured no more, and what another node proxy still carries there may break")
			return
		}
		if !carried || !pause(ctx, othersEvery) {
			return
		}
	}
}

// idle waits, for a moment, until nothing is in the queues of h's listeners: it would be reset.
func (h *captured) idle() {
	var wg sync.WaitGroup
	for _, l := range h.listeners() {
		wg.Go(func() { capture.Idle(l, idleWithin) })
	}
	wg.Wait()
}

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
	if c == nil {
		return
	}
	var wg sync.WaitGroup
	held := c.list()
	for _, h := range held {
		h.names.release()
		wg.Go(h.idle)
	}
	wg.Wait()
	for _, h := range held {
		h.closeListeners()
		wg.Go(func() { h.drain(ctx) })
	}
	wg.Wait()
	c.awaitGone(ctx)
}

// awaitGone returns when the pods that have left, before or meanwhile, have drained or ctx has ended.
func (c *captures) awaitGone(ctx context.Context) {
	c.mu.Lock()
	gone := slices.Collect(maps.Keys(c.gone))
	c.mu.Unlock()
	for _, left := range gone {
		select {
		case <-left:
		case <-ctx.Done():
			return
		}
	}
}

// close lets go of all namespaces, when follow has ended. Their rules stay: what they lead to is refused until
// the next node proxy is there.
func (c *captures) close() {
	if c == nil {
		return
	}
	c.works.wait()
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
