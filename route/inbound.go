package route

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// Scope is what a peer of a pod's node proxy may ask for.
type Scope uint8

const (
	AnyPort       Scope = iota // every port of the pod, as stock node proxies do
	DeclaredPorts              // target ports of services that the pod is a member of
	ExportedPorts              // those of global services: what other networks may reach
)

func (s Scope) String() string {
	return [...]string{"any port", "ports of services", "ports of exported services"}[s]
}

// covers reports whether a port of svc is within the scope.
func (s Scope) covers(svc *mesh.Service) bool { return s != ExportedPorts || svc.Exported() }

// Inbound finds the local port that authority means to the node proxy of local.
// With an address, it must be one of local's own, and svc is nil; with a
// hostname, local must be a member of that service, because nobody else on the
// way has checked it. Both must be within scope. The error is an *Error of kind
// BadAuthority, NotLocal, WrongAddress, UnknownService, UnknownPort, NotMember,
// IllegalPort or NotExported.
func Inbound(s *mesh.Snapshot, local *mesh.Workload, authority string, scope Scope) (port uint16, svc *mesh.Service, err error) {
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
			return refuse(UnknownPort, unknownPort(svc, t.port))
		}
		if !scope.covers(svc) {
			return refuse(NotExported, "the service is not global")
		}
		if port = local.Target(p); port == 0 {
			return refuse(UnknownPort, fmt.Sprintf("workload %s has no port %q", local.UID, p.TargetName))
		}
	}
	if mesh.ReservedPort(port) {
		return refuse(IllegalPort, fmt.Sprintf("port %d belongs to the node proxy itself", port))
	}
	if t.addr.IsValid() && scope != AnyPort && !offers(s, local, port, scope) {
		return refuse(NotExported, fmt.Sprintf("the peer may ask for %s only, and port %d of workload %s is none", scope, port, local.UID))
	}
	return port, svc, nil
}

// InboundAddress returns which of the addresses of local authority, which Inbound has taken, leads to: the one that it
// names, or the first if it names a service.
func InboundAddress(local *mesh.Workload, authority string) netip.Addr {
	if t, err := parseAuthority(authority); err == nil && t.addr.IsValid() {
		return t.addr
	}
	return local.Addresses[0].Unmap()
}

// offers reports whether port is a target port of a service of local within scope.
func offers(s *mesh.Snapshot, local *mesh.Workload, port uint16, scope Scope) bool {
	return slices.ContainsFunc(s.ServicesOf(local.UID), func(svc *mesh.Service) bool {
		return scope.covers(svc) && slices.ContainsFunc(svc.Ports, func(p mesh.Port) bool { return local.Target(p) == port })
	})
}
