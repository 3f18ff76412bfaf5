package nodeproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/internal/overload"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/pods"
	"github.com/isthmus-mesh/isthmus/policy"
)

// passTimeout is the longest connect to somebody whom the mesh does not know: ztunnel's.
const passTimeout = 10 * time.Second

// carries reports whether what a captured pod opens to that address is carried by the mesh; the rest is passed on as
// it is. A virtual address and that of a service that leads to other networks are always the mesh's: nobody else
// could serve them. Of the rest are a pod that accepts tunnels, and a service of this network that has one.
// Where gateways say what there is they are asked, once for each address in a while.
//
// The scope of this process says nothing of it: with another one that takes over, and captures more, it shares a port.
func (p *Proxy) carries(ctx context.Context, h *captured, to netip.AddrPort) bool {
	if p.pods.Leads(h.pod, to.Addr()) || p.knows(h.uid, to) {
		return true
	}
	flow := flowTo(to.Addr().String(), to.Port())
	flow.Source = p.store.Current().Workload(h.uid)
	return flow.Source != nil && p.learn(ctx, flow) && p.knows(h.uid, to)
}

// knows reports whether discovery knows somebody at that address who is reached by the mesh.
func (p *Proxy) knows(uid string, to netip.AddrPort) bool {
	snap := p.store.Current()
	flow := flowTo(to.Addr().String(), to.Port())
	if flow.Source = snap.Workload(uid); flow.Source == nil {
		return false
	}
	d, err := p.view.Resolve(snap, flow, time.Now())
	if err != nil {
		return false
	}
	plan := d.Plan()
	return plan.Direct == nil || !plan.Direct.Plain
}

// passedOn is why a captured pod's connection to an address is passed on as it is; empty if it is not.
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

// passOn takes one application connection to where it was to go, as it is, from the pod's own network namespace. It
// owns app; see serve.
func (p *Proxy) passOn(h *captured, app *net.TCPConn, to netip.AddrPort) func(context.Context) {
	a := access{direction: "outbound", started: time.Now(), source: h.uid, service: to.Addr().String(), port: to.Port(), attempts: 1, plain: true}
	p.metrics.opened.WithLabelValues("source").Inc()
	conn, err := p.dialOn(h, app, to, a.started)
	if err != nil {
		a.result, a.err = string(reasonOf(err)), err
		switch {
		case appGone(err), h.pod.Context().Err() != nil:
			a.result = reasonCancelled
		case errors.Is(err, overload.ErrOverloaded):
			a.result = string(header.ReasonOverload)
		}
		reset(app)
		p.finish(&a)
		return nil
	}
	a.connect = time.Since(a.started)
	r := &plainRelay{p: p, near: app, far: conn, access: a}
	return func(context.Context) { r.run(h.pod.Context()) }
}

// dialOn connects for app, when this process has time for that.
func (p *Proxy) dialOn(h *captured, app *net.TCPConn, to netip.AddrPort, since time.Time) (*net.TCPConn, error) {
	ctx, ended := whileThere(h.pod.Context(), app, passTimeout)
	opening, err := p.load.Admit(ctx, since)
	var conn net.Conn
	if err == nil {
		defer opening.Done()
		conn, err = h.pod.Dialer(hopKeepAlive)(ctx, to, passTimeout)
	}
	gone := ended()
	switch {
	case gone:
		if conn != nil {
			reset(conn)
		}
		return nil, &appGoneError{errors.New("found closed while its connection was opened")}
	case err != nil:
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}
