package discovery

import (
	"slices"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// Build validates c, fills in defaults and returns the snapshot that it
// describes, or every problem found and no snapshot. It keeps nothing of c.
// Problems come in the order trust domain, networks, gateways, services,
// workloads, and within those in c's order.
func Build(revision uint64, c Config) (*mesh.Snapshot, []Problem) {
	b := builder{
		networks:   make(map[string]at, len(c.Networks)),
		names:      make(map[string]owner, 2*len(c.Services)),
		identities: map[identityKey]spiffeid.ID{},
		members:    make(map[string][]string, len(c.Services)),
	}
	b.trustDomain(c.TrustDomain)
	b.addNetworks(c.Networks)
	b.addGateways(c.Gateways)
	b.addServices(c.Services)
	b.addWorkloads(c.Workloads)
	if len(b.problems) > 0 {
		return nil, b.problems
	}
	return mesh.NewSnapshot(revision, mesh.Parts{
		TrustDomain: b.td.Name(), Networks: meshNetworks(c.Networks),
		Workloads: b.workloads, Services: b.services, Gateways: b.gateways, Members: b.members,
	}), nil
}

// builder holds what has been read so far. Entries with problems are kept too,
// so that one mistake is reported once and not again by all that refer to it.
type builder struct {
	td         spiffeid.TrustDomain
	networks   map[string]at
	names      map[string]owner // hostnames and aliases, lower case
	identities map[identityKey]spiffeid.ID

	gateways  []*mesh.Gateway
	services  []*mesh.Service
	workloads []*mesh.Workload
	members   map[string][]string // hostname → UIDs

	problems []Problem
}

// owner is the service that a name belongs to and where it says so.
type owner struct {
	service *mesh.Service
	at      at
}

type identityKey struct{ namespace, account string }

func (b *builder) trustDomain(name string) {
	if name == "" {
		name = DefaultTrustDomain
	}
	td, err := spiffeid.TrustDomainFromString(name)
	if err != nil || td.Name() != name {
		b.problem(at{"trustDomain"}, name, "is not a SPIFFE trust domain: use lower-case letters, digits, dots, hyphens and underscores, such as %s", DefaultTrustDomain)
		td = spiffeid.RequireTrustDomainFromString(DefaultTrustDomain)
	}
	b.td = td
}

// identity returns spiffe://<td>/ns/<namespace>/sa/<account>, or false after
// noting why there is none.
func (b *builder) identity(path at, namespace, account string) (spiffeid.ID, bool) {
	key := identityKey{namespace, account}
	if id, ok := b.identities[key]; ok {
		return id, true
	}
	id, err := spiffeid.FromSegments(b.td, "ns", namespace, "sa", account)
	if err != nil {
		b.problem(path, account, "cannot be part of a SPIFFE ID: use letters, digits, dots, hyphens and underscores")
		return spiffeid.ID{}, false
	}
	b.identities[key] = id
	return id, true
}

func (b *builder) addNetworks(networks []Network) {
	for i, n := range networks {
		path := at{"networks", i, "name"}
		if !b.label(path, n.Name) {
			continue
		}
		if first, twice := b.networks[n.Name]; twice {
			b.problem(path, n.Name, "is also the name of %s: give each network its own name", fieldOf(first))
			continue
		}
		b.networks[n.Name] = at{"networks", i}
		for j, node := range n.Nodes {
			b.word(at{"networks", i, "nodes", j}, node)
		}
	}
}

func meshNetworks(networks []Network) []mesh.Network {
	out := make([]mesh.Network, len(networks))
	for i, n := range networks {
		out[i] = mesh.Network{Name: n.Name, Nodes: slices.Clone(n.Nodes)}
	}
	return out
}

// network checks a reference to a network.
func (b *builder) network(path at, name string) {
	if name == "" {
		b.problem(path, nil, "is missing: write the name of a network that is listed under networks")
	} else if _, ok := b.networks[name]; !ok {
		b.missing(path, name, "networks", "is not a network of this mesh: correct the name or add it under networks")
	}
}
