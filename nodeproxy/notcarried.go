package nodeproxy

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/pods"
	"github.com/isthmus-mesh/isthmus/policy"
)

// knows reports whether, by discovery, the mesh carries what the workload uid opens to that address: to a pod that accepts
// tunnels, or to a port of a service with an endpoint that it reaches. A workload that discovery no longer lists reaches
// no service, and must still not send plain text to such a pod.
func (p *Proxy) knows(uid string, to netip.AddrPort) bool {
	snap := p.store.Current()
	flow := flowTo(to.Addr().String(), to.Port())
	if flow.Source = snap.Workload(uid); flow.Source == nil {
		w := snap.WorkloadAt(p.cfg.Network, to.Addr())
		return w != nil && !w.Plain
	}
	d, err := p.view.Resolve(snap, flow, time.Now())
	if err != nil {
		return false
	}
	plan := d.Plan()
	return plan.Direct == nil || !plan.Direct.Plain
}

// passedOn is why the mesh does not carry a captured pod's connection to an address, which is then left to the kernel; empty
// if it does.
func (p *Proxy) passedOn(uid, host string, port uint16) string {
	to, err := netip.ParseAddr(host)
	h := p.pods.Get(uid)
	if err != nil || !p.cfg.Capture.All() || h == nil || p.pods.Leads(h, to.Unmap()) || p.knows(uid, netip.AddrPortFrom(to.Unmap(), port)) {
		return ""
	}
	snap := p.store.Current()
	if w := snap.WorkloadAt(p.cfg.Network, to.Unmap()); w != nil && w.Plain {
		return "no node proxy accepts tunnels for pod " + p.podName(w.UID)
	}
	if s := snap.ServiceAt(to.Unmap()); s != nil {
		return "service " + s.Hostname + " has no pod on that port that the mesh reaches from here"
	}
	return "discovery knows nobody at " + host
}

// notCaptured is why a captured pod's connection to an address does not come here; empty if it does, or host is a name.
func (p *Proxy) notCaptured(uid, host string) string {
	to, err := netip.ParseAddr(host)
	h := p.pods.Get(uid)
	if err != nil || h == nil || p.cfg.Capture.All() || p.pods.Leads(h, to.Unmap()) {
		return ""
	}
	return fmt.Sprintf("with capture.scope %s only connections to virtual addresses and to services that lead to other networks come to the node proxy, and %s is none of these: call the service by its name, or set capture.scope to %s", pods.ScopeVIPs, host, pods.ScopeAll)
}

// unguarded lists the pods of this node whose policies deny plain text, all or some, while it goes past this process.
func (p *Proxy) unguarded(snap *mesh.Snapshot) (list []string) {
	if p.cfg.Capture.All() {
		return nil // what is not captured is a problem
	}
	for _, w := range p.locals() {
		if why := passedBy(snap.Policies().For(policy.Workload{Namespace: w.Namespace, Labels: w.Labels})); why != "" {
			list = append(list, fmt.Sprintf("pod %s: %s", p.podName(w.UID), why))
		}
	}
	return list
}

// passedBy says which policies of a pod plain text passes by where it does not come to the node proxy, and what to do;
// "" if they deny none.
func passedBy(e *policy.Effective) string {
	if who := e.Demands(); who != (policy.Name{}) {
		return fmt.Sprintf("%s is STRICT, and plain text goes past the node proxy", who)
	}
	deny, allow := e.HoldForPlainText()
	var said []string
	if len(deny) > 0 {
		said = append(said, policy.FirstOf(deny)+" (DENY)")
	}
	if len(allow) > 0 {
		said = append(said, policy.FirstOf(allow)+" (ALLOW)")
	}
	if len(said) == 0 {
		return ""
	}
	return strings.Join(said, " and ") + " would deny connections in plain text, and these go past the node proxy to the pod, whoever opens them: set capture.scope to all, where policies hold for them (with a PeerAuthentication in mode STRICT none are let in at all), or keep them from the pod by a NetworkPolicy"
}
