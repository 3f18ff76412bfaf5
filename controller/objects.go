package controller

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/controller/imports"
	"github.com/isthmus-mesh/isthmus/controller/notices"
	"github.com/isthmus-mesh/isthmus/controller/vip"
	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/discovery/kube"
	"github.com/isthmus-mesh/isthmus/federation/links"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/policy"
)

// objects is what discovery reads of the own cluster: what services come to, and what is
// wrong with which object. Safe for concurrent use.
type objects struct {
	network string
	changed func()

	mu       sync.Mutex
	services map[vip.Name]*discovery.Service
	pods     map[discovery.Key]pod // that are members of services
	members  map[string]members    // of services, by hostname
	faults   map[discovery.Key][]discovery.Problem
	news     map[discovery.Key]struct{} // of which something else is wrong than when they were taken; nil: nobody takes
	overlap  map[discovery.Key]string   // services and pods whose addresses are in the ranges of imports
	ranges   vip.Ranges
}

func newObjects(network string, ranges vip.Ranges, changed func()) *objects {
	return &objects{network: network, ranges: ranges, changed: changed, services: map[vip.Name]*discovery.Service{}, pods: map[discovery.Key]pod{}, members: map[string]members{},
		faults: map[discovery.Key][]discovery.Problem{}, overlap: map[discovery.Key]string{}}
}

// Apply implements [kube.Sink]: nothing is made of it here.
func (o *objects) Apply(changes ...discovery.Change) *mesh.Snapshot {
	o.mu.Lock()
	for _, c := range changes {
		o.one(c)
	}
	o.mu.Unlock()
	o.changed()
	return nil
}

// one takes in a change; the caller holds mu.
func (o *objects) one(c discovery.Change) {
	if len(c.Faults) > 0 || len(o.faults[c.Key]) > 0 {
		o.isNews(c.Key)
	}
	if delete(o.faults, c.Key); len(c.Faults) > 0 {
		o.faults[c.Key] = slices.Clone(c.Faults)
	}
	var what string
	var addresses []netip.Addr
	n, ok := nameOf(c.Key)
	switch r := c.Record.(type) {
	case discovery.Service:
		what, addresses = "the Service", r.VIPs
		if ok {
			o.services[n] = &r
		}
	case discovery.Workload:
		what, addresses = "the Pod", r.Addresses
	}
	if c.Key.Kind == discovery.KindWorkload {
		r, _ := c.Record.(discovery.Workload)
		o.count(c.Key, pod{r.Services, r.Protocol != "TCP" && r.Network == o.network})
	}
	if what != "the Service" && c.Key.Kind == discovery.KindService {
		delete(o.services, n)
	}
	was := o.overlap[c.Key]
	delete(o.overlap, c.Key)
	for _, a := range addresses {
		if text := imports.Overlap(o.ranges, what, a); text != "" && len(o.overlap) < maxOverlaps {
			o.overlap[c.Key] = text
		}
	}
	if was != o.overlap[c.Key] {
		o.isNews(c.Key)
	}
}

// pod is a pod that is a member of services.
type pod struct {
	services []string // hostnames
	meshed   bool     // it is on this network, and a node proxy accepts tunnels for it
}

// members are how many pods a service has, and how many of them are in the mesh.
type members struct{ all, meshed int }

// count replaces what the pod of k adds to members. The caller holds mu.
func (o *objects) count(k discovery.Key, now pod) {
	add := func(p pod, n int) {
		for _, host := range p.services {
			m := o.members[host]
			if m.all += n; p.meshed {
				m.meshed += n
			}
			if o.members[host] = m; m.all == 0 {
				delete(o.members, host)
			}
		}
	}
	add(o.pods[k], -1)
	if delete(o.pods, k); len(now.services) > 0 {
		o.pods[k] = now
	}
	add(now, 1)
}

// isNews notes that something else is wrong with an object, if anybody takes; the caller holds mu.
func (o *objects) isNews(k discovery.Key) {
	if o.news != nil {
		o.news[k] = struct{}{}
	}
}

// maxOverlaps is of how many objects it is remembered that their addresses are in the ranges
// of imports: ranges are wrong, then, and not objects.
const maxOverlaps = 100

// nameOf is that of the object of a key.
func nameOf(k discovery.Key) (vip.Name, bool) {
	namespace, name, ok := strings.Cut(k.Name, "/")
	return vip.Name{Namespace: namespace, Name: name}, ok && namespace != "" && name != ""
}

// local returns what the gateways of this cluster export of the Service that a ServiceExport
// names. They read the same objects; see mesh.ExportOf.
func (o *objects) local(n vip.Name) imports.Local {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := imports.Local{Exists: true, Export: imports.Export{Cluster: o.network}}
	for _, p := range o.faults[discovery.Key{Kind: discovery.KindService, Source: discovery.Cluster, Name: n.String()}] {
		switch {
		case p.Field == "ServiceExport":
			out.Exists = false
		case p.Field == "spec.type":
			out.Type = p.Value
		case p.Out:
			out.Why = cmp.Or(out.Why, textOf(p))
		default:
			out.Notes = append(out.Notes, textOf(p))
		}
	}
	s := o.services[n]
	switch {
	case s == nil:
		out.Why = cmp.Or(out.Why, "the Service has nothing that other networks could reach")
	case s.Scope == "" || s.Scope == string(mesh.ScopeCluster):
		out.Why = "the scope of the Service keeps it in its cluster: see its labels and those of its namespace"
		if len(out.Notes) > 0 {
			out.Why = strings.Join(out.Notes, "; ")
		}
	default:
		out.Exported = true
		m := o.members[links.Hostname(n.Name, n.Namespace)]
		out.Pods, out.Meshed = m.all > 0, m.meshed > 0
		out.Export.Headless, out.Export.Affinity = s.Headless, string(s.Affinity)
		if s.Created > 0 {
			out.Export.Created = time.Unix(s.Created, 0).UTC()
		}
		for _, p := range s.Ports {
			if p.Protocol == "TCP" {
				out.Export.Ports = append(out.Export.Ports, imports.Port{Name: p.Name, Protocol: "TCP", Port: p.Port})
			}
		}
	}
	return out
}

// textOf is what is wrong, in one line.
func textOf(p discovery.Problem) string {
	if p.Value != "" {
		return fmt.Sprintf("%s: %q %s", p.Field, p.Value, p.Message)
	}
	return p.Field + ": " + p.Message
}

// reasons are what Events call the causes of problems.
var reasons = map[discovery.Cause]string{
	discovery.CauseValue: "InvalidValue", discovery.CauseMissing: "MissingValue", discovery.CauseConflict: "Conflict",
	discovery.CauseReference: "NoSuchObject", discovery.CauseUnsupported: "Unsupported",
}

// kindsOf are the objects of Kubernetes that keys name.
var kindsOf = map[discovery.Kind]notices.Kind{
	discovery.KindNamespace: notices.Namespace, discovery.KindService: notices.Service, discovery.KindWorkload: notices.Pod,
}

// take returns what is wrong with the objects of which something else is wrong than the
// last time.
func (o *objects) take() map[notices.Object][]notices.Notice {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := map[notices.Object][]notices.Notice{}
	for k := range o.news {
		o.say(k, out)
	}
	clear(o.news)
	return out
}

// everything makes take return all that is wrong, and from then on what changes, until rest.
func (o *objects) everything() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.news = map[discovery.Key]struct{}{}
	for k := range o.faults {
		o.isNews(k)
	}
	for k := range o.overlap {
		o.isNews(k)
	}
}

// rest ends what everything has begun: nobody takes, for as long as another process leads, and pods
// with new names come all the time.
func (o *objects) rest() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.news = nil
}

// again makes take return what is wrong with an object.
func (o *objects) again(at notices.Object) {
	k := discovery.Key{Source: discovery.Cluster, Name: at.String()}
	switch at.Kind {
	case notices.Namespace:
		k.Kind = discovery.KindNamespace
	case notices.Service, notices.ServiceExport:
		k.Kind = discovery.KindService
	case notices.Pod:
		k.Kind = discovery.KindWorkload
	case notices.AuthorizationPolicy:
		k = kube.PolicyKey(policy.KindAuthorization, at.Namespace, at.Name)
	case notices.PeerAuthentication:
		k = kube.PolicyKey(policy.KindPeerAuthentication, at.Namespace, at.Name)
	default:
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.isNews(k)
}

// say adds what is wrong with the object of k; the caller holds mu.
func (o *objects) say(k discovery.Key, out map[notices.Object][]notices.Notice) {
	kind := kindsOf[k.Kind]
	n, namespaced := nameOf(k)
	at := notices.Object{Kind: kind, Namespace: n.Namespace, Name: n.Name}
	switch {
	case k.Kind == discovery.KindPolicy:
		n := policy.ParseName(k.Name)
		if at = (notices.Object{Kind: notices.AuthorizationPolicy, Namespace: n.Namespace, Name: n.Name}); n.Kind == policy.KindPeerAuthentication {
			at.Kind = notices.PeerAuthentication
		}
	case kind == 0:
		return
	case kind == notices.Namespace:
		at = notices.Object{Kind: kind, Name: k.Name}
	case !namespaced:
		return
	}
	export := notices.Object{Kind: notices.ServiceExport, Namespace: n.Namespace, Name: n.Name}
	if out[at] = nil; kind == notices.Service {
		out[export] = nil
	}
	for _, p := range o.faults[k] {
		x := notices.Notice{Reason: cmp.Or(reasons[p.Cause], "Problem"), Message: textOf(p)}
		if p.Field == "ServiceExport" { // there is no Service to say it at
			x.Message = "ServiceExport " + p.Message
			out[export] = append(out[export], x)
			continue
		}
		out[at] = append(out[at], x)
	}
	if text := o.overlap[k]; text != "" {
		out[at] = append(out[at], notices.Notice{Reason: "AddressOverlap", Message: text})
	}
}

// overlaps are the objects whose addresses are in the ranges of imports.
func (o *objects) overlaps() (out []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for k, text := range o.overlap {
		out = append(out, fmt.Sprintf("%s: %s", k, text))
	}
	slices.Sort(out)
	const most = 3
	if more := len(out) - most; more > 0 {
		out = append(out[:most:most], fmt.Sprintf("%d objects more have addresses of the ranges of imported services", more))
	}
	return out
}
