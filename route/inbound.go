package route

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// Inbound finds the local port that authority means to the node proxy of local.
// With an address, it must be one of local's own, and svc is nil; with a
// hostname, local must be a member of that service, because nobody else on the
// way has checked it. The error is an *Error of kind BadAuthority, NotLocal,
// WrongAddress, UnknownService, UnknownPort, NotMember or IllegalPort.
func Inbound(s *mesh.Snapshot, local *mesh.Workload, authority string) (port uint16, svc *mesh.Service, err error) {
	t, err := parseAuthority(authority)
	if err != nil {
		return 0, nil, err
	}
	refuse := func(k Kind, detail string) (uint16, *mesh.Service, error) {
		return 0, nil, &Error{k, authority, detail}
	}
	if local == nil {
		return refuse(NotLocal, "the workload is not in discovery")
	}
	port = t.port
	if t.addr.IsValid() {
		if !slices.ContainsFunc(local.Addresses, func(a netip.Addr) bool { return a.Unmap() == t.addr }) {
			return refuse(WrongAddress, fmt.Sprintf("workload %s has another address", local.UID))
		}
	} else {
		if svc = s.Service(t.host); svc == nil {
			return refuse(UnknownService, "no service has this hostname or alias")
		}
		if !slices.Contains(s.ServicesOf(local.UID), svc) {
			return refuse(NotMember, fmt.Sprintf("workload %s does not serve it", local.UID))
		}
		p, ok := svc.Port(t.port)
		if !ok {
			return refuse(UnknownPort, unknownPort(svc))
		}
		port = p.Target
	}
	if mesh.ReservedPort(port) {
		return refuse(IllegalPort, fmt.Sprintf("port %d belongs to the node proxy itself", port))
	}
	return port, svc, nil
}
