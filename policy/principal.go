package policy

import (
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// PointerDomain is the trust domain that in principals is not itself: it points to that of the mesh, whichever that is, as
// istiod has it in the policies of its proxies (istio.io, Trust Domain Migration, best practices).
const PointerDomain = "cluster.local"

// PrincipalIn returns the SPIFFE ID without "spiffe://", or what one begins with, that a principal as it is written stands
// for in a mesh of the trust domain own. Of one whose trust domain is not written whole before a slash, such as
// "*cluster.local/ns/demo/sa/web" or "cluster.local*", that is itself.
func PrincipalIn(own, written string) string {
	if rest, is := strings.CutPrefix(written, PointerDomain+"/"); is {
		return own + "/" + rest
	}
	return written
}

// point puts the trust domain of the mesh into list.
func (p *parser) point(list []Text) {
	if p.own == PointerDomain {
		return
	}
	for i, t := range list {
		if t.How != Exact && t.How != Prefix {
			continue
		}
		if is := PrincipalIn(p.own, t.Value); is != t.Value {
			p.pointing = append(p.pointing, asWritten(t))
			list[i].Value = is
		}
	}
}

// principals reads principals of a source or of a condition. One that is the identity of nobody is a problem and stays as
// it is written: it matches nobody.
func (r *ruleReader) principals(f map[string]node, is, not string, m *Match) bool {
	ok := read(f, is, not, &m.Principals, principal)
	for _, list := range []struct {
		key    string
		values []Text // as many as there are items, or none
		means  string
	}{{is, m.Principals.Is, "matches nobody"}, {not, m.Principals.Not, "leaves nobody out"}} {
		for i, t := range list.values {
			if why := nobodys(t); why != "" {
				f[list.key].below(i, nil).aside(asWritten(t), why+", and "+list.means+": write such as cluster.local/ns/demo/sa/web, of a trust domain, a namespace and a service account")
			}
		}
	}
	r.p.point(m.Principals.Is)
	r.p.point(m.Principals.Not)
	return ok
}

// aside notes what changes nothing of what the rule comes to.
func (n node) aside(value, message string) {
	was := n.p.consequence
	n.p.consequence = ""
	n.note(BadValue, value, "%s", message)
	n.p.consequence = was
}

// The identity of a workload, and of its node's proxy, by segments; an empty one is a name.
var identityForm = []string{"", "ns", "", "sa", "", "node", "", ""}

const segmentsOfWorkload = 5

// nobodys says why no workload can have an identity that t matches; "" if one can.
func nobodys(t Text) string {
	const form = "has not the form of a workload's identity"
	switch t.How {
	case Present:
		return ""
	case Suffix:
		if _, err := spiffeid.FromString("spiffe://x/x" + t.Value); err != nil {
			return form
		}
		return ""
	}
	segments := strings.Split(t.Value, "/")
	if segments[0] == "ns" && len(segments) > 1 {
		return "has no trust domain before ns/"
	}
	for i, s := range segments {
		begun := t.How == Prefix && i == len(segments)-1
		if i >= len(identityForm) || identityForm[i] != "" && s != identityForm[i] && !(begun && strings.HasPrefix(identityForm[i], s)) {
			return form
		}
	}
	whole := t.Value
	switch {
	case t.How == Prefix:
		whole += "x"
	case len(segments) != segmentsOfWorkload && len(segments) != len(identityForm):
		return form
	}
	if _, err := spiffeid.FromString("spiffe://" + whole); err != nil {
		return form
	}
	return ""
}

// asWritten is t in Istio's notation.
func asWritten(t Text) string {
	switch t.How {
	case Prefix:
		return t.Value + "*"
	case Suffix:
		return "*" + t.Value
	case Present:
		return "*"
	}
	return t.Value
}
