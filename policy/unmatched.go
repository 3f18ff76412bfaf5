package policy

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
)

// Unmatched is a policy whose selector selects none of the workloads that are known, so that it changes nothing:
// what it was to close is as open as without it.
type Unmatched struct {
	Policy Name
	Why    string // in words, with the remedy
}

func (u Unmatched) String() string {
	return fmt.Sprintf("%s selects no workload, and changes nothing: %s", u.Policy, u.Why)
}

// Unmatched returns the policies of s whose selector selects none of workloads, by kind, namespace and name. One without
// a selector is not among them, whoever is in its namespace. Labels are looked at once for each different set of those that
// selectors name, so that it costs a look at each workload and, for each policy, one at each such set of its namespace.
func (s *Set) Unmatched(workloads iter.Seq[Workload]) (list []Unmatched) {
	selecting, keys := map[Object]Selector{}, map[string]struct{}{}
	for _, o := range s.Objects() {
		selector := selectorOf(o)
		if len(selector) > 0 {
			selecting[o] = selector
		}
		for k := range selector {
			keys[k] = struct{}{}
		}
	}
	if len(selecting) == 0 {
		return nil
	}
	has := &census{keys: slices.Sorted(maps.Keys(keys)), sets: map[string]map[string]map[string]string{}}
	for w := range workloads {
		has.add(w)
	}
	for o, selector := range selecting {
		if why := s.unmatched(o, selector, has); why != "" {
			list = append(list, Unmatched{o.Name(), why})
		}
	}
	slices.SortFunc(list, func(a, b Unmatched) int { return a.Policy.Compare(b.Policy) })
	return list
}

// Deserted returns the policies of s without a selector in whose namespace none of workloads is, by kind, namespace and name:
// where these are all that there are, as in a file, one that was to close something has a mistake in its namespace. Those of the
// root namespace are for all.
func (s *Set) Deserted(workloads iter.Seq[Workload]) (list []Unmatched) {
	if s == nil {
		return nil
	}
	there := map[string]struct{}{}
	for w := range workloads {
		there[w.Namespace] = struct{}{}
	}
	names := slices.Sorted(maps.Keys(there))
	others := strings.Join(names[:min(len(names), maxNamedValues)], ", ")
	if more := len(names) - maxNamedValues; more > 0 {
		others += fmt.Sprintf(" and %d more", more)
	}
	if others == "" {
		others = "none"
	}
	for _, o := range s.Objects() {
		ns := o.Name().Namespace
		if _, peopled := there[ns]; peopled || ns == s.root || len(selectorOf(o)) > 0 {
			continue
		}
		list = append(list, Unmatched{o.Name(), fmt.Sprintf("there is no workload in namespace %s, and it is for no other: correct metadata.namespace (workloads are in %s), or delete it if its workloads will not come", ns, others)})
	}
	slices.SortFunc(list, func(a, b Unmatched) int { return a.Policy.Compare(b.Policy) })
	return list
}

func selectorOf(o Object) Selector {
	switch o := o.(type) {
	case *Authorization:
		return o.Selector
	case *PeerAuthentication:
		return o.Selector
	}
	return nil
}

// unmatched is why o, which has a selector, is for nobody; "" if it is for somebody.
func (s *Set) unmatched(o Object, selector Selector, has *census) string {
	ns := o.Name().Namespace
	if p, is := o.(*PeerAuthentication); is && ns == s.root && !p.unread {
		return "a PeerAuthentication of the root namespace with a selector is for nobody: move it into the namespace of the workloads that it is for, or take its selector away, and it is for all"
	}
	where, within := "namespace "+ns, ns
	if ns == s.root {
		where, within = "any namespace", everywhere
	}
	sets := has.sets[within]
	if len(sets) == 0 {
		return fmt.Sprintf("there is no workload in %s: correct metadata.namespace, or delete it if its workloads will not come", where)
	}
	for _, labels := range sets {
		if selector.Selects(labels) {
			return ""
		}
	}
	var lacking []string
	for _, k := range slices.Sorted(maps.Keys(selector)) {
		if is := valuesOf(sets, k); !slices.Contains(is, selector[k]) {
			lacking = append(lacking, fmt.Sprintf("%s=%s (%s)", k, selector[k], instead(k, is)))
		}
	}
	const remedy = ": correct spec.selector.matchLabels, or delete it if such workloads will not come"
	if len(lacking) == 0 {
		return fmt.Sprintf("no workload of %s has all of the labels %s together%s", where, labelsOf(selector), remedy)
	}
	return fmt.Sprintf("no workload of %s has the label %s%s", where, strings.Join(lacking, " or "), remedy)
}

// maxNamedValues is how many values of a label a sentence names.
const maxNamedValues = 3

// instead says which values the label key has.
func instead(key string, values []string) string {
	named := values[:min(len(values), maxNamedValues)]
	switch more := len(values) - len(named); {
	case len(named) == 0:
		return "none has a label " + key
	case more > 0:
		return fmt.Sprintf("there are %s and %d more", strings.Join(named, ", "), more)
	default:
		return "there is " + strings.Join(named, ", ")
	}
}

// valuesOf returns those of the label key in sets, in order.
func valuesOf(sets map[string]map[string]string, key string) []string {
	values := map[string]struct{}{}
	for _, labels := range sets {
		if v, has := labels[key]; has {
			values[v] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(values))
}

// labelsOf writes s as kubectl takes it: app=web,tier=front.
func labelsOf(s Selector) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(s)) {
		parts = append(parts, k+"="+s[k])
	}
	return strings.Join(parts, ",")
}

// everywhere is the namespace of all sets of a census.
const everywhere = ""

// census are the different sets of labels, as far as selectors name them, that workloads have.
type census struct {
	keys []string                                // that selectors name
	sets map[string]map[string]map[string]string // by namespace and by what of them is named; one workload's labels of each
}

func (c *census) add(w Workload) {
	var b strings.Builder
	for _, k := range c.keys {
		if v, has := w.Labels[k]; has {
			b.WriteString(k + "\x00" + v + "\x00")
		}
	}
	for _, ns := range []string{w.Namespace, everywhere} {
		in := c.sets[ns]
		if in == nil {
			in = map[string]map[string]string{}
			c.sets[ns] = in
		}
		if _, seen := in[b.String()]; !seen {
			in[b.String()] = w.Labels // it has others too, which no selector names
		}
	}
}
