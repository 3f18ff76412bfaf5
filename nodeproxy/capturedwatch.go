package nodeproxy

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
)

// keep leaves what is captured and wanted no more, and has the rest captured by rules, if those may be set. It
// reports whether any was left.
func (c *captures) keep(ctx context.Context, wanted map[string]*mesh.Workload, rules capture.Rules, set bool, now time.Time) (left bool) {
	var leave errgroup.Group // the kernel waits, as for those that are entered
	leave.SetLimit(enterAtOnce)
	defer leave.Wait()
	for _, h := range c.list() {
		switch w := wanted[h.uid]; {
		case w == nil, !h.place.alive(), c.moved(h), w.Addresses[0] != h.address:
			leave.Go(func() error {
				c.leave(ctx, h, w == nil)
				return nil
			})
			left = true
		case set && !c.p.draining.Load() && (!sameRules(h.rules, rules) || c.meddled(h, now) || c.bereft(h)):
			c.replace(h, rules)
		}
	}
	return left
}

func sameRules(a, b capture.Rules) bool {
	return slices.Equal(a.Ranges, b.Ranges) && slices.Equal(a.Addresses, b.Addresses) && a.Everything == b.Everything
}

// resetEvery is how often rules are set again at most: another process of this node may have set its own, the next
// one with another configuration, and neither is to keep the other busy.
const resetEvery = time.Second

// meddled reports whether somebody else has changed the rules of h or taken them away.
func (c *captures) meddled(h *captured, now time.Time) bool {
	if now.Sub(h.reset) < resetEvery {
		return false
	}
	changed, err := h.watch.Changed()
	if err == nil && !changed && !h.left && !h.unsure {
		return false
	}
	h.beside = true // who enters sets rules
	hold, err := capture.Hold(h.place.ns, h.rules)
	if err != nil {
		h.unsure = true
		c.fail(h.uid, err)
		return false
	}
	if hold && h.unsure {
		c.mu.Lock()
		delete(c.failing, h.uid)
		c.mu.Unlock()
	}
	h.unsure = !hold // until they are set
	if h.left = !hold && c.younger(h); h.left {
		return false
	}
	if !hold {
		h.reset = now
		c.p.log.Warn().Str("workload", h.uid).Msg("somebody else has changed the rules in a captured pod: they are set again")
		if h.source != nil {
			c.leaving.Go(h.source.doubt) // those may be gone too
		}
		return true
	}
	// Those of a process that has ended, or began before this one, are this one's to set.
	return !c.younger(h) && h.setBy != (capture.Setter{}) && h.setBy != h.rules.By
}

// bereft reports whether a process of ours has ended that listened where h does, and this one is to have connections come to it that
// began last of those that are left: the kernel shares them out then.
func (c *captures) bereft(h *captured) bool {
	if !h.beside {
		return false
	}
	now, err := capture.Sharers(h.place.ns, h.in.listener.(*net.TCPListener))
	if err != nil {
		return false
	}
	gone := func(cookie uint64) bool { return !slices.Contains(now, cookie) }
	ended := slices.ContainsFunc(h.sharers, gone)
	h.moved = h.moved || slices.ContainsFunc(h.elders, gone)
	h.sharers, h.beside = now, len(now) > 1
	return ended && h.beside && !h.moved && !c.younger(h)
}

// others reports whether another process of ours listens where h does, too.
func (c *captures) others(h *captured) bool {
	shared, err := capture.Shared(h.place.ns, h.in.listener.(*net.TCPListener))
	return err == nil && shared
}

// younger reports whether the rules of h are those of a process of ours that began after this one and listens there too.
// They stay as they are until that one has gone, and what it set is anybody's: what this one set again could lead to a
// listener that closes with it.
func (c *captures) younger(h *captured) bool {
	_, by, there, err := capture.SetBy(h.place.ns)
	switch {
	case err != nil, !there && !h.left: // where it was younger they come back by it
		return false
	case there:
		h.setBy = by
	}
	if h.setBy == (capture.Setter{}) { // an older version's, or nobody's: whoever is there had them set last
		return c.others(h)
	}
	if h.setBy.Began <= c.began {
		return false
	}
	alive, err := capture.Alive(h.place.ns, netip.AddrPortFrom(h.address, mesh.HBONEPort), h.setBy)
	return err == nil && alive
}

// replace has h captured by other rules.
func (c *captures) replace(h *captured, rules capture.Rules) {
	rules.By = h.rules.By
	if h.left = c.younger(h); !h.left {
		if err := capture.Set(h.place.ns, rules); err != nil {
			h.unsure = true
			c.fail(h.uid, err)
			return
		}
		h.unsure = false
		if !h.moved && (h.beside || h.setBy.Socket != rules.By.Socket) && c.others(h) { // connections are to come here, as they did to one that has gone
			c.prefer(h)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	h.rules = rules
	delete(c.failing, h.uid)
}
