package kube

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// keptPod is what is read of a Pod, which a cluster has more of than of all else: an empty
// corev1.Pod with one container takes 1.7 KiB, and this some 250 bytes.
type keptPod struct {
	Namespace, Name   string
	ResourceVersion   string
	UID               types.UID
	DeletionTimestamp *metav1.Time
	Labels            labels
	Annotations       map[string]string // that are read
	Spec              keptSpec
	Status            keptStatus
	HostPorts         []corev1.ContainerPort // by which a gateway's tunnels come by the node, without names
}

// keptSpec is what is read of a PodSpec.
type keptSpec struct {
	NodeName, ServiceAccountName string
	HostNetwork                  bool
}

// keptStatus is what is read of a PodStatus.
type keptStatus struct {
	Phase   corev1.PodPhase
	PodIP   string
	PodIPs  []corev1.PodIP
	HostIPs []corev1.HostIP        // where there are HostPorts
	Ready   corev1.ConditionStatus // empty: the kubelet has not said
}

// keepPod returns what is read of o, and shares nothing with it that is not.
func keepPod(o *corev1.Pod) *keptPod {
	p := &keptPod{
		Namespace: o.Namespace, Name: o.Name, ResourceVersion: o.ResourceVersion, UID: o.UID, DeletionTimestamp: o.DeletionTimestamp,
		Labels: labelsOf(o.Labels), Annotations: only(o.Annotations, annotationsRead),
		Spec:   keptSpec{o.Spec.NodeName, o.Spec.ServiceAccountName, o.Spec.HostNetwork},
		Status: keptStatus{Phase: o.Status.Phase, PodIP: o.Status.PodIP, PodIPs: o.Status.PodIPs},
	}
	for _, c := range o.Spec.Containers {
		p.keepHostPorts(c)
	}
	if p.HostPorts != nil {
		p.Status.HostIPs = o.Status.HostIPs
	}
	for _, c := range o.Status.Conditions {
		if c.Type == corev1.PodReady && p.Status.Ready != corev1.ConditionTrue {
			p.Status.Ready = c.Status
		}
	}
	return p
}

func (p *keptPod) keepHostPorts(c corev1.Container) {
	for _, port := range c.Ports {
		if isHostPort(port) {
			port.Name = ""
			p.HostPorts = append(p.HostPorts, port)
		}
	}
}

// object returns p as a Pod, of which keepPod makes p.
func (p *keptPod) object() *corev1.Pod {
	o := &corev1.Pod{ObjectMeta: p.meta(),
		Spec:   corev1.PodSpec{NodeName: p.Spec.NodeName, ServiceAccountName: p.Spec.ServiceAccountName, HostNetwork: p.Spec.HostNetwork},
		Status: corev1.PodStatus{Phase: p.Status.Phase, PodIP: p.Status.PodIP, PodIPs: p.Status.PodIPs, HostIPs: p.Status.HostIPs}}
	o.Labels = p.Labels.all()
	if p.Status.Ready != "" {
		o.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: p.Status.Ready}}
	}
	if p.HostPorts != nil {
		o.Spec.Containers = []corev1.Container{{Ports: p.HostPorts}}
	}
	return o
}

// meta has no labels, which would have to be unpacked.
func (p *keptPod) meta() metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, ResourceVersion: p.ResourceVersion, UID: p.UID, DeletionTimestamp: p.DeletionTimestamp, Annotations: p.Annotations}
}

// GetObjectMeta implements metav1.ObjectMetaAccessor, by which client-go finds names.
func (p *keptPod) GetObjectMeta() metav1.Object {
	m := p.meta()
	return &m
}

// podIn returns the pod of an event, whole or what is kept of it; nil if there is none.
func podIn(e Event) *keptPod {
	switch o := e.Object.(type) {
	case *keptPod:
		return o
	case *corev1.Pod:
		if o != nil {
			return keepPod(o)
		}
	}
	return nil
}
