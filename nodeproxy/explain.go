package nodeproxy

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/health/standing"
	"github.com/isthmus-mesh/isthmus/internal/admin"
	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/route"
)

// Endpoints returns the admin endpoints that explain decisions.
func (p *Proxy) Endpoints() []admin.Endpoint {
	return []admin.Endpoint{
		{Pattern: "GET /explain", Doc: "why each candidate for a connection from ?source=<workload UID, or namespace/name> to ?destination=<host>:<port> is in or out, and the policy decisions of pods on this node; at the node proxy of the destination, source may also be any workload in discovery, or a SPIFFE ID", Handler: admin.Only(p.explain, "source", "destination")},
		{Pattern: "GET /status", Doc: "health of services, by network and port", Handler: admin.Only(p.status)},
	}
}

func (p *Proxy) explain(w http.ResponseWriter, r *http.Request) {
	source, destination := r.URL.Query().Get("source"), r.URL.Query().Get("destination")
	snap, now := p.store.Current(), time.Now()
	host, port, err := splitTarget(destination)
	if err != nil {
		admin.Fail(w, http.StatusBadRequest, fmt.Errorf("destination: %w, for example hello.default.svc.cluster.local:80", err))
		return
	}
	host = canonicalHost(snap, host, p.domain)
	from, err := sourceOf(snap.OnNode(p.cfg.Network, p.cfg.Node), source, p.cfg.Node)
	if err != nil {
		c, known := p.askerOf(snap, source)
		permissions := p.permissions(snap, c, host, port)
		switch {
		case !known:
			err = fmt.Errorf("%w; for a client on another node, pass its SPIFFE ID: spiffe://%s/ns/NAMESPACE/sa/SERVICE-ACCOUNT", err, snap.TrustDomain())
		case len(permissions) == 0:
			err = fmt.Errorf("%w, and none of its pods is one of %s: ask the node proxy of the client's node, or of a pod of the destination", err, destination)
		default:
			err = nil
		}
		if err != nil {
			admin.Fail(w, http.StatusBadRequest, fmt.Errorf("source: %w", err))
			return
		}
		admin.Answer(w, http.StatusOK, answer.Explanation{Process: "node proxy " + p.cfg.Node, Network: p.cfg.Network, Source: c.name, Destination: destination, Now: now, AtDestination: true, Candidates: []answer.Verdict{}, Permissions: permissions})
		return
	}
	e := answer.Explanation{Process: "node proxy " + p.cfg.Node, Network: p.cfg.Network, Source: from.UID, Destination: destination, Now: now, Discovery: p.own.source(), Candidates: []answer.Verdict{}}
	if e.NotCaptured = p.notCaptured(from.UID, host); from.Plain {
		e.NotCaptured = "workload " + from.UID + " is not in the mesh: its connections bypass node proxies, in plain text and without a proven identity"
	}
	if e.NotCaptured != "" { // no policy applies
		admin.Answer(w, http.StatusOK, e)
		return
	}
	e.Permissions = p.permissions(snap, asker{name: from.UID, id: from.Identity}, host, port)
	flow := flowTo(host, port)
	flow.Source = from
	if d, err := p.view.Resolve(snap, flow, now); err != nil {
		err = p.because(snap, flow, err)
		e.Refused = err.Error()
		e.PassedOn = p.passedOn(from.UID, host, port)
		if re, ok := errors.AsType[*route.Error](err); ok && re.Kind == route.UnknownService {
			e.Refused += ": " + strictyaml.Suggest(host, hostnames(snap))
		}
	} else {
		if e.PassedOn = p.passedOn(from.UID, host, port); e.PassedOn != "" {
			admin.Answer(w, http.StatusOK, e)
			return
		}
		e.Candidates = p.view.Explain(d, p.begins(from), now)
		e.Unasked = p.unasked(d.Plan())
		lines := p.measured()
		for i := range e.Candidates {
			p.view.detail(&e.Candidates[i], snap, d.Plan(), now)
			p.keptBehind(&e.Candidates[i], from.Identity, d.Plan())
			if x := &e.Candidates[i]; x.Kind == "share" && x.Name != p.cfg.Network {
				if n := slices.IndexFunc(lines, func(l answer.Line) bool { return l.Network == x.Name }); n >= 0 {
					x.Line = &lines[n]
				}
				for j := range x.Gateways {
					x.Gateways[j].Path = p.paths.fault(x.Name + "/" + x.Gateways[j].Name)
				}
			}
		}
	}
	admin.Answer(w, http.StatusOK, e)
}

// sourceOf returns the workload that source names: by its UID, or else by namespace/name.
func sourceOf(onNode []*mesh.Workload, source, node string) (*mesh.Workload, error) {
	var named []*mesh.Workload
	var here, uids []string
	for _, w := range onNode {
		if w.UID == source {
			return w, nil
		}
		if w.Namespace+"/"+w.Name == source {
			named, uids = append(named, w), append(uids, w.UID)
		}
		if !w.Plain {
			here = append(here, cmp.Or(w.PodName(), w.UID))
		}
	}
	switch len(named) {
	case 0:
		return nil, fmt.Errorf("%q is not a workload on node %s, which this node proxy serves: %s", source, node, strictyaml.Suggest(source, here))
	case 1:
		return named[0], nil
	}
	slices.Sort(uids)
	return nil, fmt.Errorf("%q names %d workloads of node %s: use the UID of one, %s", source, len(named), node, strings.Join(uids, " or "))
}

// unasked reports whether the plan's service is not subscribed at the gateways of this network: it
// is when a connection first uses it.
func (p *Proxy) unasked(plan *route.Plan) bool {
	if p.stream == nil || !p.view.reports || plan.Service == nil {
		return false
	}
	return !slices.ContainsFunc(p.stream.Followed(), func(f healthstream.Followed) bool { return f.Service == plan.Service.Hostname })
}

// keptBehind adds to the verdict on a remote service how many sessions with its pods the preconnect
// pool keeps for source.
func (p *Proxy) keptBehind(x *answer.Verdict, source spiffeid.ID, plan *route.Plan) {
	if x.Kind != "share" {
		return
	}
	for _, s := range p.kept.Status() {
		if s.Source == source && s.Network == x.Name && authorityOf(s.Key) == plan.Authority {
			x.Kept = &answer.Kept{Held: s.Held, Wanted: s.Wanted}
		}
	}
}

// detail adds to a verdict what gateways report of its ejected pods, with the names of the pods, and
// when the report became stale.
func (v *view) detail(x *answer.Verdict, snap *mesh.Snapshot, plan *route.Plan, now time.Time) {
	if w := snap.Workload(x.Name); x.Kind == "pod" && w != nil {
		x.Pod = w.PodName()
	}
	host, number, err := net.SplitHostPort(plan.Authority)
	port, perr := strconv.ParseUint(number, 10, 16)
	if err != nil || perr != nil {
		return // an address: the candidates are pods, without reports
	}
	network := v.network
	if x.Kind == "share" {
		network = x.Name
	}
	said, _ := v.known(network, host)
	if x.Kind == "share" && v.reports {
		x.Stale = said.Stale(uint16(port))
	}
	for i := range x.Endpoints {
		c := &x.Endpoints[i]
		id, err := mesh.ParseEndpointID(c.Endpoint)
		if err != nil {
			continue
		}
		detail(c, said, network, uint16(port), id, now)
		if name := v.nameOf(snap, id); name != "" {
			c.Endpoint, c.Pod, c.Port = name, podName(snap, id), plan.Port.Target
		}
		if w := snap.WorkloadByEndpoint(id); w != nil {
			c.Port = w.Target(plan.Port)
		}
	}
	if w := snap.Workload(x.Name); x.Kind == "pod" && w != nil {
		for i := range x.Causes {
			if c := &x.Causes[i]; c.Word == standing.HeldReported {
				detail(c, said, network, uint16(port), w.Endpoint, now)
			}
		}
	}
}

// detail adds to c the reported reason, reporter and time of an ejection. Gateways of older versions
// report none of these.
func detail(c *standing.Cause, said healthstream.Known, network string, port uint16, id mesh.EndpointID, now time.Time) {
	e, gateway, ok := said.Exception(port, id)
	if !ok {
		return
	}
	if e.Detail.Reason != "" {
		c.Reason = e.Detail.Reason
	}
	switch {
	case e.Detail.Witness != "":
		c.By = standing.Witness + e.Detail.Witness
	case e.Cause == record.Hop:
		c.By = "gateway " + gateway + " of " + network
	}
	// The time is by the reporter's clock. If that is ahead, the local time of the report is better.
	if at := time.Unix(e.Detail.Since, 0); e.Detail.Since > 0 && at.Before(now) && (c.Since.IsZero() || at.Before(c.Since)) {
		c.Since = at
	}
}

// called returns the UID of an endpoint's workload, or the endpoint ID if the UID is unknown.
func (v *view) called(snap *mesh.Snapshot, id mesh.EndpointID) string {
	return cmp.Or(v.nameOf(snap, id), id.String())
}

// podName returns the namespace/name of a local workload, or its UID if that contains the name or is
// the only name.
func (p *Proxy) podName(uid string) string {
	if w := p.store.Current().Workload(uid); w != nil && w.PodName() != "" {
		return w.PodName()
	}
	return uid
}

// podName returns [mesh.Workload.PodName] of an endpoint's workload, or "" if that is unknown.
func podName(snap *mesh.Snapshot, id mesh.EndpointID) string {
	if w := snap.WorkloadByEndpoint(id); w != nil {
		return w.PodName()
	}
	return ""
}
