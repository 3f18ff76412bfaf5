package nodeproxy

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-mesh/isthmus/federation/links"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/route"
)

// checkKnown names every word of c that discovery does not know, with the
// nearest that it does: at start that is a typo. What discovery forgets later is
// not asked again.
//
// nameOf returns the UIDs of workloads that snap does not hold, as [file.Watcher.NameOf].
func (c Config) checkKnown(snap *mesh.Snapshot, nameOf func(mesh.EndpointID) string) error {
	var v strictyaml.Check
	if _, err := c.SPIFFEID(); err == nil && c.TrustDomain != snap.TrustDomain() { // else Validate has said so
		v.Fail("trustDomain", "%q: the mesh of %s is in %q: correct one of them", c.TrustDomain, c.Discovery.File, snap.TrustDomain())
	}
	network := snap.HasNetwork(c.Network)
	if !network && c.Network != "" {
		v.Fail("network", "%q is not a network of %s: %s", c.Network, c.Discovery.File, strictyaml.Suggest(c.Network, snap.AllNetworks()))
	}
	if nodes := snap.Nodes(c.Network); network && c.Node != "" && !slices.Contains(nodes, c.Node) {
		v.Fail("node", "%s has no node %q on network %q: %s If no workload runs there yet, list it at the network's nodes", c.Discovery.File, c.Node, c.Network, sentence(strictyaml.Suggest(c.Node, nodes)))
	}
	for i, o := range c.Outbound {
		field := fmt.Sprintf("outbound[%d]", i)
		v.Field(field+".workload", c.checkLocal(snap, nameOf, o.Workload))
		v.Field(field+".to", c.checkTarget(snap, o))
	}
	for i, s := range c.Socks {
		v.Field(fmt.Sprintf("socks[%d].workload", i), c.checkLocal(snap, nameOf, s.Workload))
	}
	return v.Err()
}

// checkNames is checkKnown by the discovery file as it is now. left is what that lists
// and cannot be used: no reason not to start, and perhaps that of what is unknown. vain
// is what of c does nothing as long as the file is as it is.
func (c Config) checkNames() (left, vain, err error) {
	if c.Discovery.File == "" {
		return nil, nil, nil // Validate has said so, or gateways will tell
	}
	snap, left, err := c.Discovery.Load()
	if err != nil {
		return nil, nil, err
	}
	if c.Capture.On() {
		vain = errors.Join(c.overlaps(snap), c.capturesNobody(snap))
	}
	vain = errors.Join(c.mistypedTargets(snap), vain, c.strangeTransports(snap))
	return left, vain, c.checkKnown(snap, func(mesh.EndpointID) string { return "" })
}

// overlaps is why no pod of this node could be captured by what discovery has.
func (c Config) overlaps(snap *mesh.Snapshot) error {
	if err := c.Capture.Overlapping(snap, c.Network); err != nil {
		return fmt.Errorf("%w: until then no pod of this node is captured", err)
	}
	return nil
}

// capturesNobody names the entries of capture.namespaces whose workloads are not on this node: a typo, or a pod that has
// gone. It keeps no process from starting, which other pods need.
func (c Config) capturesNobody(snap *mesh.Snapshot) error {
	var v strictyaml.Check
	for i, n := range c.Capture.Namespaces {
		if err := c.checkLocal(snap, func(mesh.EndpointID) string { return "" }, n.Workload); err != nil {
			v.Fail(fmt.Sprintf("capture.namespaces[%d].workload", i), "captures no pod: %w", err)
		}
	}
	return v.Err()
}

// checkLocal refuses the UID of a workload that is not on this node, or, of a node
// that discovery does not know, one that is nowhere.
func (c Config) checkLocal(snap *mesh.Snapshot, nameOf func(mesh.EndpointID) string, uid string) error {
	if uid == "" {
		return nil // Validate has said so
	}
	unknown := !slices.Contains(snap.Nodes(c.Network), c.Node)
	var here, all []string
	for _, w := range snap.Workloads() {
		local := w.Network == c.Network && w.Node == c.Node
		switch {
		case w.UID == uid && (local || unknown):
			return nil
		case w.UID == uid:
			return fmt.Errorf("%q is on node %q of network %q: a node proxy serves workloads of its own node", uid, w.Node, w.Network)
		case local:
			here = append(here, w.UID)
		}
		all = append(all, w.UID)
	}
	for _, network := range snap.AllNetworks() {
		if nameOf(mesh.EndpointIDOf(network, uid)) == uid {
			return fmt.Errorf("%q is on network %q: a node proxy serves workloads of its own node", uid, network)
		}
	}
	if unknown || len(here) == 0 {
		return fmt.Errorf("%s has no workload %q: %s", c.Discovery.File, uid, strictyaml.Suggest(uid, all))
	}
	return fmt.Errorf("%s has no workload %q on this node: %s", c.Discovery.File, uid, strictyaml.Suggest(uid, here))
}

// checkTarget refuses a destination that cannot be: a name, address or port that
// nobody has. That nobody answers there now is no mistake.
func (c Config) checkTarget(snap *mesh.Snapshot, o Outbound) error {
	host, port, err := splitTarget(o.To)
	if err != nil {
		return nil // Validate has said so
	}
	host = canonicalHost(snap, host, c.domain())
	flow := flowTo(host, port)
	flow.Source = &mesh.Workload{Network: c.Network, Node: c.Node}
	_, err = route.Resolve(snap, flow)
	var re *route.Error
	if !errors.As(err, &re) {
		return nil
	}
	switch re.Kind {
	case route.UnknownService:
		if _, ok := links.Canonical(host); ok && c.Federation.Networks != "" {
			return nil // another network may export it
		}
		return fmt.Errorf("%q: %s has no service %q: %s", o.To, c.Discovery.File, host, strictyaml.Suggest(host, hostnames(snap)))
	case route.UnknownPort:
		return fmt.Errorf("%q: %s", o.To, re.Detail)
	case route.NoRoute: // of a network that is not known, nothing can be said
		if a, err := netip.ParseAddr(host); err == nil && snap.ServiceAt(a) == nil && snap.HasNetwork(c.Network) {
			return fmt.Errorf("%q: %s", o.To, re.Detail)
		}
	}
	return nil
}

// mistypedTargets names destinations of listeners that no service has, and that differ little from
// a service. Another network may export them, so that is no mistake.
func (c Config) mistypedTargets(snap *mesh.Snapshot) error {
	var v strictyaml.Check
	for i, o := range c.Outbound {
		host, _, err := splitTarget(o.To)
		if err != nil || c.checkTarget(snap, o) != nil {
			continue
		}
		host = canonicalHost(snap, host, c.domain())
		if near := nearestService(snap, host); near != "" && near != host {
			v.Fail(fmt.Sprintf("outbound[%d].to", i), "%s has no service %q: did you mean %q? If another network exports it, ignore this", c.Discovery.File, host, near)
		}
	}
	return v.Err()
}

// nearestService returns the hostname in snap that is nearest to host by name and namespace: host
// itself if a service has it, "" if none is near. The rest of hostnames is alike, and would make all near.
func nearestService(snap *mesh.Snapshot, host string) string {
	full, short := map[string]string{}, []string(nil)
	key := func(host string) string {
		labels := strings.Split(host, ".")
		return strings.Join(labels[:min(len(labels), 2)], ".")
	}
	for _, h := range hostnames(snap) {
		if h == host {
			return host
		}
		k := key(h)
		if rest := strings.TrimPrefix(host, key(host)); full[k] == "" || h == k+rest {
			full[k] = h // of its aliases the one in the domain of host
		}
		short = append(short, k)
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return ""
	}
	return full[strictyaml.Nearest(key(host), short)]
}

// sentence ends s, so that another sentence may follow.
func sentence(s string) string {
	if strings.HasSuffix(s, "?") {
		return s
	}
	return s + "."
}

func hostnames(snap *mesh.Snapshot) (names []string) {
	for _, s := range snap.Services() {
		names = append(append(names, s.Hostname), s.Aliases...)
	}
	return names
}

// strangeTransports names the networks in lines.transports that neither discovery nor a link can list.
func (c Config) strangeTransports(snap *mesh.Snapshot) error {
	var v strictyaml.Check
	for _, network := range slices.Sorted(maps.Keys(c.Lines.Transports)) {
		if c.Federation.Networks == "" && network != c.Network && !snap.HasNetwork(network) {
			v.Fail("lines.transports", "%q is not a network of %s: %s", network, c.Discovery.File, strictyaml.Suggest(network, snap.AllNetworks()))
		}
	}
	return v.Err()
}
