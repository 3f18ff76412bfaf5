package nodeproxy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/health/standing"
	"github.com/isthmus-mesh/isthmus/internal/admin"
	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/internal/buildinfo"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/picker"
	"github.com/isthmus-mesh/isthmus/nodeproxy/pods"
	"github.com/isthmus-mesh/isthmus/route"
)

// status serves GET /status: the services that this node proxy follows, and what it has ejected
// itself.
func (p *Proxy) status(w http.ResponseWriter, _ *http.Request) {
	snap, now := p.store.Current(), time.Now()
	s := answer.Status{Process: "node proxy " + p.cfg.Node, Network: p.cfg.Network, Version: buildinfo.Version(), Now: now, Services: []answer.Row{}, Gateways: p.view.gatewaysOut(snap, now), Local: p.localOut(snap),
		Pending: p.pending(), Problems: slices.Concat(p.own.findings(), p.watcher.Status().Findings())}
	s.Lines = p.measured()
	if p.pods != nil {
		n := 0
		s.Captured, s.Uncaptured = &n, p.pods.Lacking(p.podName)
		n, s.Nameless = p.pods.Count()
	}
	s.Releasing = p.cfg.Capture.Scope == pods.ScopeRelease
	followed := map[string]bool{}
	if p.stream != nil && p.view.reports {
		s.Detached = p.stream.Attached() == 0
		s.Gateways = append(s.Gateways, p.unattached(snap)...)
		s.Problems = append(s.Problems, p.doubts()...)
		told := map[string]heardOf{}
		for _, f := range p.stream.Followed() {
			followed[f.Service] = true
			for _, n := range f.Networks {
				k, _ := p.view.known(n.Network, f.Service)
				told[n.Network] = told[n.Network].and(k)
			}
		}
		s.Gateways = append(s.Gateways, p.view.unheard(snap, told, s.Gateways)...)
		slices.SortStableFunc(s.Gateways, func(a, b answer.Gateway) int {
			return cmp.Or(cmp.Compare(a.Network, b.Network), cmp.Compare(a.Name, b.Name))
		})
	}
	for _, svc := range snap.Services() {
		for _, network := range snap.Networks(svc) {
			for _, port := range svc.Ports {
				if row, ok := p.view.row(snap, svc, network, port.Service, followed[svc.Hostname]); ok {
					s.Services = append(s.Services, row)
				}
			}
		}
	}
	s.Problems = append(s.Problems, p.paths.problems()...)
	s.Problems = append(s.Problems, p.foreign(snap)...)
	if len(s.Pending) == 0 { // until then networks may be missing
		s.Problems = append(s.Problems, p.cfg.Lines.Unknown(p.cfg.Network, append(snap.AllNetworks(), p.links.Names()...))...)
	}
	s.Problems = append(s.Problems, p.pods.Problems(p.podName)...)
	s.Unguarded = p.unguarded(snap)
	s.Warnings, s.Unrouted = p.warnings(snap), p.unrouted(snap)
	s.Services = append(s.Services, p.leadNowhere(snap)...)
	slices.SortStableFunc(s.Services, func(a, b answer.Row) int {
		return cmp.Or(cmp.Compare(a.Network, b.Network), cmp.Compare(a.Service, b.Service), cmp.Compare(a.Port, b.Port))
	})
	admin.Answer(w, http.StatusOK, s)
}

// warnings returns the policies that have no effect as written. It needs a discovery file: gateways
// send only the policies of local pods, which does not show that.
func (p *Proxy) warnings(snap *mesh.Snapshot) []string {
	if p.own != nil {
		return nil
	}
	return answer.PolicyWarnings(append(snap.UnmatchedPolicies(), snap.DesertedPolicies()...), snap.MisportedPolicies(), snap.PointingPolicies(p.ids.Believes()))
}

// leadNowhere returns the destinations of static listeners that discovery does not resolve.
func (p *Proxy) leadNowhere(snap *mesh.Snapshot) (rows []answer.Row) {
	for _, o := range p.cfg.Outbound {
		host, port, err := splitTarget(o.To)
		if err != nil {
			continue // reported by Validate
		}
		row := answer.Row{Row: standing.Row{Service: host, Port: port, Out: []standing.Out{}}}
		flow := flowTo(host, port)
		if flow.Source = snap.Workload(o.Workload); flow.Source == nil {
			row.Why = fmt.Sprintf("workload %q of this listener is not in discovery", o.Workload)
		} else if _, err := route.Resolve(snap, flow); err != nil {
			err = p.because(snap, flow, err)
			row.Why = err.Error()
			if e := (*route.Error)(nil); errors.As(err, &e) {
				row.Why = e.Kind.String() + ": " + e.Detail
				if near := nearestService(snap, host); e.Kind == route.UnknownService && near != "" {
					row.Why += fmt.Sprintf(": did you mean %q?", near)
				}
			}
		}
		if row.Why != "" && !slices.ContainsFunc(rows, func(x answer.Row) bool { return x.Service == row.Service && x.Port == row.Port && x.Why == row.Why }) {
			rows = append(rows, row)
		}
	}
	return rows
}

// row returns the reported health of a remote service. Without a report there is a row only if the
// service is followed: no gateway reports others to this node proxy.
func (v *view) row(snap *mesh.Snapshot, svc *mesh.Service, network string, port uint16, followed bool) (answer.Row, bool) {
	k := picker.Share{Network: network, Service: svc.Hostname, Port: port}
	row := answer.Row{Row: standing.Row{Network: network, Service: svc.Hostname, Port: port, Out: []standing.Out{}}}
	f, known := v.reported(k)
	if !snap.Reaches(svc, v.network, network) { // no client here reaches it; show it only if no network is reached
		row.Why = fmt.Sprintf("%s: the scope of the service (%s) does not lead to network %s", route.NotExported, cmp.Or(svc.Scope, mesh.ScopeCluster), network)
		return row, (known || followed) && !slices.ContainsFunc(snap.Networks(svc), func(n string) bool { return snap.Reaches(svc, v.network, n) })
	}
	row.Unreached, row.Draining = v.unreached(snap, network)
	if a := v.Attempts(k); a != nil && a.InVain() {
		row.Failed = a
	}
	if !known { // local failures may still explain it
		row.Unknown = true
		return row, followed && svc.Exported() && (network == v.network || offered(snap, svc, network, port))
	}
	row.Ready, row.Healthy = f.Ready, f.Healthy
	row.Draining = row.Draining || f.Draining && network != v.network // pods of the local network need no gateway
	said, _ := v.known(network, svc.Hostname)
	row.Changed, row.Stale = said.Turned[port], said.Stale(port)
	for _, id := range f.Exceptions {
		x := standing.Cause{Since: v.Since(k, id), Reason: "reported", By: "gateways of " + network}
		detail(&x, said, network, port, id, time.Now())
		row.Out = append(row.Out, standing.Out{Endpoint: v.called(snap, id), Pod: podName(snap, id), Since: x.Since, Reason: x.Reason, Witness: x.By})
	}
	return row, true
}

// offered reports whether svc on network offers port. The port may be offered by another network
// only.
func offered(snap *mesh.Snapshot, svc *mesh.Service, network string, port uint16) bool {
	x, ok := snap.Share(svc, network)
	return ok && x.Offers(port)
}

// unreached returns why no gateway of another network is reachable from here: the reason of the
// last ejection, or that discovery lists none. draining reports that only drained gateways are
// reachable.
func (v *view) unreached(snap *mesh.Snapshot, network string) (why string, draining bool) {
	if network == v.network {
		return "", false
	}
	var last standing.Turn
	why = "discovery has none"
	for _, g := range snap.Gateways(network) {
		b := v.GatewayBelief(picker.GatewayKey(g), time.Now())
		if b.Phase == health.Healthy {
			if !g.Drained {
				return "", false
			}
			draining = true
		}
		if b.Turn.At.After(last.At) {
			last = b.Turn
		}
		why = cmp.Or(last.Reason, "unknown")
	}
	if draining {
		return "", true
	}
	return why, false
}

// gatewaysOut returns the gateways of other networks that this node proxy has ejected.
func (v *view) gatewaysOut(snap *mesh.Snapshot, now time.Time) []answer.Gateway {
	out := []answer.Gateway{}
	for _, n := range snap.GatewayNetworks() {
		if n == v.network {
			continue
		}
		for _, g := range snap.Gateways(n) {
			if b := v.GatewayBelief(picker.GatewayKey(g), now); b.Phase != health.Healthy {
				x := answer.Gateway{Network: n, Name: g.Name, Reason: b.Turn.Reason, Since: b.Turn.At, Until: b.Until}
				if f := v.Unreached(picker.GatewayKey(g)); f != nil {
					x.Error = f.Error
				}
				out = append(out, x)
			}
		}
	}
	return out
}

// unattached returns the gateways of the local network without a health stream, except drained
// ones, which may stop.
func (p *Proxy) unattached(snap *mesh.Snapshot) (out []answer.Gateway) {
	for _, u := range p.stream.Unattached() {
		if !slices.ContainsFunc(snap.Gateways(p.cfg.Network), func(g *mesh.Gateway) bool { return g.Name == u.Gateway && g.Drained }) {
			out = append(out, answer.Gateway{Network: p.cfg.Network, Name: u.Gateway, Reason: "no health stream", Error: header.Error(u.Err.Error()), Since: u.Since})
		}
	}
	return out
}

// heardOf is the state of a network's gateways as the local gateways report it with the health of
// followed services. The zero value means no report.
type heardOf struct {
	live    []string
	silent  map[string]time.Time // when the gateway became silent
	grouped bool                 // not all reach the same pods, so a gateway may have nothing to report
}

func (h heardOf) and(k healthstream.Known) heardOf {
	silent := map[string]time.Time{}
	maps.Copy(silent, h.silent)
	for _, d := range k.Deliveries {
		h.grouped = h.grouped || d.Group != ""
		if d.Live {
			h.live = append(h.live, d.Gateway)
		} else if at := k.Silent[d.Instance]; at.After(silent[d.Gateway]) {
			silent[d.Gateway] = at
		}
	}
	h.silent = silent
	return h
}

// unheard returns the gateways of other networks from which no local gateway receives reports, while
// other gateways there with the same pods do send them. Connections use the others, so this node
// proxy may never detect the failure itself. Gateways in out are left out.
func (v *view) unheard(snap *mesh.Snapshot, told map[string]heardOf, out []answer.Gateway) (list []answer.Gateway) {
	for _, n := range slices.Sorted(maps.Keys(told)) {
		h := told[n]
		if n == v.network || len(h.live) == 0 {
			continue
		}
		for _, g := range snap.Gateways(n) {
			since, silent := h.silent[g.Name]
			if g.Drained || slices.Contains(h.live, g.Name) || h.grouped && !silent || slices.ContainsFunc(out, func(x answer.Gateway) bool { return x.Network == n && x.Name == g.Name }) {
				continue
			}
			list = append(list, answer.Gateway{Network: n, Name: g.Name, Reason: "not heard by the gateways of network " + v.network, Since: since})
		}
	}
	return list
}

// localOut returns the ejected ports of this node's pods, as the local witness reports them.
func (p *Proxy) localOut(snap *mesh.Snapshot) []standing.Out {
	out := []standing.Out{}
	for _, l := range p.witness.dump() {
		if l.Phase == health.Healthy.String() {
			continue
		}
		id, port := mesh.EndpointID(header.ParseEndpoint(l.Endpoint)), strconv.Itoa(int(l.Port))
		pod := podName(snap, id)
		if pod != "" {
			pod = net.JoinHostPort(pod, port)
		}
		out = append(out, standing.Out{Endpoint: net.JoinHostPort(p.view.called(snap, id), port), Pod: pod, Reason: l.Reason, Since: l.Since, Until: l.Until, Witness: "this node"})
	}
	return out
}
