package balance

import (
	"fmt"
	"strings"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// known lists what a user may write, in the order of the documentation.
var known = []mesh.Distribution{
	mesh.PreferNetwork, mesh.PreferClose, mesh.PreferSameZone, mesh.PreferSameNode,
	mesh.PreferRegion, mesh.RegionFirst, mesh.Any, mesh.StrictNode,
}

// ParseDistribution reads the value of a field or annotation; upper and lower
// case do not matter (as in Istio).
func ParseDistribution(s string) (mesh.Distribution, error) {
	names := make([]string, len(known))
	for i, d := range known {
		if strings.EqualFold(s, string(d)) {
			return d, nil
		}
		names[i] = string(d)
	}
	return "", fmt.Errorf("traffic distribution %q is unknown: use one of %s", s, strings.Join(names, ", "))
}

// Precedence returns the distribution of a service from everything that may
// set it, the most important first: the Service's spec.trafficDistribution, its
// annotation networking.istio.io/traffic-distribution, that of the ServiceEntry,
// that of the namespace, the mesh's default; and whose it is. Empty means not set. A
// value that is unknown gives a warning and counts as not set; if nothing is set, it
// is PreferNetwork, of nobody.
func Precedence(spec, svcAnnotation, seAnnotation, nsAnnotation, meshDefault string) (d mesh.Distribution, from mesh.Source, warnings []string) {
	for _, source := range []struct {
		name, value string
		from        mesh.Source
	}{
		{"spec.trafficDistribution", spec, mesh.FromService},
		{"annotation of the Service", svcAnnotation, mesh.FromService},
		{"annotation of the ServiceEntry", seAnnotation, mesh.FromService},
		{"annotation of the namespace", nsAnnotation, mesh.FromNamespace},
		{"default of the mesh", meshDefault, mesh.FromMesh},
	} {
		if source.value == "" {
			continue
		}
		d, err := ParseDistribution(source.value)
		if err == nil {
			return d, source.from, warnings
		}
		warnings = append(warnings, fmt.Sprintf("%s is ignored: %v", source.name, err))
	}
	return mesh.PreferNetwork, "", warnings
}
