package kube

import (
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// The port of a pod that a port of a Service leads to is what the Service's EndpointSlices say, as for
// kube-proxy: the number of the TCP port of the same name, in a slice that lists the pod. A slice
// without that port, or with one that has no number, gives the pod none. spec.ports[].targetPort
// counts only while no slice lists a pod.
//
// If all slices agree on one number, it is the target of the service port. Otherwise the service
// port has a target name, and each pod lists its own number under that name.

// portIn returns the number of the TCP port of slice with the name of a Service's port. Zero if there
// is none.
func portIn(slice *discoveryv1.EndpointSlice, portName string) uint16 {
	for _, p := range slice.Ports {
		tcp := p.Protocol == nil || *p.Protocol == "" || *p.Protocol == corev1.ProtocolTCP
		named := p.Name != nil && *p.Name == portName || p.Name == nil && portName == ""
		if tcp && named && p.Port != nil && *p.Port > 0 && *p.Port <= 65535 {
			return uint16(*p.Port)
		}
	}
	return 0
}

// targetName is the name under which pods list their numbers for a port of a Service. No port of a
// container has a slash in its name.
func targetName(svc name, portName string) string {
	if portName == "" {
		return svc.String()
	}
	return svc.String() + ":" + portName
}

// setTarget sets the target of r, which is the port of the Service at field, and reports whether a
// tunnel may lead there.
func (s service) setTarget(r *discovery.ServicePort, spec intstr.IntOrString, field string, f *faults) bool {
	var numbers []uint16
	for _, slice := range s.slices {
		if hasPod(slice) {
			numbers = append(numbers, portIn(slice, r.Name))
		}
	}
	slices.Sort(numbers)
	numbers = slices.Compact(numbers)
	named := spec.Type == intstr.String && spec.StrVal != ""
	switch {
	case len(numbers) == 1 && numbers[0] == 0:
		f.drop(discovery.CauseReference, field, r.Name, "has no pod: no EndpointSlice of the Service has a TCP port of this name; add it to the slices or, where targetPort is a name, to a container")
		r.TargetName = targetName(s.name, r.Name)
		return true
	case len(numbers) == 1:
		r.TargetPort = numbers[0]
	case named || len(numbers) > 1:
		r.TargetName = targetName(s.name, r.Name)
		return true
	case spec.Type == intstr.String || spec.IntVal == 0:
		r.TargetPort = r.Port
	case spec.IntVal < 1 || spec.IntVal > 65535:
		f.drop(discovery.CauseValue, field+".targetPort", strconv.Itoa(int(spec.IntVal)), "is not a port: write a number from 1 to 65535")
		return false
	default:
		r.TargetPort = uint16(spec.IntVal)
	}
	if mesh.ReservedPort(r.TargetPort) {
		f.drop(discovery.CauseUnsupported, field+".targetPort", strconv.Itoa(int(r.TargetPort)), "is a port of the node proxy itself, which never connects there: let the application listen on another one")
		return false
	}
	return true
}

// hasPod reports whether slice lists a pod.
func hasPod(slice *discoveryv1.EndpointSlice) bool {
	return slices.ContainsFunc(slice.Endpoints, func(e discoveryv1.Endpoint) bool { return podOf(slice, &e) != (name{}) })
}

// description is what pods need of the record of their Service. The zero value is that of a Service for its
// own cluster whose ports have one target each.
type description struct {
	exported bool     // other networks may reach it
	byPod    []string // names of its ports that have a target name
}

func describe(r *discovery.Service) (d description) {
	d.exported = r.Scope != ""
	for _, p := range r.Ports {
		if p.TargetName != "" {
			d.byPod = append(d.byPod, p.Name)
		}
	}
	return d
}

func (d description) equal(o description) bool {
	return d.exported == o.exported && slices.Equal(d.byPod, o.byPod)
}
