package nodeproxy

import (
	"context"
	"net"
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
)

// keep leaves what is captured and wanted no more, and has the rest captured by rules, if those may be set. It
// reports whether any was left.
func (c *captures) keep(ctx context.Context, wanted map[string]*mesh.Workload, rules capture.Rules, set bool, now time.Time) (left bool) {
	for _, h := range c.list() {
		switch w := wanted[h.uid]; {
		case w == nil, !h.place.alive(), c.moved(h), w.Addresses[0] != h.address:
			c.leave(ctx, h, w == nil)
			left = true
		case set && !c.p.draining.Load() && (!sameRules(h.rules, rules) || c.meddled(h, now)):
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
	if err == nil && !changed && !h.left {
		return false
	}
	hold, err := capture.Hold(h.place.ns, h.rules)
	if err != nil {
		c.fail(h.uid, err)
		return false
	}
	if h.left = !hold && c.others(h); h.left {
		return false
	}
	if !hold {
		h.reset = now
		c.p.log.Warn().Str("workload", h.uid).Msg("somebody else has changed the rules in a captured pod: they are set again")
		if h.source != nil {
			c.leaving.Go(h.source.doubt) // those may be gone too
		}
	}
	return !hold
}

// others reports whether the rules of h are those of another process of ours that listens there too. The younger one's
// were set last, and stay as they are until one of the two has gone: what the older one set again could lead to a
// listener that closes with it.
func (c *captures) others(h *captured) bool {
	_, there, err := capture.Owner(h.place.ns)
	if err != nil || !there {
		return false
	}
	shared, err := capture.Shared(h.place.ns, h.in.listener.(*net.TCPListener))
	return err == nil && shared
}

// replace has h captured by other rules.
func (c *captures) replace(h *captured, rules capture.Rules) {
	if err := capture.Set(h.place.ns, rules); err != nil {
		c.fail(h.uid, err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	h.rules = rules
	delete(c.failing, h.uid)
}
