package kube

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// Values of solo.io/service-scope. Global only is global with takeover: remote endpoints join the
// Service's own name.
const (
	scopeCluster    = "cluster"
	scopeSegment    = "segment"
	scopeGlobal     = "global"
	scopeGlobalOnly = "global-only"
)

const scopeWords = "use global, global-only, segment or cluster"

// reach is what an object, a Service or its namespace, sets of who may use the Service. The zero value sets
// nothing.
type reach struct {
	global   string // istio.io/global: "true", "false" or ""
	takeover string // solo.io/service-takeover, likewise
	scope    string // solo.io/service-scope; "" if it is not set
	field    string // of scope
}

// reachOf reads the reach that m sets. Solo's settings may be labels or annotations.
func (f *faults) reachOf(m metav1.ObjectMeta) (r reach) {
	r.global = f.flag(label(labelGlobal), m.Labels[labelGlobal])
	takeover, field := f.setting(m, labelTakeover)
	r.takeover = f.flag(field, takeover)
	r.scope, r.field = f.setting(m, labelScope)
	switch r.scope {
	case "", scopeGlobal, scopeGlobalOnly, scopeSegment, scopeCluster:
	default:
		f.drop(discovery.CauseValue, r.field, r.scope, "is not a scope, so the Service stays in its cluster: "+scopeWords)
	}
	return r
}

// setting returns the label of m with the key, else its annotation, and the field that has it.
func (f *faults) setting(m metav1.ObjectMeta, key string) (value, field string) {
	l, a := m.Labels[key], m.Annotations[key]
	if l == "" {
		return a, annotation(key)
	}
	if a != "" && a != l {
		f.drop(discovery.CauseConflict, annotation(key), a, "contradicts the label of the same name, %q, which counts: remove one of the two", l)
	}
	return l, label(key)
}

// flag returns value if it is "true" or "false", else "".
func (f *faults) flag(field, value string) string {
	if value == "true" || value == "false" || value == "" {
		return value
	}
	f.drop(discovery.CauseValue, field, value, `is neither "true" nor "false", and counts for nothing: write one of them`)
	return ""
}

// scope returns who may use the Service; "" is its own cluster alone. What the Service sets counts before
// what its namespace sets, which holds for Services of pods in the mesh alone. At one object a scope counts
// before istio.io/global and a ServiceExport, and solo.io/service-takeover before what implies takeover.
// An unknown scope is the cluster.
func (s service) scope(f *faults) (scope mesh.Scope, takeover bool) {
	own, inherited := f.reachOf(s.object.ObjectMeta), s.inherited()
	global := own.global == "true" || own.global == "" && inherited.global == "true"
	word := own.scope
	if word == "" && own.global == "" && (s.export == nil || inherited.scope == scopeGlobalOnly) {
		word = inherited.scope
	}
	switch {
	case word == scopeGlobal, word == scopeGlobalOnly, word == "" && (global || s.export != nil):
		scope = mesh.ScopeGlobal
	case word == scopeSegment && !s.segmented:
		scope = mesh.ScopeSegment
	}
	switch {
	case own.takeover != "":
		takeover = own.takeover == "true"
	case own.global == "true" || own.scope == scopeGlobalOnly:
		takeover = true
	case inherited.takeover != "":
		takeover = inherited.takeover == "true"
	default:
		takeover = global || word == scopeGlobalOnly
	}
	s.contradictions(own, scope, f)
	s.left(scope, f)
	return scope, takeover && scope != ""
}

// endpoints are where the known endpoints of a Service are.
type endpoints struct {
	inside  bool // some are pods in the mesh
	outside bool // some are not
	plain   bool // some of those outside are pods with addresses of their own
}

// inherited returns what the namespace sets for s. That is nothing if no endpoint of s is in the mesh:
// its cluster IP would lead elsewhere, and no user asked for that by a label at the Service. While a Service
// that selects pods has no endpoint, the mode of the namespace says where they will be.
func (s service) inherited() (r reach) {
	if s.namespace == nil {
		return r
	}
	coming := s.endpoints == endpoints{} && len(s.object.Spec.Selector) > 0 && s.namespace.Labels[labelDataplane] == "ambient"
	if !s.endpoints.inside && !coming {
		return r
	}
	return (&faults{}).reachOf(s.namespace.ObjectMeta) // its faults are those of the namespace
}

// left notes that what the namespace sets does not reach s, if the cause may be that its pods lack a label.
func (s service) left(scope mesh.Scope, f *faults) {
	if scope != "" || s.endpoints.inside || !s.endpoints.plain {
		return
	}
	s.endpoints = endpoints{inside: true}
	if would, _ := s.scope(&faults{}); would != "" {
		f.drop(discovery.CauseUnsupported, label(labelDataplane), "", "is ambient at no pod of the Service, nor at its namespace, so that the Service stays in its cluster whatever its namespace sets: write ambient, or set %s to cluster at the Service", labelScope)
	}
}

// contradictions notes what the Service itself sets and scope does not have.
func (s service) contradictions(own reach, scope mesh.Scope, f *faults) {
	narrow := own.scope == scopeCluster || own.scope == scopeSegment
	switch {
	case own.scope == scopeSegment && s.segmented:
		f.drop(segmented(own.field))
	case narrow && own.global == "true":
		f.drop(discovery.CauseConflict, own.field, own.scope, "contradicts label %s, and holds: remove one of the two", labelGlobal)
	case narrow && s.export != nil:
		f.drop(discovery.CauseConflict, own.field, own.scope, "contradicts its ServiceExport, and holds: remove one of the two")
	case scope == "" && own.takeover == "true":
		f.drop(discovery.CauseConflict, takeoverField(s.object.ObjectMeta), own.takeover, "has no effect, because the Service is for its cluster alone: set %s to global too, or remove it", labelScope)
	}
}

func takeoverField(m metav1.ObjectMeta) string {
	_, field := (&faults{}).setting(m, labelTakeover)
	return field
}

// segmented is what is wrong with the scope segment in a cluster whose system namespace names a segment:
// other networks do not know that name, and the service could leave its segment.
func segmented(field string) (c discovery.Cause, f, value, message string) {
	return discovery.CauseUnsupported, field, scopeSegment, "keeps the Service in its cluster, because the system namespace has the label " + labelSegment + ", which is not supported: list the segments of networks in a discovery file and remove that label, or use global"
}
