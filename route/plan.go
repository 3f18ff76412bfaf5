package route

import (
	"net/netip"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// Flow is one connection that an application wants.
type Flow struct {
	Source *mesh.Workload
	// Host is the name that was asked for, if any; an IP address counts as Addr.
	Host string
	Port uint16
	Addr netip.AddrPort // a virtual IP or a pod's address; used if Host is empty
}

// Plan is where a Flow may go: to one of Candidates, or to the pod Direct if
// that was addressed itself. It shares memory with the snapshot: do not modify.
type Plan struct {
	Service    *mesh.Service // nil if Direct
	Port       mesh.Port     // of a direct flow both numbers are the pod's port
	Authority  string        // what CONNECT asks for: hostname or address, and the service's port
	Direct     *mesh.Workload
	Undeclared bool // Direct, and no service of that pod has this target port
	Candidates []Candidate
}

// Candidate is one ready workload of the source's own network (Workload), or
// another network's whole share of the service (Network).
type Candidate struct {
	Workload *mesh.Workload
	Network  string
	Gateways []*mesh.Gateway // of Network, at least one; those that are drained are for when no other serves
	Capacity uint32          // of Workload; of Network nominal: what counts while nothing is known of its health
	Rank     int             // see balance.Rank; of Network that of its best gateway that is not drained, if there is one
	// Expect is who may answer the handshake with the pod, sorted: one identity
	// of a Workload, those of the share of a Network, because the gateway chooses
	// which.
	Expect []spiffeid.ID
}
