package policy

import "fmt"

// Pointing is a policy of which principals of [PointerDomain] stand for those of the mesh's own trust domain, another one.
type Pointing struct {
	Policy     Name
	Principals []string // as they are written; do not modify
	own        string
}

// Pointing returns those of s, by namespace and name, where own is the trust domain that it was read in.
func (s *Set) Pointing(own string) (list []Pointing) {
	for _, o := range s.Objects() {
		if a, is := o.(*Authorization); is && len(a.pointing) > 0 {
			list = append(list, Pointing{a.Name(), a.pointing, own})
		}
	}
	return list
}

// String says what comes of it where clients of a linked network are of PointerDomain itself.
func (p Pointing) String() string {
	first, others := p.Principals[0], ""
	if n := len(p.Principals) - 1; n > 0 {
		others = fmt.Sprintf(" (and %d more)", n)
	}
	is := PrincipalIn(p.own, first)
	return fmt.Sprintf("%s does not name the clients of the linked trust domain %s: its principal %s%s stands for %s, of this mesh, as in Istio: write %s if that is meant, and each client of the link that is as *%s/ns/NAMESPACE/sa/ACCOUNT; until then an ALLOW policy does not let those in, and a DENY policy does",
		p.Policy, PointerDomain, first, others, is, is, PointerDomain)
}
