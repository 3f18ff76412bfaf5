package kube

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// service is a Service with the other objects that it is read with.
type service struct {
	name      name
	object    *corev1.Service               // nil: there is none
	namespace *corev1.Namespace             // nil: it is not known
	export    *metav1.PartialObjectMetadata // its ServiceExport; nil: there is none
	segmented bool                          // the system namespace names a segment
	slices    []*discoveryv1.EndpointSlice  // by name
	endpoints endpoints
}

// read translates s. Only of a service that other networks may reach it matters what
// cannot be carried: of the others that is left out without a word, since most clusters
// have such, like their DNS. A record is nil if none comes of s.
func (s service) read() (record *discovery.Service, f faults) {
	if s.object == nil {
		if s.export != nil {
			f.out(discovery.CauseReference, "ServiceExport", s.name.String(), "exports a Service that is not there: create the Service, or delete the ServiceExport")
		}
		return nil, f
	}
	scope, takeover := s.scope(&f)
	global := scope != ""
	spec := &s.object.Spec
	if spec.Type == corev1.ServiceTypeExternalName {
		if global {
			f.out(discovery.CauseUnsupported, "spec.type", string(spec.Type), "has no pods that another network could reach: take away what makes the service global")
		}
		return nil, f
	}
	r := &discovery.Service{Name: s.name.name, Namespace: s.name.namespace, PublishNotReady: spec.PublishNotReadyAddresses, Home: true, Created: s.created()}
	said := &f
	if !global {
		said = &faults{}
	} else {
		r.Scope, r.Takeover = string(scope), takeover
		if s.export != nil {
			r.Aliases = []string{s.name.name + "." + s.name.namespace + clusterSetSuffix}
		}
		s.foreign(said)
		s.unselected(said)
	}
	r.VIPs = s.addresses(said)
	r.Headless = spec.ClusterIP == corev1.ClusterIPNone || slices.Contains(spec.ClusterIPs, corev1.ClusterIPNone)
	r.Affinity = s.affinity(said)
	r.NodeLocal = s.nodeLocal(said)
	r.TrafficDistribution, r.Inherited.Namespace = s.distribution(said)
	if r.Ports = s.ports(said); !slices.ContainsFunc(r.Ports, func(p discovery.ServicePort) bool { return p.Protocol == "TCP" }) {
		said.out(discovery.CauseMissing, "spec.ports", "", "has no TCP port that can be carried: add one, or take away what makes the service global")
		return nil, f
	}
	return r, f
}

// created returns the age of the export in Unix seconds: of the ServiceExport, or of the
// Service if a label or a discovery file exports it. Zero if unknown.
func (s service) created() int64 {
	at := s.object.CreationTimestamp
	if s.export != nil {
		at = s.export.CreationTimestamp
	}
	if at.IsZero() {
		return 0
	}
	return at.Unix()
}

// addresses returns the cluster IPs.
func (s service) addresses(f *faults) (out []netip.Addr) {
	spec := &s.object.Spec
	list := spec.ClusterIPs
	if len(list) == 0 && spec.ClusterIP != "" {
		list = []string{spec.ClusterIP}
	}
	for i, text := range list {
		if text == corev1.ClusterIPNone {
			f.drop(discovery.CauseUnsupported, "spec.clusterIP", text, "other networks reach the pods of a headless service by its name alone, and any of them answers: give it a cluster IP if that is what is meant")
			return nil
		}
		a, err := netip.ParseAddr(text)
		if a = a.Unmap(); err != nil || !usable(a) {
			f.drop(discovery.CauseValue, fmt.Sprintf("spec.clusterIPs[%d]", i), text, "is not a unicast IP address, and counts for nothing")
		} else if !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// affinity returns what the service asks for, which nobody keeps.
func (s service) affinity(f *faults) mesh.Affinity {
	if s.object.Spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return ""
	}
	f.drop(discovery.CauseUnsupported, "spec.sessionAffinity", string(mesh.ClientIP), "is not kept: each connection of a client, of this network and of others, goes to any pod: use None, and let no pod depend on it")
	return mesh.ClientIP
}

// usable reports whether a can be the address of one machine.
func usable(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() && a.Zone() == "" && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// nodeLocal reports whether internalTrafficPolicy is Local. The policy holds for clients in the
// cluster of the Service alone; other networks use the service by its distribution.
func (s service) nodeLocal(f *faults) bool {
	p := s.object.Spec.InternalTrafficPolicy
	if p == nil || *p == "" || *p == corev1.ServiceInternalTrafficPolicyCluster {
		return false
	}
	if *p != corev1.ServiceInternalTrafficPolicyLocal {
		f.drop(discovery.CauseValue, "spec.internalTrafficPolicy", string(*p), "is not a policy and is ignored: use Cluster or Local")
	}
	return *p == corev1.ServiceInternalTrafficPolicyLocal
}

// distribution returns the first known value of spec.trafficDistribution, the annotation of the
// Service and the annotation of its namespace, as package discovery names it.
func (s service) distribution(f *faults) (own, inherited string) {
	spec := &s.object.Spec
	if w := spec.TrafficDistribution; w != nil && *w != "" {
		if d, ok := distribution(*w); ok {
			return string(d), ""
		}
		f.drop(discovery.CauseValue, "spec.trafficDistribution", *w, "is not a traffic distribution, and counts for nothing: %s", distributionWords)
	}
	if w := s.object.Annotations[annotationDistribution]; w != "" {
		if d, ok := distribution(w); ok {
			return string(d), ""
		}
		f.drop(discovery.CauseValue, annotation(annotationDistribution), w, "is not a traffic distribution, and counts for nothing: %s", distributionWords)
	}
	if s.namespace != nil {
		if d, ok := distribution(s.namespace.Annotations[annotationDistribution]); ok { // what else it says is a fault of the namespace
			return "", string(d)
		}
	}
	return "", ""
}

// ports leaves out each port that cannot be carried. UDP and SCTP stay, so that whoever
// asks for one is told why it is not there.
func (s service) ports(f *faults) (out []discovery.ServicePort) {
	for i, p := range s.object.Spec.Ports {
		field := "spec.ports[" + strconv.Itoa(i) + "]"
		r := discovery.ServicePort{Name: p.Name, Port: uint16(p.Port), Protocol: strings.ToUpper(string(p.Protocol))}
		if r.Protocol == "" {
			r.Protocol = "TCP"
		}
		twice := func(o discovery.ServicePort) bool {
			return o.Port == r.Port && o.Protocol == r.Protocol || o.Name != "" && o.Name == r.Name
		}
		switch {
		case p.Port < 1 || p.Port > 65535:
			f.drop(discovery.CauseValue, field+".port", strconv.Itoa(int(p.Port)), "is not a port: write a number from 1 to 65535")
			continue
		case slices.ContainsFunc(out, twice):
			f.drop(discovery.CauseConflict, field, strconv.Itoa(int(p.Port)), "has the number or the name of an earlier port: give each its own")
			continue
		}
		switch r.Protocol {
		case "UDP", "SCTP":
			f.drop(discovery.CauseUnsupported, field+".protocol", r.Protocol, "is not carried to other networks, the TCP ports of the service are")
		case "TCP":
			if !s.setTarget(&r, p.TargetPort, field, f) {
				continue
			}
		default:
			f.drop(discovery.CauseValue, field+".protocol", string(p.Protocol), "is not a protocol: use TCP, UDP or SCTP")
			continue
		}
		out = append(out, r)
	}
	return out
}

// foreign notes the first of the endpoints that no pod is behind: nothing carries a tunnel
// to it.
func (s service) foreign(f *faults) {
	for _, slice := range s.slices {
		for i, e := range slice.Endpoints {
			if podOf(slice, &e) != (name{}) {
				continue
			}
			address := ""
			if len(e.Addresses) > 0 {
				address = e.Addresses[0]
			}
			f.drop(discovery.CauseUnsupported, fmt.Sprintf("EndpointSlice %s endpoints[%d]", slice.Name, i), address, "is no pod of this cluster: other networks reach only pods, which have a node proxy beside them")
			return
		}
	}
}

// unselected notes that s has neither a selector, by which Kubernetes would find its pods, nor
// endpoints that somebody else has written.
func (s service) unselected(f *faults) {
	if len(s.object.Spec.Selector) > 0 || slices.ContainsFunc(s.slices, func(x *discoveryv1.EndpointSlice) bool { return len(x.Endpoints) > 0 }) {
		return
	}
	f.drop(discovery.CauseMissing, "spec.selector", "", "is empty, and no EndpointSlice of the service has endpoints: nobody answers; write the labels of its pods, or an EndpointSlice whose endpoints name pods (targetRef)")
}
