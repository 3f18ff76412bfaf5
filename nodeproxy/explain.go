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

// Endpoints are what the admin port answers about decisions.
func (p *Proxy) Endpoints() []admin.Endpoint {
	return []admin.Endpoint{
		{Pattern: "GET /explain", Doc: "why each candidate for a connection from ?source=<workload UID, or namespace/name> to ?destination=<host>:<port> is in or out, and, of pods of this node, what their policies say; at the node proxy of the destination source may be any workload that discovery knows, or a SPIFFE ID", Handler: admin.Only(p.explain, "source", "destination")},
		{Pattern: "GET /status", Doc: "what is known of the health of services, by network and port", Handler: admin.Only(p.status)},
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
		e.NotCaptured = "no node proxy carries connections of workload " + from.UID + ", as it is not in the mesh: they are in plain text, and prove no identity"
	}
	if e.NotCaptured != "" { // nor is any policy asked
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
		for i := range e.Candidates {
			p.view.detail(&e.Candidates[i], snap, d.Plan(), now)
			p.keptBehind(&e.Candidates[i], from.Identity, d.Plan())
			if x := &e.Candidates[i]; x.Kind == "share" && x.Name != p.cfg.Network {
				x.Line = p.lineTo(x.Name)
				for j := range x.Gateways {
					x.Gateways[j].Path = p.paths.fault(x.Name + "/" + x.Gateways[j].Name)
				}
			}
		}
	}
	admin.Answer(w, http.StatusOK, e)
}

// sourceOf returns the workload that source names: by its UID, or by namespace/name if no
// UID is like that.
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
		return nil, fmt.Errorf("%q is no workload of node %s, whose node proxy this is: %s", source, node, strictyaml.Suggest(source, here))
	case 1:
		return named[0], nil
	}
	slices.Sort(uids)
	return nil, fmt.Errorf("%q is the name of %d workloads of node %s: write the UID of one, %s", source, len(named), node, strings.Join(uids, " or "))
}

// unasked reports whether the gateways of this network are asked of a plan's service only
// once a connection uses it.
func (p *Proxy) unasked(plan *route.Plan) bool {
	if p.stream == nil || !p.view.reports || plan.Service == nil {
		return false
	}
	return !slices.ContainsFunc(p.stream.Followed(), func(f healthstream.Followed) bool { return f.Service == plan.Service.Hostname })
}

// keptBehind adds to the verdict on a share how many sessions with its pods are kept for
// source.
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

// detail adds to a verdict what gateways say of the pods that are out of it, with their
// names, and how old that is.
func (v *view) detail(x *answer.Verdict, snap *mesh.Snapshot, plan *route.Plan, now time.Time) {
	if w := snap.Workload(x.Name); x.Kind == "pod" && w != nil {
		x.Pod = w.PodName()
	}
	host, number, err := net.SplitHostPort(plan.Authority)
	port, perr := strconv.ParseUint(number, 10, 16)
	if err != nil || perr != nil {
		return // an address: of pods alone
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

// detail adds to c what is said of an endpoint that is out: why, by whom, since when. An
// older version says none of it.
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
	// By the clock of who says so: one that is ahead knows nothing better than ours.
	if at := time.Unix(e.Detail.Since, 0); e.Detail.Since > 0 && at.Before(now) && (c.Since.IsZero() || at.Before(c.Since)) {
		c.Since = at
	}
}

// called is the UID of an endpoint's workload, or its ID if nobody has said that.
func (v *view) called(snap *mesh.Snapshot, id mesh.EndpointID) string {
	return cmp.Or(v.nameOf(snap, id), id.String())
}

// podName is how people call a local workload.
func (p *Proxy) podName(uid string) string {
	if w := p.store.Current().Workload(uid); w != nil && w.PodName() != "" {
		return w.PodName()
	}
	return uid
}

// podName is [mesh.Workload.PodName] of an endpoint's workload, "" if that is not known.
func podName(snap *mesh.Snapshot, id mesh.EndpointID) string {
	if w := snap.WorkloadByEndpoint(id); w != nil {
		return w.PodName()
	}
	return ""
}
