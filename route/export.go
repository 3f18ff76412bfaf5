package route

import (
	"fmt"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// Exported is what a gateway may forward one outer CONNECT to. It shares memory
// with the snapshot: do not modify.
type Exported struct {
	Service *mesh.Service
	Port    mesh.Port
	Members []*mesh.Workload // offered (see mesh.Offer), on the gateway's own network, at least one
}

// FindExport returns the port of the global service that authority names at a
// gateway. Its cost does not depend on the number of workloads. The
// error is an *Error of kind BadAuthority, UnknownService, UnknownPort or NotExported.
func FindExport(s *mesh.Snapshot, network, authority string) (svc *mesh.Service, port mesh.Port, err error) {
	t, err := parseAuthority(authority)
	if err != nil {
		return nil, mesh.Port{}, err
	}
	refuse := func(k Kind, detail string) (*mesh.Service, mesh.Port, error) {
		return nil, mesh.Port{}, &Error{k, authority, detail}
	}
	if t.addr.IsValid() {
		return refuse(BadAuthority, "a gateway forwards to services by hostname, never to addresses")
	}
	if svc = s.Service(t.host); svc == nil {
		return refuse(UnknownService, "no service has this hostname or alias")
	}
	if !svc.Exported() {
		return refuse(NotExported, "the service is not global")
	}
	if !svc.Home && len(s.Members(svc, network)) == 0 {
		return refuse(NotExported, fmt.Sprintf("the service has no workload on network %q", network))
	}
	port, ok := svc.Port(t.port)
	if !ok {
		return refuse(UnknownPort, unknownPort(svc, t.port))
	}
	return svc, port, nil
}

// Export returns the port that authority names and the workloads of network that serve
// it. The error is that of FindExport, or an *Error of kind NoEndpoint if no workload there
// is ready.
func Export(s *mesh.Snapshot, network, authority string) (Exported, error) {
	svc, port, err := FindExport(s, network, authority)
	if err != nil {
		return Exported{}, err
	}
	members := s.Members(svc, network)
	if members = keep(members, svc.Offer(port, members).Has); len(members) == 0 {
		return Exported{}, &Error{NoEndpoint, authority, fmt.Sprintf("the service has no ready workload on network %q", network)}
	}
	return Exported{Service: svc, Port: port, Members: members}, nil
}
