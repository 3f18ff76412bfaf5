package kube

import (
	"strings"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// Labels and annotations that are read. Istio's and Solo's names, so that nobody has to
// label anything twice.
const (
	labelGlobal    = "istio.io/global"          // Service, Namespace: "true"
	labelScope     = "solo.io/service-scope"    // Service, Namespace; also as an annotation
	labelTakeover  = "solo.io/service-takeover" // Service, Namespace: "true"; also as an annotation
	labelSegment   = "admin.solo.io/segment"    // system Namespace: not supported
	labelNetwork   = "topology.istio.io/network"
	labelDataplane = "istio.io/dataplane-mode" // Pod, Namespace: ambient or none
	labelRegion    = "topology.kubernetes.io/region"
	labelZone      = "topology.kubernetes.io/zone"
	labelSubzone   = "topology.istio.io/subzone"
	labelOfSlice   = "kubernetes.io/service-name"
	labelCrowded   = "isthmus.io/too-many-labels" // nobody writes it: see labelsOf

	annotationRedirection  = "ambient.istio.io/redirection" // Pod: enabled
	annotationDistribution = "networking.istio.io/traffic-distribution"
)

// labelsRead and annotationsRead are what trim keeps.
var (
	labelsRead      = []string{labelGlobal, labelScope, labelTakeover, labelSegment, labelNetwork, labelDataplane, labelRegion, labelZone, labelSubzone, labelOfSlice}
	annotationsRead = []string{annotationRedirection, annotationDistribution, labelScope, labelTakeover}
)

// clusterSetSuffix ends the names of what a ServiceExport exports.
const clusterSetSuffix = ".svc.clusterset.local"

// distributions are the words of spec.trafficDistribution and of the annotation, in
// lower case, and what they mean here. PreferRegion is the least certain one: see
// mesh.RegionFirst.
var distributions = map[string]mesh.Distribution{
	"preferclose":    mesh.PreferClose,
	"prefersamezone": mesh.PreferSameZone,
	"prefersamenode": mesh.PreferSameNode,
	"prefernetwork":  mesh.PreferNetwork,
	"preferregion":   mesh.PreferRegion,
	"any":            mesh.Any,
}

const distributionWords = "use PreferSameZone, PreferClose, PreferSameNode, PreferNetwork, PreferRegion or Any"

// distribution reads such a word.
func distribution(word string) (d mesh.Distribution, ok bool) {
	d, ok = distributions[strings.ToLower(word)]
	return d, ok
}

// hostnameOf is the name that a service is known by, as package discovery derives it.
func hostnameOf(n name) string { return n.name + "." + n.namespace + ".svc.cluster.local" }
