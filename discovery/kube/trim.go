package kube

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// trim returns a copy of an object without the fields that are not used, to save memory:
// of a pod about nine tenths. An object of another type is returned unchanged.
func trim(o any) (any, error) {
	switch o := o.(type) {
	case *corev1.Namespace:
		return &corev1.Namespace{ObjectMeta: trimMeta(o.ObjectMeta)}, nil
	case *corev1.Node:
		n := &corev1.Node{ObjectMeta: trimMeta(o.ObjectMeta)}
		for _, a := range o.Status.Addresses {
			if a.Type == corev1.NodeExternalIP || a.Type == corev1.NodeInternalIP {
				n.Status.Addresses = append(n.Status.Addresses, a)
			}
		}
		return n, nil
	case *corev1.Service:
		s := &o.Spec
		return &corev1.Service{ObjectMeta: trimAged(o.ObjectMeta), Spec: corev1.ServiceSpec{
			Type: s.Type, ClusterIP: s.ClusterIP, ClusterIPs: s.ClusterIPs, Ports: s.Ports, PublishNotReadyAddresses: s.PublishNotReadyAddresses,
			InternalTrafficPolicy: s.InternalTrafficPolicy, TrafficDistribution: s.TrafficDistribution, ExternalIPs: s.ExternalIPs, SessionAffinity: s.SessionAffinity,
			Selector: trimSelector(s.Selector),
		}, Status: corev1.ServiceStatus{LoadBalancer: trimLoadBalancer(o.Status.LoadBalancer)}}, nil
	case *discoveryv1.EndpointSlice:
		slice := &discoveryv1.EndpointSlice{ObjectMeta: trimMeta(o.ObjectMeta), AddressType: o.AddressType, Endpoints: make([]discoveryv1.Endpoint, len(o.Endpoints))}
		for _, p := range o.Ports {
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: p.Name, Protocol: p.Protocol, Port: p.Port})
		}
		for i, e := range o.Endpoints {
			slice.Endpoints[i] = discoveryv1.Endpoint{Conditions: e.Conditions}
			if t := e.TargetRef; t != nil {
				slice.Endpoints[i].TargetRef = &corev1.ObjectReference{Kind: t.Kind, Name: t.Name, UID: t.UID}
			}
			if podOf(slice, &slice.Endpoints[i]) == (name{}) {
				slice.Endpoints[i].Addresses = e.Addresses // only shown
			}
		}
		return slice, nil
	case *corev1.Pod:
		return keepPod(o), nil
	case *unstructured.Unstructured:
		for _, k := range policyKinds {
			if o.GetKind() == objectKind(k) {
				return keepPolicy(k, o.GetNamespace(), o.GetName(), o.Object), nil
			}
		}
	case *metav1.PartialObjectMetadata:
		return &metav1.PartialObjectMetadata{TypeMeta: o.TypeMeta, ObjectMeta: trimAged(o.ObjectMeta)}, nil
	}
	return o, nil
}

func trimLoadBalancer(o corev1.LoadBalancerStatus) (out corev1.LoadBalancerStatus) {
	for _, in := range o.Ingress {
		out.Ingress = append(out.Ingress, corev1.LoadBalancerIngress{IP: in.IP, Hostname: in.Hostname})
	}
	return out
}

// selects stands for any selector: only that there is one matters.
var selects = map[string]string{"": ""}

func trimSelector(s map[string]string) map[string]string {
	if len(s) == 0 {
		return nil
	}
	return selects
}

func trimMeta(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion, DeletionTimestamp: m.DeletionTimestamp,
		Labels: only(m.Labels, labelsRead), Annotations: only(m.Annotations, annotationsRead)}
}

// trimAged is trimMeta with the creation timestamp.
func trimAged(m metav1.ObjectMeta) metav1.ObjectMeta {
	out := trimMeta(m)
	out.CreationTimestamp = m.CreationTimestamp
	return out
}

// only returns the entries of m with these names; nil if there are none.
func only(m map[string]string, names []string) (out map[string]string) {
	for _, n := range names {
		if v, ok := m[n]; ok {
			if out == nil {
				out = map[string]string{}
			}
			out[n] = v
		}
	}
	return out
}
