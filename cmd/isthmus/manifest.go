package main

import (
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Names of the objects in the mesh's namespace that no chart makes; see helm/README.md.
const (
	keySecret    = "isthmus-network-key"
	caSecret     = "isthmus-ca"
	rootMap      = "isthmus-root"
	networksMap  = "isthmus-networks"
	cardMap      = "isthmus-network" // what link reads of a cluster: nothing secret
	bundleFile   = "bundle.pem"
	networksFile = "networks.yaml"
	cardFile     = "card.yaml"
)

// manifest is an object with data, in the order of their names, and with annotations, lines of YAML.
func manifest(kind, namespace, name string, data map[string]string, annotations ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "---\napiVersion: v1\nkind: %s\nmetadata:\n  name: %s\n  namespace: %s\n  labels: {app.kubernetes.io/part-of: isthmus, app.kubernetes.io/managed-by: isthmus}\n", kind, name, namespace)
	if len(annotations) > 0 {
		fmt.Fprintf(&b, "  annotations: {%s}\n", strings.Join(annotations, ", "))
	}
	if kind == "Secret" {
		b.WriteString("type: Opaque\n")
	}
	b.WriteString("data:\n")
	for _, k := range slices.Sorted(maps.Keys(data)) {
		if kind == "Secret" {
			fmt.Fprintf(&b, "  %s: %s\n", strconv.Quote(k), base64.StdEncoding.EncodeToString([]byte(data[k])))
			continue
		}
		fmt.Fprintf(&b, "  %s: |\n", strconv.Quote(k))
		for line := range strings.Lines(data[k]) {
			b.WriteString("    " + line)
		}
	}
	return b.String()
}

// namespaceManifest is that of the mesh.
func namespaceManifest(name string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: %s\n", name)
}
