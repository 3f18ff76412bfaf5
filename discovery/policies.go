package discovery

import "github.com/isthmus-mesh/isthmus/policy"

// Policy is an AuthorizationPolicy or a PeerAuthentication of Istio, whole, as decoders of YAML
// and JSON give it. Of two of one name the first counts.
type Policy map[string]any

func (p Policy) read(r *reader) reading {
	object, problems := policy.Parse(p)
	for _, x := range problems {
		var value any
		if x.Value != "" {
			value = x.Value
		}
		r.note(x.Out, policyCauses[x.Cause], x.Path, value, "%s", x.Message)
	}
	if object == nil {
		return reading{}
	}
	return reading{policy: object, claims: []claim{{what: policyName, text: object.Name().String(), path: at{"metadata", "name"}}}}
}

var policyCauses = map[policy.Cause]Cause{policy.BadValue: CauseValue, policy.Missing: CauseMissing, policy.Unsupported: CauseUnsupported}
