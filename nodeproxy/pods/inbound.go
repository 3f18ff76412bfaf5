package pods

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
	"github.com/isthmus-mesh/isthmus/nodeproxy/sockdiag"
)

// Plain text that others open to a pod comes to this process only while a policy of the pod may deny some of it. Else the
// kernel delivers it, and the application and its clients see no difference. When a policy arrives, rules are set first.
// Then connections that the kernel delivered before, and that policies deny now, are reset. So no denied connection outlives
// that, in whatever order connections and policies arrive.

// judged is the policies, and the labels of a pod, that its inbound connections were checked against last.
type judged struct {
	policies any // a *policy.Set
	workload *mesh.Workload
	again    time.Time // when connections that could not be reset are tried again; zero if there are none
}

// by reports whether it was by these policies and labels, and no retry is due.
func (j judged) by(o judged, now time.Time) bool {
	return j.policies == o.policies && j.workload == o.workload && (j.again.IsZero() || now.Before(j.again))
}

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
	c.exempt(h, rules)
	return capture.Set(h.place.ns, rules)
}

// exempt has connections of the node's own processes pass the rules for what others open to the pod, if it has such.
func (c *Set) exempt(h *Pod, rules capture.Rules) {
	var err error
	if rules.Inbound {
		if err = c.exemptNode(h); err != nil {
			err = fmt.Errorf("policies deny plain text to it from the node's own processes, such as probes of the kubelet, because these cannot be told from others: %w", err)
		}
	}
	c.note(h, &h.unexempt, err)
}

// note records a problem of h with its policies; nil if it has ended.
func (c *Set) note(h *Pod, problem *error, err error) {
	c.mu.Lock()
	news := err != nil && (*problem == nil || (*problem).Error() != err.Error())
	*problem = err
	c.mu.Unlock()
	if news {
		c.p.Log.Error().Str("workload", h.uid).Err(err).Msg("problem with the policies of a captured pod")
	}
}

func (c *Set) exemptNode(h *Pod) error {
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
// is called when the rules of h are set. After an error it is called again, unless the kernel cannot reset connections.
func (c *Set) enforce(h *Pod, w *mesh.Workload, by judged) {
	mayDeny, denies := c.p.Plain(w)
	var err error
	if mayDeny {
		var ended int
		ended, err = capture.EndDirect(h.place.ns, func(local, remote netip.AddrPort) bool {
			return !mesh.ReservedPort(local.Port()) && denies(remote, local) && !c.ofNode(remote, local)
		})
		if ended > 0 {
			c.p.Log.Info().Str("workload", h.uid).Int("connections", ended).Msg("plain-text connections reset by policy")
		}
		if err != nil {
			err = fmt.Errorf("connections that policies deny may be open in it: %w", err)
		}
	}
	c.note(h, &h.unjudged, err)
	if err != nil && !errors.Is(err, sockdiag.ErrCannotEnd) {
		by.again = time.Now().Add(resetEvery)
	}
	h.judged = by
}
