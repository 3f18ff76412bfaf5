package pods

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// keep begins to leave what is captured and wanted no more, and to have the rest captured by rules. to are addresses for which
// pods need routes.
func (c *Set) keep(ctx context.Context, wanted map[string]*mesh.Workload, rules capture.Rules, to []netip.Addr, now time.Time) {
	for _, h := range c.List() {
		if c.works.busy(h.uid) {
			continue
		}
		switch w := wanted[h.uid]; {
		case w == nil, !h.place.alive(), c.moved(h), w.Addresses[0] != h.address, c.deaf(h, now):
			c.works.begin(h.uid, "leaving its network namespace", h.place.ns.ID(), func() {
				c.leave(ctx, h, w == nil)
				if c.Get(h.uid) != h {
					c.wakeUp() // it may be found elsewhere
				}
			})
		case !c.p.Draining() && !c.works.rests(h.uid, now):
			rules, by := rules, c.judgedNow(w) // its own
			policed := c.cfg.All() && !h.judged.by(by, now)
			if rules.Inbound = h.rules.Inbound; policed {
				rules.Inbound = c.inbound(w)
			}
			other, stirred := !sameRules(h.rules, rules), c.stirred(h, now)
			route := c.routeDue(h, now)
			if !other && !stirred && !h.beside && !route && !policed {
				continue
			}
			c.works.begin(h.uid, "the look at its rules", h.place.ns.ID(), func() {
				if lost := !other && (stirred && c.meddled(h, now) || c.bereft(h)); other || lost {
					if lost {
						h.judged = judged{} // connections may have come meanwhile
					}
					c.replace(h, rules)
				}
				if policed && sameRules(h.rules, rules) {
					c.enforce(h, w, by)
				}
				if route {
					c.lookForRoutes(h, w, to)
					c.exempt(h, h.rules) // interfaces may be new
				}
			})
		}
	}
}

// deaf reports whether somebody else has ended a listener of h (SOCK_DESTROY, as of ss -K): then the pod is entered anew.
func (c *Set) deaf(h *Pod, now time.Time) bool {
	if now.Sub(h.heard) < resetEvery || c.p.Draining() {
		return false
	}
	h.heard = now
	list := h.incoming.list()
	if h.names != nil {
		for _, l := range h.names.tcp {
			if l, ok := l.(*net.TCPListener); ok {
				list = append(list, l)
			}
		}
	}
	deaf := slices.ContainsFunc(list, capture.Destroyed)
	if deaf {
		c.p.Log.Warn().Str("workload", h.uid).Msg("somebody else has ended listeners of this node proxy in a captured pod: it is entered anew")
	}
	return deaf
}

func sameRules(a, b capture.Rules) bool {
	return slices.Equal(a.Ranges, b.Ranges) && slices.Equal(a.Addresses, b.Addresses) && a.Everything == b.Everything && a.Inbound == b.Inbound
}

// resetEvery is how often rules are set again at most: another process of this node may have set its own, the next
// one with another configuration, and neither is to keep the other busy.
const resetEvery = time.Second

// stirred reports whether somebody may have changed the rules of h: that is asked all the time, and costs the same in every pod.
func (c *Set) stirred(h *Pod, now time.Time) bool {
	if now.Sub(h.reset) < resetEvery {
		return false
	}
	changed, err := h.watch.Changed()
	return err != nil || changed || h.left || h.unsure || c.yieldsStill(h.uid, now)
}

// meddled reports whether somebody else has changed the rules of h or taken them away.
func (c *Set) meddled(h *Pod, now time.Time) bool {
	h.beside = true // who enters sets rules
	hold, err := capture.Hold(h.place.ns, h.rules)
	if err != nil {
		h.unsure = true
		c.fail(h.uid, err)
		return false
	}
	younger, err := c.younger(h)
	if err != nil {
		h.unsure = true
		c.fail(h.uid, err)
		return false
	}
	h.left = !hold && younger
	c.yields(h.uid, younger)
	if h.unsure && (hold || h.left) {
		c.mu.Lock()
		delete(c.failing, h.uid)
		c.mu.Unlock()
	}
	if h.unsure = !hold; h.left { // until they are set
		return false
	}
	if !hold {
		h.reset = now
		c.p.Log.Warn().Str("workload", h.uid).Msg("somebody else has changed the rules in a captured pod: they are set again")
		if h.source != nil {
			c.leaving.Go(h.source.doubt) // those may be gone too
		}
		return true
	}
	// Those of a process that has ended, or began before this one, are this one's to set.
	return !younger && h.setBy != (capture.Setter{}) && h.setBy != h.rules.By
}

// bereft reports whether a process of ours has ended that had all connections come to its listener beside that of h, and this
// one is to have them that began last of those that are left: the kernel shares them out then.
func (c *Set) bereft(h *Pod) bool {
	if !h.beside {
		return false
	}
	now, err := capture.Sharers(h.place.ns, h.incoming.Tunnels)
	if err != nil {
		return false
	}
	ended := slices.ContainsFunc(h.sharers, func(cookie uint64) bool { return !slices.Contains(now, cookie) })
	younger := false
	if ended && len(now) > 1 {
		if younger, err = c.younger(h); err != nil {
			return false // as long as that is not known nobody has ended
		}
	}
	h.sharers, h.beside = now, len(now) > 1
	return ended && h.beside && !younger && h.setBy.Socket != h.rules.By.Socket
}

// others reports whether another process of ours listens where h does, too. An error is that this process lacks what it takes
// to ask, for now; where nobody can be asked, as in a kernel without sock_diag, nobody is known of.
func (c *Set) others(h *Pod) (bool, error) {
	shared, err := capture.Shared(h.place.ns, h.incoming.Tunnels)
	return err == nil && shared, lacking(err)
}

// younger reports whether a process of ours listens where h does that came after this one: the rules are its. They stay as they
// are until that one has gone, and what it set is anybody's: what this one set again could lead to a listener that closes with
// it. Of three, so, nobody but the second takes over from the third. A table that is nobody's is no process of ours', whoever
// listens. Errors are as those of others: what is not known for now, nobody goes by.
func (c *Set) younger(h *Pod) (bool, error) {
	_, by, there, err := capture.SetBy(h.place.ns)
	if err != nil {
		return false, lacking(err)
	}
	if there {
		h.setBy = by
	} else if _, nobodys, err := capture.Owner(h.place.ns); nobodys || err != nil {
		return false, lacking(err)
	}
	now, err := capture.Sharers(h.place.ns, h.incoming.Tunnels)
	return slices.ContainsFunc(now, func(cookie uint64) bool {
		return cookie == h.setBy.Socket && h.setBy.Began > c.began || cookie != h.rules.By.Socket && !slices.Contains(h.elders, cookie)
	}), lacking(err)
}

// lacking returns err if it is only that this process or its host lacks descriptors or memory, and nil otherwise.
func lacking(err error) error {
	if podns.Lacking(err) {
		return err
	}
	return nil
}

// replace has h captured by other rules.
func (c *Set) replace(h *Pod, rules capture.Rules) {
	rules.By, rules.Group = h.rules.By, h.rules.Group
	younger, err := c.younger(h)
	if err == nil && !younger {
		err = c.setRules(h, rules)
	}
	if err != nil {
		h.unsure = true
		c.fail(h.uid, err)
		return
	}
	c.yields(h.uid, younger)
	if h.left = younger; !younger {
		h.unsure = false
		if h.setBy.Socket != rules.By.Socket { // connections are to come here, as they did to one that has gone
			if others, err := c.others(h); others || err != nil {
				c.prefer(h, false)
			}
		}
		h.setBy = rules.By
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	h.rules = rules
	delete(c.failing, h.uid)
}
