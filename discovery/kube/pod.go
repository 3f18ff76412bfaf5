package kube

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// pod is a Pod with the other objects that it is read with.
type pod struct {
	object    *keptPod          // nil: there is none
	namespace *corev1.Namespace // nil: it is not known
	node      *corev1.Node      // nil: it is not known
	network   string            // of the cluster
	members   []membership      // by hostname
	labels    map[string]string // not to be changed
}

// membership is what endpoint slices say of a pod and one service that there is a record
// of.
type membership struct {
	hostname string
	exported bool // other networks may reach it
	ready    bool // the service's slices would have connections go there
	serving  bool // or they would while nobody is ready
}

// read translates p. A record is nil if none comes of p: it is not scheduled yet, it is
// over, or its address is that of its node. One that has no address yet is told to its node alone, and so is one that is
// not in the mesh because of a fault.
func (p pod) read() (record *discovery.Workload, f faults) {
	if p.object == nil || p.object.Status.Phase == corev1.PodSucceeded || p.object.Status.Phase == corev1.PodFailed {
		return nil, nil // the address of one that is over may be another one's by now
	}
	exported := slices.ContainsFunc(p.members, func(m membership) bool { return m.exported })
	if p.object.Spec.HostNetwork {
		if exported {
			f.out(discovery.CauseUnsupported, "spec.hostNetwork", "true", "shares its address with its node, and has no node proxy: other networks do not reach it: run it on the pod network, or take away what makes its service global")
		}
		return nil, f
	}
	if p.object.Labels.get(labelCrowded) != "" { // which policies select it is not known
		f.out(discovery.CauseUnsupported, "metadata.labels", "", "has more than %d labels, or more than %d KiB of them, and is not in the mesh: delete what nothing selects by", maxLabels, maxLabelBytes>>10)
		return p.outside(), f
	}
	w := &discovery.Workload{
		UID: string(p.object.UID), Name: p.object.Name, Namespace: p.object.Namespace, ServiceAccount: p.object.Spec.ServiceAccountName,
		Network: p.network, Node: p.object.Spec.NodeName, State: p.state(),
	}
	if w.Addresses = p.addresses(&f); len(w.Addresses) == 0 {
		if w.Scheduled = len(f) == 0 && w.Node != ""; !w.Scheduled {
			if len(f) > 0 {
				f[len(f)-1].Out = true
				return p.outside(), f
			}
			return nil, f
		}
	}
	if n := p.object.Labels.get(labelNetwork); n != "" {
		w.Network = n
	}
	if p.node != nil {
		w.Locality = discovery.Locality{Region: p.node.Labels[labelRegion], Zone: p.node.Labels[labelZone], Subzone: p.node.Labels[labelSubzone]}
	}
	if !p.meshed(&f) {
		w.Protocol = "TCP"
		if exported {
			f.drop(discovery.CauseUnsupported, label(labelDataplane), p.object.Labels.get(labelDataplane), "is not in the mesh, so that other networks do not reach it: write ambient here or at the namespace")
		}
	}
	w.Ports, w.Labels = p.ports(), p.labels
	for _, m := range p.members {
		if m.admits(w.State) && !w.Scheduled {
			w.Services = append(w.Services, m.hostname)
		}
	}
	return w, f
}

// outside returns what the pod's node is told of it; nil if it has none yet.
func (p pod) outside() *discovery.Workload {
	if p.object.Spec.NodeName == "" {
		return nil
	}
	return &discovery.Workload{UID: string(p.object.UID), Name: p.object.Name, Namespace: p.object.Namespace, Network: p.network, Node: p.object.Spec.NodeName, Scheduled: true, Outside: true}
}

// admits reports whether a pod in this state is a member: of what the pod says of itself
// and what the slices say the more careful word counts. A pod that nobody may choose
// stays a member, so that it is seen that it is not ready.
func (m membership) admits(state string) bool {
	switch state {
	case "ready":
		return m.ready
	case "serving":
		return m.ready || m.serving
	}
	return true
}

// state is the pod's own word, which is there before the slices have it.
func (p pod) state() string {
	ready := p.object.Status.Ready == corev1.ConditionTrue
	switch gone := p.object.DeletionTimestamp != nil; {
	case gone && ready:
		return "serving"
	case gone:
		return "terminating"
	case ready:
		return "ready"
	}
	return "notReady"
}

// addresses returns all of them, that of the pod's first family first.
func (p pod) addresses(f *faults) (out []netip.Addr) {
	add := func(field, text string) {
		if text == "" {
			return
		}
		a, err := netip.ParseAddr(text)
		if a = a.Unmap(); err != nil || !usable(a) {
			f.drop(discovery.CauseValue, field, text, "is not the address of one machine, and counts for nothing: see what gives pods their addresses")
		} else if !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	for i, ip := range p.object.Status.PodIPs {
		add(fmt.Sprintf("status.podIPs[%d].ip", i), ip.IP)
	}
	if len(p.object.Status.PodIPs) == 0 {
		add("status.podIP", p.object.Status.PodIP)
	}
	return out
}

// meshed reports whether a node proxy accepts tunnels for the pod: it says so itself once
// it has been set up, else its label counts, else that of its namespace.
func (p pod) meshed(f *faults) bool {
	if p.object.Annotations[annotationRedirection] == "enabled" {
		return true
	}
	switch mode := p.object.Labels.get(labelDataplane); mode {
	case "ambient":
		return true
	case "none":
		return false
	case "":
	default:
		f.drop(discovery.CauseValue, label(labelDataplane), mode, "is not a mode, and counts for nothing: use ambient or none")
	}
	return p.namespace != nil && p.namespace.Labels[labelDataplane] == "ambient"
}

// ports returns the TCP ports that have names. Of two of one name the first counts, as
// for Kubernetes.
func (p pod) ports() (out []discovery.NamedPort) {
	for _, port := range p.object.Ports {
		if port.Protocol != corev1.ProtocolTCP && port.Protocol != "" || port.Port < 1 || port.Port > 65535 || mesh.ReservedPort(uint16(port.Port)) {
			continue
		}
		if !slices.ContainsFunc(out, func(o discovery.NamedPort) bool { return o.Name == port.Name }) {
			out = append(out, discovery.NamedPort{Name: port.Name, Port: uint16(port.Port)})
		}
	}
	return out
}

// podOf returns the pod that an endpoint is, or nothing.
func podOf(slice *discoveryv1.EndpointSlice, e *discoveryv1.Endpoint) name {
	if slice.AddressType == discoveryv1.AddressTypeFQDN || e.TargetRef == nil || e.TargetRef.Kind != "Pod" || e.TargetRef.Name == "" {
		return name{}
	}
	return name{slice.Namespace, e.TargetRef.Name}
}

// add takes in what one slice says: a pod may be in several, one for each family.
func (m *membership) add(c discoveryv1.EndpointConditions) {
	ready := c.Ready == nil || *c.Ready
	serving := ready
	if c.Serving != nil {
		serving = *c.Serving
	}
	m.ready = m.ready || ready
	m.serving = m.serving || serving
}
