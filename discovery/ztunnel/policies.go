package ztunnel

import (
	"fmt"
	"net/netip"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/policy"
)

// Authorization is a policy. ztunnel knows no PeerAuthentication: one is a DENY policy.
type Authorization struct {
	Name      string      `yaml:"name"`
	Namespace string      `yaml:"namespace"`
	Scope     string      `yaml:"scope"`
	Action    string      `yaml:"action"`
	DryRun    bool        `yaml:"dryRun"`
	Rules     [][][]Match `yaml:"rules,flow"`
}

// Match is a policy.Match.
type Match struct {
	Namespaces          []Text         `yaml:"namespaces,omitempty"`
	NotNamespaces       []Text         `yaml:"notNamespaces,omitempty"`
	ServiceAccounts     []Account      `yaml:"serviceAccounts,omitempty"`
	NotServiceAccounts  []Account      `yaml:"notServiceAccounts,omitempty"`
	Principals          []Text         `yaml:"principals,omitempty"`
	NotPrincipals       []Text         `yaml:"notPrincipals,omitempty"`
	SourceIPs           []netip.Prefix `yaml:"sourceIps,omitempty"`
	NotSourceIPs        []netip.Prefix `yaml:"notSourceIps,omitempty"`
	DestinationIPs      []netip.Prefix `yaml:"destinationIps,omitempty"`
	NotDestinationIPs   []netip.Prefix `yaml:"notDestinationIps,omitempty"`
	DestinationPorts    []uint16       `yaml:"destinationPorts,omitempty"`
	NotDestinationPorts []uint16       `yaml:"notDestinationPorts,omitempty"`
}

// Account is a service account.
type Account struct {
	Namespace      string `yaml:"namespace"`
	ServiceAccount string `yaml:"serviceAccount"`
}

// Text is a policy.Text, whose kind ztunnel reads from the tag.
type Text policy.Text

// MarshalYAML writes, for example, !Prefix cluster.local/ns/demo/.
func (t Text) MarshalYAML() (any, error) {
	tag := map[policy.How]string{policy.Exact: "!Exact", policy.Prefix: "!Prefix", policy.Suffix: "!Suffix", policy.Present: "!Presence"}[t.How]
	if t.How == policy.Present {
		return &yaml.Node{Kind: yaml.SequenceNode, Tag: tag, Style: yaml.FlowStyle | yaml.TaggedStyle}, nil
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: t.Value, Style: yaml.DoubleQuotedStyle | yaml.TaggedStyle}, nil
}

// police names the policies with selectors that are for w in out, and adds the modes of w to those
// of c.
func (c *Config) police(set *policy.Set, w *mesh.Workload, out *Workload) {
	e := set.For(policy.Workload{Namespace: w.Namespace, Labels: w.Labels})
	for _, a := range e.Authorizations() {
		if len(a.Selector) > 0 {
			out.AuthorizationPolicies = append(out.AuthorizationPolicies, a.Namespace+"/"+a.Called)
		}
	}
	rules := e.StrictAs()
	if rules == nil {
		return
	}
	name := "isthmus_strict" // as istiod, with a character that no name of Kubernetes has
	for _, port := range rules[0][0][0].DestinationPorts.Not {
		name += fmt.Sprintf("_except_%d", port)
	}
	for _, port := range rules[0][0][0].DestinationPorts.Is {
		name += fmt.Sprintf("_on_%d", port)
	}
	for set.Get(policy.Name{Kind: policy.KindAuthorization, Namespace: w.Namespace, Name: name}) != nil { // a file may call one so
		name += "_"
	}
	out.AuthorizationPolicies = append(out.AuthorizationPolicies, w.Namespace+"/"+name)
	if !slices.ContainsFunc(c.Policies, func(a Authorization) bool { return a.Namespace == w.Namespace && a.Name == name }) {
		c.Policies = append(c.Policies, Authorization{Name: name, Namespace: w.Namespace, Scope: "WorkloadSelector", Action: "Deny", Rules: rulesOf(rules)})
	}
}

func authorization(set *policy.Set, a *policy.Authorization) Authorization {
	out := Authorization{Name: a.Called, Namespace: a.Namespace, Scope: "Namespace", Action: "Allow", DryRun: a.DryRun, Rules: rulesOf(a.Rules)}
	switch {
	case len(a.Selector) > 0:
		out.Scope = "WorkloadSelector"
	case a.Namespace == set.Root():
		out.Scope = "Global"
	}
	if a.Action == policy.Deny {
		out.Action = "Deny"
	}
	return out
}

func rulesOf(rules []policy.Rule) [][][]Match {
	out := make([][][]Match, len(rules))
	for i, r := range rules {
		out[i] = make([][]Match, len(r))
		for j, c := range r {
			out[i][j] = make([]Match, len(c))
			for k, m := range c {
				out[i][j][k] = Match{
					texts(m.Namespaces.Is), texts(m.Namespaces.Not), accounts(m.ServiceAccounts.Is), accounts(m.ServiceAccounts.Not), texts(m.Principals.Is), texts(m.Principals.Not),
					m.SourceIPs.Is, m.SourceIPs.Not, m.DestinationIPs.Is, m.DestinationIPs.Not, m.DestinationPorts.Is, m.DestinationPorts.Not,
				}
			}
		}
	}
	return out
}

func texts(list []policy.Text) (out []Text) {
	for _, t := range list {
		out = append(out, Text(t))
	}
	return out
}

func accounts(list []policy.Account) (out []Account) {
	for _, a := range list {
		out = append(out, Account{a.Namespace, a.Name})
	}
	return out
}
