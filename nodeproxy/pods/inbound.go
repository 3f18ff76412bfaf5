package pods

import (
	"fmt"
	"net/netip"

	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
)

// Plain text that others open to a pod comes to this process only while a policy of the pod may deny some of it. Else the
// kernel delivers it, and the application and its clients see no difference. When a policy arrives, rules are set first.
// Then connections that the kernel delivered before, and that policies deny now, are reset. So no denied connection outlives
// that, in whatever order connections and policies arrive.

// judged is the policies, and the labels of a pod, that its inbound connections were checked against last.
type judged struct {
	policies any // a *policy.Set
	workload *mesh.Workload
	failed   bool // connections that policies deny may be open
}

// by reports whether it was by these policies and labels.
func (j judged) by(o judged) bool { return j.policies == o.policies && j.workload == o.workload }

// judgedNow is that of the current snapshot.
func (c *Set) judgedNow(w *mesh.Workload) judged {
	return judged{policies: c.p.Store.Current().Policies(), workload: w}
}

// inbound reports whether what others open to w has to come here.
func (c *Set) inbound(w *mesh.Workload) bool {
	if !c.cfg.All() || c.p.Plain == nil {
		return false
	}
	mayDeny, _ := c.p.Plain(w)
	return mayDeny
}

// setRules sets rules in the namespace of a pod. Policies hold also if the node's own processes cannot be exempted from
// them: that is a problem, and retried.
func (c *Set) setRules(h *Pod, rules capture.Rules) error {
	var exempt error
	if rules.Inbound {
		exempt = c.exempt(h)
	}
	if err := capture.Set(h.place.ns, rules); err != nil {
		return err
	}
	if exempt != nil {
		c.fail(h.uid, notExempt(exempt))
	}
	return nil
}

func notExempt(err error) error {
	return fmt.Errorf("policies deny plain text to it from the node's own processes, such as probes of the kubelet, because these cannot be told from others: %w", err)
}

// exempt has connections of the node's own processes pass the rules for what others open to the pod.
func (c *Set) exempt(h *Pod) error {
	node, err := nodeNamespaces(c.node.proc)
	c.nodeUnknown(err)
	defer func() {
		for _, n := range node {
			n.Close()
		}
	}()
	if len(node) == 0 {
		return err
	}
	return capture.Exempt(h.place.ns, node)
}

// enforce resets connections that the kernel has delivered to w and that policies deny, unless they are the node's own. It
// is called when the rules of h are set. For want of descriptors or memory it is to be called again.
func (c *Set) enforce(h *Pod, w *mesh.Workload, by judged) {
	mayDeny, denies := c.p.Plain(w)
	if mayDeny {
		ended, err := capture.EndDirect(h.place.ns, func(local, remote netip.AddrPort) bool {
			return !mesh.ReservedPort(local.Port()) && denies(remote, local) && !c.ofNode(remote, local)
		})
		if ended > 0 {
			c.p.Log.Info().Str("workload", h.uid).Int("connections", ended).Msg("plain-text connections reset by policy")
		}
		if err != nil {
			c.fail(h.uid, fmt.Errorf("connections that policies deny may be open in it: %w", err))
		}
		if lacking(err) != nil {
			return
		}
		if err == nil && h.judged.failed {
			c.mu.Lock()
			delete(c.failing, h.uid)
			c.mu.Unlock()
		}
		by.failed = err != nil
	}
	h.judged = by
}
