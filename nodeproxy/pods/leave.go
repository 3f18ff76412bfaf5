package pods

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
)

// leave ends the capture of a workload that is gone or whose namespace is another one's; whole:
// it may go on without the mesh, so its rules go as well. If it is not known whether they are this process's, h stays
// as it is, for the next look.
func (c *Set) leave(ctx context.Context, h *Pod, whole bool) {
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
			c.p.Log.Error().Str("workload", h.uid).Err(err).Msg("rules are left in a pod that is captured no more")
		}
	}
	h.names.release()
	if released {
		h.idle() // new ones do not come: the rules are gone
	}
	h.closeListeners()
	h.incoming.Undecided.Close()
	h.watch.Close()
	c.p.Retire(h.uid) // the next ones begin where it is then
	c.leaving.Go(func() {
		dctx, cancel := context.WithTimeout(ctx, c.cfg.Drain)
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
	c.p.Log.Info().Str("workload", h.uid).Msg("captured no more")
}

// releases reports whether the rules of h go when it is left: not those of the next process, nor for one that is about to
// take over.
func (c *Set) releases(h *Pod, whole bool) (bool, error) {
	if !whole || !h.place.alive() {
		return false, nil
	}
	if c.p.Draining() {
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
func (c *Set) awaitOthers(ctx context.Context, h *Pod) {
	for {
		carried, err := capture.Carried(h.place.ns)
		if err != nil {
			c.p.Log.Warn().Str("workload", h.uid).Err(err).Msg("rules go from a pod that is captured no more, and what another node proxy still carries there may break")
			return
		}
		if !carried || !pause(ctx, othersEvery) {
			return
		}
	}
}

// idle waits, for a moment, until nothing is in the queues of h's listeners: it would be reset.
func (h *Pod) idle() {
	var wg sync.WaitGroup
	for _, l := range h.incoming.list() {
		wg.Go(func() { capture.Idle(l, idleWithin) })
	}
	wg.Wait()
}

// drain returns when what is open of h has ended or ctx has. A pod may leave while this process stops: both wait for the
// drain that began first.
func (h *Pod) drain(ctx context.Context) {
	h.drained.Do(func() {
		var wg sync.WaitGroup
		wg.Go(func() { h.names.drain(ctx) })
		wg.Go(func() { h.server.Drain(ctx) })
		wg.Wait()
	})
}

// Drain takes no more connections, and returns when those that are open have ended or ctx has.
func (c *Set) Drain(ctx context.Context) {
	if c == nil {
		return
	}
	var wg sync.WaitGroup
	for _, h := range c.List() { // each by itself: somebody in a pod may have the kernel take as long as he likes
		wg.Add(1)
		c.leaving.Go(func() { // Close waits for it
			defer wg.Done()
			h.names.release()
			h.idle()
			h.closeListeners()
			h.drain(ctx)
		})
	}
	drained := make(chan struct{})
	go func() { // ends with these
		wg.Wait()
		close(drained)
	}()
	select {
	case <-drained:
	case <-ctx.Done():
	}
	c.awaitGone(ctx)
}

// awaitGone returns when the pods that have left, before or meanwhile, have drained or ctx has ended.
func (c *Set) awaitGone(ctx context.Context) {
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

// Close lets go of all namespaces, when Run has ended. Their rules stay: what they lead to is refused until
// the next node proxy is there.
func (c *Set) Close() {
	if c == nil {
		return
	}
	c.works.wait()
	c.leaving.Wait()
	c.node.close()
	for _, h := range c.List() {
		c.mu.Lock()
		delete(c.held, h.uid)
		c.mu.Unlock()
		h.stop()
		h.names.close()
		h.closeListeners()
		h.incoming.Undecided.Close()
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

// closeListeners closes what accepts connections. Connections that the mesh does not carry are still decided on.
func (h *Pod) closeListeners() {
	h.incoming.Undecided.Quit()
	for _, l := range h.incoming.list() {
		l.Close()
	}
}

// pause waits for d, and reports whether ctx is still there.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
