package main

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// place is where check looks, by which the commands of remedies are made to work as they are
// printed. What is not known stays a word in capitals. The zero value is that of the docs.
type place struct {
	k        kubectl
	contexts string // of a pair, with a comma
	// Of the chart as it is installed, or else of the link card.
	network, domain string
	release, chart  string
	admin           string // address of a process
	program         string // that reads a configuration
	// refused are rights that whoever runs check does not have, with what was not checked.
	refused []string
}

// place is that of where; that of the docs if nothing is known of it.
func (c *checkup) place(where string) *place {
	if p := c.places[where]; p != nil {
		return p
	}
	return &place{}
}

// at makes where a place of a cluster.
func (c *checkup) at(where string, p *place) *place {
	if c.places == nil {
		c.places = map[string]*place{}
	}
	c.places[where] = p
	return p
}

// fill writes a remedy for its place.
func (p *place) fill(remedy string) string {
	kubectl, helm, at, more := "kubectl", "helm", "--context CONTEXT", ""
	if p.k.context != "" {
		config := ""
		if p.k.kubeconfig != "" {
			config = " --kubeconfig " + quoted(p.k.kubeconfig)
		}
		space := " --namespace " + quoted(p.k.namespace)
		kubectl = quoted(p.k.program) + " --context " + quoted(p.k.context) + config + space
		helm = "helm --kube-context " + quoted(p.k.context) + config + space
		more = config
		if p.k.namespace != defaultNamespace {
			more += space
		}
		if p.k.program != "kubectl" {
			more += " --kubectl " + quoted(p.k.program)
		}
		at = "--context " + quoted(p.k.context) + more
	}
	contexts := "A,B"
	if p.contexts != "" {
		contexts = quoted(p.contexts)
	}
	return strings.NewReplacer("{kubectl}", kubectl, "{helm}", helm, "{at}", at, "{contexts} --apply", contexts+" --apply"+more, "{context}", cmp.Or(quoted(p.k.context), "CONTEXT"), "{flags}", more,
		"{admin}", cmp.Or(p.admin, "ADDRESS"), "{program}", cmp.Or(p.program, "PROGRAM"),
		"{network}", cmp.Or(quoted(p.network), "NETWORK"), "{domain}", cmp.Or(quoted(p.domain), "DOMAIN"),
		"{release}", cmp.Or(quoted(p.release), "isthmus"), "{chart}", cmp.Or(quoted(p.chart), "helm/isthmus"), "{namespace}", cmp.Or(quoted(p.k.namespace), defaultNamespace)).Replace(remedy)
}

const defaultNamespace = "isthmus-system"

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]*$`)

// quoted is a word for a shell.
func quoted(s string) string {
	if plainWord.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// refusal is how an API server says that somebody lacks a right.
var refusal = regexp.MustCompile(`User "([^"]*)" cannot ([a-z]+) (?:resource )?"?([^" ]+)"?(?: in API group "[^"]*")?(?: in the namespace "([^"]*)"| at the cluster scope)?`)

// may tells whether something could be asked: without the right it could not, which is noted
// with what was not checked for it. Another error is returned.
func (p *place) may(err error, unchecked string) (bool, error) {
	if err == nil {
		return true, nil
	}
	if !strings.Contains(err.Error(), "is forbidden") && !strings.Contains(err.Error(), "(Forbidden)") {
		return false, err
	}
	said := err.Error()
	if m := refusal.FindStringSubmatch(said); m != nil {
		where := "in all namespaces"
		if m[4] != "" {
			where = "in namespace " + m[4]
		}
		said = fmt.Sprintf("%q may not %s %s %s", m[1], m[2], m[3], where)
	}
	if said += ": not checked: " + unchecked; !slices.Contains(p.refused, said) {
		p.refused = append(p.refused, said)
	}
	return false, nil
}
