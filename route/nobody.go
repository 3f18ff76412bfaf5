package route

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// nobody says of each network why none of its workloads can be chosen for the port of
// svc, and what to do where discovery may be wrong.
func (r *resolver) nobody(svc *mesh.Service) string {
	networks := r.snapshot.Networks(svc)
	if len(networks) == 0 {
		return fmt.Sprintf("no workload is a member and no network has a share of it: correct services of its workloads, or name (%s) and namespace (%s) of its share", svc.Name, svc.Namespace)
	}
	const most = 3
	var why []string
	for _, n := range networks[:min(len(networks), most)] {
		why = append(why, r.nobodyOn(svc, n))
	}
	if more := len(networks) - most; more > 0 {
		why = append(why, fmt.Sprintf("and %d networks more", more))
	}
	return strings.Join(why, "; ")
}

// nobodyOn is nobody of one network.
func (r *resolver) nobodyOn(svc *mesh.Service, network string) string {
	share, _ := r.snapshot.Share(svc, network)
	members := len(r.snapshot.Members(svc, network))
	switch own := network == r.flow.Source.Network; {
	case own && members == 0:
		return fmt.Sprintf("a share of network %s counts for nothing on that network itself: list its workloads", network)
	case own && share.Capacity > 0 || !own && !share.Offers(r.plan.Port.Service):
		return fmt.Sprintf("network %s does not offer port %d (%s)", network, r.plan.Port.Service, offered(share.Export))
	case members > 0:
		return fmt.Sprintf("none of its %d on network %s is ready", members, network)
	}
	return fmt.Sprintf("network %s has nobody who is ready (capacity 0 of its share)", network)
}

// offered lists the ports of x.
func offered(x *mesh.Export) string {
	if len(x.Ports) == 0 {
		return "no port of it"
	}
	var ports []string
	for _, p := range x.Ports {
		ports = append(ports, strconv.Itoa(int(p.Port)))
	}
	return "of its ports only " + strings.Join(ports, ", ") + ": correct its ports there, or ask for one of these"
}
