package policy

import (
	"cmp"
	"maps"
	"slices"
)

// DefaultRootNamespace is the root namespace of an Istio that says none.
const DefaultRootNamespace = "istio-system"

// Set is the policies that are in force. It is immutable; a nil Set has none.
type Set struct {
	root  string
	whole bool
	known Revisions
	full  []string
	rules map[string][]*Authorization      // by namespace, by name
	peers map[string][]*PeerAuthentication // by namespace, the oldest first
}

// NewSet returns the set of objects, whose names differ; what is in the namespace root is for
// every namespace. It keeps the objects. In place of more than [MaxOfNamespace] of a namespace there
// is one that denies everything.
func NewSet(root string, objects []Object) *Set {
	s := &Set{root: root, rules: map[string][]*Authorization{}, peers: map[string][]*PeerAuthentication{}}
	costs := map[string]int{}
	for _, o := range objects {
		costs[o.Name().Namespace] += costOfPolicy + len(o.Text())
	}
	for ns, cost := range costs {
		if cost > MaxOfNamespace {
			s.full = append(s.full, ns)
			s.rules[ns] = []*Authorization{tooMany(ns)}
		}
	}
	slices.Sort(s.full)
	for _, o := range objects {
		if len(s.full) > 0 && slices.Contains(s.full, o.Name().Namespace) {
			continue
		}
		switch o := o.(type) {
		case *Authorization:
			s.rules[o.Namespace] = append(s.rules[o.Namespace], o)
		case *PeerAuthentication:
			s.peers[o.Namespace] = append(s.peers[o.Namespace], o)
		}
	}
	for _, list := range s.rules {
		slices.SortFunc(list, func(a, b *Authorization) int { return cmp.Compare(a.Called, b.Called) })
	}
	for _, list := range s.peers {
		slices.SortFunc(list, func(a, b *PeerAuthentication) int {
			return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Called, b.Called))
		})
	}
	return s
}

// tooMany stands for all policies of a namespace.
func tooMany(namespace string) *Authorization {
	tree, _ := Read(Closed(Name{Namespace: namespace, Name: "all"}, "more than 2 MiB of policies"))
	o, _ := Parse(tree)
	return o.(*Authorization)
}

// Full returns the namespaces that have more than [MaxOfNamespace], in order.
func (s *Set) Full() []string {
	if s == nil {
		return nil
	}
	return s.full
}

// WithCluster returns s, of which is known that all policies of the own cluster are in it, as they were at known.
func (s *Set) WithCluster(known Revisions) *Set {
	out := *s
	out.whole, out.known = true, known
	return &out
}

// Known returns what WithCluster was told.
func (s *Set) Known() Revisions {
	if s == nil {
		return Revisions{}
	}
	return s.known
}

// HasCluster reports whether s is WithCluster.
func (s *Set) HasCluster() bool { return s != nil && s.whole }

// Get returns the policy of a name; nil if there is none.
func (s *Set) Get(n Name) Object {
	if s == nil {
		return nil
	}
	if n.Kind == KindPeerAuthentication {
		if i := slices.IndexFunc(s.peers[n.Namespace], func(p *PeerAuthentication) bool { return p.Called == n.Name }); i >= 0 {
			return s.peers[n.Namespace][i]
		}
		return nil
	}
	list := s.rules[n.Namespace]
	if i, found := slices.BinarySearchFunc(list, n.Name, func(a *Authorization, name string) int { return cmp.Compare(a.Called, name) }); found {
		return list[i]
	}
	return nil
}

// Concerns reports whether o, which is in s, is for w, also if another one goes first.
func (s *Set) Concerns(o Object, w Workload) bool {
	ns := o.Name().Namespace
	if ns != w.Namespace && ns != s.root {
		return false
	}
	switch o := o.(type) {
	case *Authorization:
		return o.Selector.Selects(w.Labels)
	case *PeerAuthentication:
		return o.Selector.Selects(w.Labels)
	}
	return false
}

// All returns the policies for w, also those before which others go.
func (s *Set) All(w Workload) (out []Object) {
	if s == nil {
		return nil
	}
	for _, ns := range slices.Compact([]string{s.root, w.Namespace}) {
		for _, a := range s.rules[ns] {
			if a.Selector.Selects(w.Labels) {
				out = append(out, a)
			}
		}
		for _, p := range s.peers[ns] {
			if p.Selector.Selects(w.Labels) {
				out = append(out, p)
			}
		}
	}
	return out
}

// Root returns the root namespace.
func (s *Set) Root() string { return s.root }

// Objects returns all policies, by kind, namespace and name.
func (s *Set) Objects() (all []Object) {
	if s == nil {
		return nil
	}
	for _, list := range s.rules {
		for _, a := range list {
			all = append(all, a)
		}
	}
	for _, list := range s.peers {
		for _, p := range list {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b Object) int { return a.Name().Compare(b.Name()) })
	return all
}

// For returns the policies that are for w. It costs as much as there are policies in the
// namespace of w and in the root namespace.
func (s *Set) For(w Workload) *Effective {
	e := &Effective{}
	if s == nil {
		return e
	}
	namespaces := []string{s.root, w.Namespace}
	if w.Namespace == s.root {
		namespaces = namespaces[1:]
	}
	for _, ns := range namespaces {
		for _, a := range s.rules[ns] {
			if a.Selector.Selects(w.Labels) {
				e.add(a)
			}
		}
	}
	e.modes = s.modesFor(w)
	return e
}

// modesFor returns the modes for w, those that go first first.
func (s *Set) modesFor(w Workload) (out []*PeerAuthentication) {
	first := func(ns string, fits func(*PeerAuthentication) bool) {
		if i := slices.IndexFunc(s.peers[ns], fits); i >= 0 {
			out = append(out, s.peers[ns][i])
		}
	}
	for _, p := range slices.Concat(s.peers[w.Namespace], s.peers[s.root]) {
		if p.unread && p.Selector.Selects(w.Labels) {
			return []*PeerAuthentication{p}
		}
	}
	if w.Namespace != s.root {
		first(w.Namespace, func(p *PeerAuthentication) bool { return len(p.Selector) > 0 && p.Selector.Selects(w.Labels) })
		first(w.Namespace, func(p *PeerAuthentication) bool { return len(p.Selector) == 0 })
	}
	first(s.root, func(p *PeerAuthentication) bool { return len(p.Selector) == 0 })
	return out
}

// Effective is the policies for one workload. It is immutable; the zero value allows everything.
type Effective struct {
	deny, allow []*Authorization
	dryRun      []*Authorization
	allows      []Name // of allow
	modes       []*PeerAuthentication
}

func (e *Effective) add(a *Authorization) {
	switch {
	case a.DryRun:
		e.dryRun = append(e.dryRun, a)
	case a.Action == Deny:
		e.deny = append(e.deny, a)
	default:
		e.allow, e.allows = append(e.allow, a), append(e.allows, a.Name())
	}
}

// Decide says whether c may be, and why.
func (e *Effective) Decide(c Connection) Decision {
	if mode, by := e.mode(c.Destination.Port()); mode == Strict && c.Source.IsZero() {
		return Decision{Verdict: PlainText, Policy: by, Rule: NoRule}
	}
	p := peerOf(c)
	for _, a := range e.deny {
		if i := a.matched(&p); i >= 0 {
			return Decision{Verdict: Denied, Policy: a.Name(), Rule: i}
		}
	}
	for _, a := range e.allow {
		if i := a.matched(&p); i >= 0 {
			return Decision{Verdict: Allowed, Policy: a.Name(), Rule: i}
		}
	}
	if len(e.allow) > 0 {
		return Decision{Verdict: NotAllowed, Rule: NoRule, Among: e.allows}
	}
	return Decision{Verdict: NoPolicy, Rule: NoRule}
}

// mode returns the mode on a port of the application, and whose that is.
func (e *Effective) mode(port uint16) (Mode, Name) {
	for _, p := range e.modes {
		if m := p.Ports[port]; m != Unset && len(p.Selector) > 0 {
			return m, p.Name()
		}
		if p.Mode != Unset {
			return p.Mode, p.Name()
		}
	}
	return Permissive, Name{}
}

// Demands names the PeerAuthentication by which plain text is denied, on all ports or some; none if nobody does.
func (e *Effective) Demands() Name {
	ports := []uint16{0} // nobody's: the mode of the object
	for _, p := range e.modes {
		ports = slices.AppendSeq(ports, maps.Keys(p.Ports))
	}
	slices.Sort(ports)
	for _, port := range ports {
		if mode, who := e.mode(port); mode == Strict {
			return who
		}
	}
	return Name{}
}

// DryRun returns the decisions that policies in dry run would make about c, if they were the only
// ones: those that match.
func (e *Effective) DryRun(c Connection) (out []Decision) {
	p := peerOf(c)
	for _, a := range e.dryRun {
		if i := a.matched(&p); i >= 0 {
			out = append(out, Decision{Verdict: map[Action]Verdict{Allow: Allowed, Deny: Denied}[a.Action], Policy: a.Name(), Rule: i})
		}
	}
	return out
}

// Same reports whether e has the very policies of o.
func (e *Effective) Same(o *Effective) bool {
	return slices.Equal(e.deny, o.deny) && slices.Equal(e.allow, o.allow) && slices.Equal(e.dryRun, o.dryRun) && slices.Equal(e.modes, o.modes)
}

// Authorizations returns the AuthorizationPolicies for the workload, those in dry run among them.
func (e *Effective) Authorizations() []*Authorization {
	return slices.Concat(e.deny, e.allow, e.dryRun)
}

// ByAddress reports whether policies for the workload ask where connections come from.
func (e *Effective) ByAddress() bool {
	return slices.ContainsFunc(e.Authorizations(), func(a *Authorization) bool {
		return slices.ContainsFunc(a.Rules, func(r Rule) bool {
			return slices.ContainsFunc(r, func(c Clause) bool {
				return slices.ContainsFunc(c, func(m Match) bool { return !m.SourceIPs.empty() })
			})
		})
	})
}

// StrictAs returns rules of a DENY policy that deny what the modes do, for who knows no
// PeerAuthentication; none if that is nothing.
func (e *Effective) StrictAs() []Rule {
	var strict, exempt []uint16
	for _, p := range e.modes {
		for _, port := range slices.Sorted(maps.Keys(p.Ports)) {
			if mode, _ := e.mode(port); mode == Strict {
				strict = append(strict, port)
			} else {
				exempt = append(exempt, port)
			}
		}
	}
	m := Match{Principals: Field[Text]{Not: []Text{{How: Present}}}}
	if mode, _ := e.mode(0); mode == Strict {
		m.DestinationPorts.Not = exempt
	} else if m.DestinationPorts.Is = strict; len(strict) == 0 {
		return nil
	}
	return []Rule{{Clause{m}}}
}
