package nodeproxy

import (
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/pods"
	"github.com/isthmus-mesh/isthmus/policy"
	"github.com/isthmus-mesh/isthmus/route"
)

// asker is whose connections policies are asked about.
type asker struct {
	name string
	id   spiffeid.ID
	from netip.Addr // that its connections come from; zero: it is not known, as on the own network, where node proxies open them
	// plain says that it is not in the mesh: its connections are in plain text, and prove no identity.
	plain bool
}

// askerOf returns the client that source names: a workload that discovery knows, or a SPIFFE ID.
func (p *Proxy) askerOf(snap *mesh.Snapshot, source string) (asker, bool) {
	if strings.HasPrefix(source, "spiffe://") {
		id, err := spiffeid.FromString(source)
		return asker{name: source, id: id}, err == nil
	}
	w := snap.Workload(source)
	if w == nil && strings.Contains(source, "/ns/") && strings.Contains(source, "/sa/") { // as principals of policies are written
		id, err := spiffeid.FromString("spiffe://" + policy.PrincipalIn(snap.TrustDomain(), source))
		return asker{name: id.String(), id: id}, err == nil
	}
	if w == nil {
		named := slices.DeleteFunc(snap.Workloads(), func(w *mesh.Workload) bool { return w.Namespace+"/"+w.Name != source })
		if len(named) != 1 {
			return asker{}, false
		}
		w = named[0]
	}
	c := asker{name: w.UID, id: w.Identity}
	if w.Plain {
		c = asker{name: w.UID, plain: true}
		if w.Network == p.cfg.Network && len(w.Addresses) > 0 {
			c.from = w.Addresses[0]
		}
		return c, true
	}
	if gateways := snap.Gateways(p.cfg.Network); w.Network != p.cfg.Network && len(gateways) > 0 && gateways[0].Sources[0].IsSingleIP() {
		c.from = gateways[0].Sources[0].Addr()
	}
	return c, true
}

// permissions returns what the policies of the pods of this node that host:port leads to say of
// connections of c.
func (p *Proxy) permissions(snap *mesh.Snapshot, c asker, host string, port uint16) (list []answer.Permission) {
	for _, w := range snap.OnNode(p.cfg.Network, p.cfg.Node) {
		if w.Plain {
			continue
		}
		target, _, err := route.Inbound(snap, w, net.JoinHostPort(host, itoa(port)), route.AnyPort)
		if err != nil {
			continue
		}
		var of []answer.Permission
		for _, a := range w.Addresses {
			x := permission(snap.Policies(), c, w, netip.AddrPortFrom(a, target))
			if c.plain && !p.cfg.Capture.All() {
				x = answer.Permission{UID: x.UID, Pod: x.Pod, Port: x.Port, Allowed: true, Why: "not asked: " + outsideMesh + ", and go past the node proxy to the pod (capture.scope is not " + pods.ScopeAll + ")"}
			}
			of = append(of, x)
		}
		if !slices.ContainsFunc(of, func(x answer.Permission) bool { return !reflect.DeepEqual(x, of[0]) }) {
			list = append(list, of[0])
			continue
		}
		for i := range of {
			of[i].Address, of[i].NotDialled = w.Addresses[i].String(), i > 0
		}
		list = append(list, of...)
	}
	return list
}

// outsideMesh is said of connections of a client that is not in the mesh.
const outsideMesh = "its connections are in plain text and prove no identity, as it is not in the mesh"

// permission returns what policies say of connections of c to w at one of its addresses.
func permission(policies *policy.Set, c asker, w *mesh.Workload, to netip.AddrPort) answer.Permission {
	connection := policy.Connection{Source: c.id, From: c.from, Destination: to}
	rules := policies.For(policy.Workload{Namespace: w.Namespace, Labels: w.Labels})
	d := rules.Decide(connection)
	x := answer.Permission{UID: w.UID, Pod: w.PodName(), Port: to.Port(), Allowed: d.Allowed(), Policy: d.By(), Why: d.String()}
	if c.plain {
		x.Why += "; " + outsideMesh
	}
	if c.from.IsValid() {
		x.From = c.from.String()
	} else if rules.ByAddress() {
		x.Why += "; where its connections come from is not known, and ranges of addresses match nothing here"
	}
	for _, would := range rules.DryRun(connection) {
		x.DryRun = append(x.DryRun, would.String())
	}
	return x
}
