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

// Export finds what authority means to a gateway of network: a port of a global
// service that has members there, and nothing else. The error is an *Error of
// kind BadAuthority, UnknownService, UnknownPort, NotExported or NoEndpoint.
func Export(s *mesh.Snapshot, network, authority string) (Exported, error) {
	t, err := parseAuthority(authority)
	if err != nil {
		return Exported{}, err
	}
	refuse := func(k Kind, detail string) (Exported, error) { return Exported{}, &Error{k, authority, detail} }
	if t.addr.IsValid() {
		return refuse(BadAuthority, "a gateway forwards to services by hostname, never to addresses")
	}
	svc := s.Service(t.host)
	if svc == nil {
		return refuse(UnknownService, "no service has this hostname or alias")
	}
	if !svc.Exported() {
		return refuse(NotExported, "the service is not global")
	}
	members := s.Members(svc, network)
	if len(members) == 0 {
		return refuse(NotExported, fmt.Sprintf("the service has no workload on network %q", network))
	}
	port, ok := svc.Port(t.port)
	if !ok {
		return refuse(UnknownPort, unknownPort(svc, t.port))
	}
	if members = keep(members, svc.Offer(port, members).Has); len(members) == 0 {
		return refuse(NoEndpoint, fmt.Sprintf("the service has no ready workload on network %q", network))
	}
	return Exported{Service: svc, Port: port, Members: members}, nil
}
