package policy

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
)

// Answers is a workload, as policies select it, and on which ports its application answers.
type Answers struct {
	Workload
	// Services are the ports of its services, each with that on which the application answers for it.
	Services iter.Seq2[uint16, uint16]
}

// Misported is a policy that names the port of a service, where the application listens on another one: policies go by that,
// so that what it says holds for nobody.
type Misported struct {
	Policy Name
	Port   uint16
	Listen uint16 // on which the application listens
}

// Misported returns the policies of s that name, of the workloads that they are for, the port of a service and not that on
// which the application answers for it, by kind, namespace and name. A port that no service has is not known to be wrong. It
// costs a look at each workload of its namespace for each policy that names ports.
func (s *Set) Misported(workloads iter.Seq[Answers]) (list []Misported) {
	named := map[Object][]uint16{}
	for _, o := range s.Objects() {
		if ports := portsOf(o); len(ports) > 0 {
			named[o] = ports
		}
	}
	if len(named) == 0 {
		return nil
	}
	byNamespace := map[string][]Answers{}
	for w := range workloads {
		byNamespace[w.Namespace] = append(byNamespace[w.Namespace], w)
		byNamespace[everywhere] = append(byNamespace[everywhere], w)
	}
	for o, ports := range named {
		within := o.Name().Namespace
		if within == s.root {
			within = everywhere
		}
		answers, instead := map[uint16]bool{}, map[uint16]uint16{}
		for _, w := range byNamespace[within] {
			if !selectorOf(o).Selects(w.Labels) {
				continue
			}
			for service, listens := range w.Services {
				if answers[listens] = true; service != listens && listens != 0 {
					instead[service] = max(instead[service], listens)
				}
			}
		}
		for _, port := range ports {
			if listens := instead[port]; listens != 0 && !answers[port] && !slices.Contains(ports, listens) {
				list = append(list, Misported{o.Name(), port, listens})
			}
		}
	}
	slices.SortFunc(list, func(a, b Misported) int {
		return cmp.Or(a.Policy.Compare(b.Policy), cmp.Compare(a.Port, b.Port))
	})
	return list
}

func (m Misported) String() string {
	return fmt.Sprintf("%s names port %d, which is that of a service, and its pods listen on %d: policies go by the latter (targetPort), so that what it says of %[2]d holds for nobody: write %[3]d, or both", m.Policy, m.Port, m.Listen)
}

// portsOf are the ports that an object names, in order, each once; those that it is not for are not among them.
func portsOf(o Object) (ports []uint16) {
	switch o := o.(type) {
	case *Authorization:
		for _, r := range o.Rules {
			for _, c := range r {
				for _, m := range c {
					ports = append(ports, m.DestinationPorts.Is...)
				}
			}
		}
	case *PeerAuthentication:
		ports = slices.Collect(maps.Keys(o.Ports))
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}
