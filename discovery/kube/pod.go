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
	members   []membership      // by hostname of the service
	labels    map[string]string // not to be changed
}

// membership is a pod in the EndpointSlices of one service that has a record.
type membership struct {
	service name
	description
	ready   bool // by a slice, new connections may go there
	serving bool // by a slice, they may while no endpoint is ready
	ports   []memberPort
}

// memberPort is the pod's number for the service port byPod[i] of its membership.
type memberPort struct {
	port uint16 // zero if no slice has it
	rank int    // of the endpoint that has it; see membership.add
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
	w.Labels = p.labels
	for _, m := range p.members {
		if m.admits(w.State) && !w.Scheduled {
			w.Services = append(w.Services, hostnameOf(m.service))
			w.Ports = append(w.Ports, m.named()...)
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

// place is where a pod is, as seen by its Services.
type place uint8

const (
	placeUnknown place = iota // there is no such pod yet, or not any more
	placeNode                 // it has the address of its node
	placePlain                // it is not in the mesh
	placeMesh
)

func (p pod) place() place {
	switch {
	case p.object == nil:
		return placeUnknown
	case p.object.Spec.HostNetwork:
		return placeNode
	case !p.meshed(&faults{}):
		return placePlain
	}
	return placeMesh
}

// podOf returns the pod that an endpoint is, or nothing.
func podOf(slice *discoveryv1.EndpointSlice, e *discoveryv1.Endpoint) name {
	if slice.AddressType == discoveryv1.AddressTypeFQDN || e.TargetRef == nil || e.TargetRef.Kind != "Pod" || e.TargetRef.Name == "" {
		return name{}
	}
	return name{slice.Namespace, e.TargetRef.Name}
}

// add takes in an endpoint of slice for the pod. Several slices may list it, as one for each address
// family. Of two numbers for one port the one of the ready endpoint counts, then of the serving one, then
// of the slice in the family of the pod's first address, where its application is dialed, then of the first slice.
func (m *membership) add(slice *discoveryv1.EndpointSlice, c discoveryv1.EndpointConditions, first netip.Addr) {
	ready := c.Ready == nil || *c.Ready
	serving := ready
	if c.Serving != nil {
		serving = *c.Serving
	}
	m.ready = m.ready || ready
	m.serving = m.serving || serving
	rank := 0
	if ready {
		rank = 4
	} else if serving {
		rank = 2
	}
	if first.Is4() == (slice.AddressType == discoveryv1.AddressTypeIPv4) {
		rank++
	}
	if m.ports == nil {
		m.ports = make([]memberPort, len(m.byPod))
	}
	for i, portName := range m.byPod {
		if n := portIn(slice, portName); n != 0 && !mesh.ReservedPort(n) && (m.ports[i].port == 0 || rank > m.ports[i].rank) {
			m.ports[i] = memberPort{n, rank}
		}
	}
}

// named returns the pod's numbers for the service ports that have a target name. While the pod is ready
// the number of an endpoint that is not ready counts for nothing, and so on.
func (m membership) named() (out []discovery.NamedPort) {
	least := 0
	if m.ready {
		least = 4
	} else if m.serving {
		least = 2
	}
	for i, p := range m.ports {
		if p.port != 0 && p.rank >= least {
			out = append(out, discovery.NamedPort{Name: targetName(m.service, m.byPod[i]), Port: p.port})
		}
	}
	return out
}
