package kube

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/isthmus-mesh/isthmus/discovery"
)

// namespace is a Namespace and what it is compared with.
type namespace struct {
	object    *corev1.Namespace // nil: there is none
	network   string            // of this process if this is the system namespace, else ""
	segmented bool              // the system namespace names a segment
}

// read returns what is wrong with n. Its services and pods are read with it.
func (n namespace) read() (f faults) {
	if n.object == nil {
		return nil
	}
	r := f.reachOf(n.object.ObjectMeta)
	switch narrow := r.scope == scopeCluster || r.scope == scopeSegment; {
	case r.scope == scopeSegment && n.segmented:
		f.drop(segmented(r.field))
	case narrow && r.global == "true":
		f.drop(discovery.CauseConflict, r.field, r.scope, "contradicts label %s, and holds: remove one of the two", labelGlobal)
	}
	if segment := n.object.Labels[labelSegment]; n.network != "" && segment != "" {
		f.drop(discovery.CauseUnsupported, label(labelSegment), segment, "is not read, and services of scope segment stay in this cluster: list the segments of networks in a discovery file and remove the label")
	}
	switch mode := n.object.Labels[labelDataplane]; mode {
	case "", "ambient", "none":
	default:
		f.drop(discovery.CauseValue, label(labelDataplane), mode, "is not a mode, and counts for nothing: use ambient or none")
	}
	if w := n.object.Annotations[annotationDistribution]; w != "" {
		if _, ok := distribution(w); !ok {
			f.drop(discovery.CauseValue, annotation(annotationDistribution), w, "is not a traffic distribution, and counts for nothing: %s", distributionWords)
		}
	}
	if said := n.object.Labels[labelNetwork]; n.network != "" && said != "" && said != n.network {
		f.drop(discovery.CauseConflict, label(labelNetwork), said, "is not network %q that this process is on, which counts: correct the label, or network in this process's configuration", n.network)
	}
	return f
}
