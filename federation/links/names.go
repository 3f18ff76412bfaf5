package links

import "strings"

// suffixes are what the names of services end with that say name and namespace: the
// canonical one first, then those that lead to the same service.
var suffixes = []string{".svc.cluster.local", ".mesh.internal", ".svc.clusterset.local"}

// Canonical returns the hostname by which other networks export what host may be a name
// of; not ok for what is none.
func Canonical(host string) (string, bool) {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if name, namespace, ok := Namespaced(host); ok {
		host = Hostname(name, namespace)
	}
	if host == "" || len(host) > 253 || !strings.Contains(host, ".") {
		return "", false
	}
	for _, c := range host {
		if c != '.' && c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') {
			return "", false
		}
	}
	return host, true
}

// Hostname is the canonical name of a service.
func Hostname(name, namespace string) string { return name + "." + namespace + suffixes[0] }

// Namespaced takes apart a hostname that says which namespace it is of.
func Namespaced(host string) (name, namespace string, ok bool) {
	for _, suffix := range suffixes {
		if rest, is := strings.CutSuffix(host, suffix); is {
			name, namespace, ok = strings.Cut(rest, ".")
			return name, namespace, ok && name != "" && namespace != "" && !strings.Contains(namespace, ".")
		}
	}
	return "", "", false
}
