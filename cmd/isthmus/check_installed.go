package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// errElsewhere ends the checks of a namespace that is not that of the mesh.
var errElsewhere = errors.New("the mesh is in another namespace")

// elsewhere says which namespaces have gateways or a link card, where this one has neither these nor a link card.
func (c *checkup) elsewhere(ctx context.Context, where string, p *place) error {
	var list struct {
		Items []struct{ Metadata struct{ Namespace string } }
	}
	_, err := p.k.list(ctx, &list, "deployments.apps", "--field-selector", "metadata.name=isthmus-gateway")
	if _, err := p.may(err, "whether the mesh is in another namespace ("+checkNamespace.code+")"); err != nil {
		return err
	}
	var others []string
	for _, o := range list.Items {
		others = append(others, o.Metadata.Namespace)
	}
	cards, err := cardsElsewhere(ctx, p.k)
	if err != nil {
		return err
	}
	for _, o := range cards {
		if !slices.Contains(others, o.namespace) {
			others = append(others, o.namespace)
		}
	}
	if len(others) == 0 || slices.Contains(others, p.k.namespace) {
		return nil
	}
	var remedies []string
	for _, n := range others {
		q := *p
		q.k.namespace = n
		remedies = append(remedies, q.fill("isthmus check --contexts {context}{flags}"))
	}
	c.remedied(checkNamespace, where, checkBad, fmt.Sprintf("namespace %s has neither gateways nor a link card; namespace %s has", p.k.namespace, strings.Join(others, " and namespace ")), strings.Join(remedies, "\n"))
	return errElsewhere
}

// installedAs is what the chart has configured a process with.
type installedAs struct{ configMap, network, domain string }

// chart reads how the chart was installed.
func (c *checkup) chartOf(ctx context.Context, x *checkedCluster, p *place) error {
	for _, kind := range kindsOfConfig {
		var m struct {
			Metadata struct{ Annotations map[string]string }
			Data     map[string]string
		}
		there, err := p.k.get(ctx, "configmap", "isthmus-"+kind, &m)
		if may, err := p.may(err, checkInstalled.code); err != nil {
			return err
		} else if !may || !there {
			continue
		}
		config := struct {
			Network     string
			TrustDomain string `yaml:"trustDomain"`
			Capture     struct{ Scope string }
		}{TrustDomain: "cluster.local"}
		if err := yaml.Unmarshal([]byte(m.Data[kind+".yaml"]), &config); err != nil || config.Network == "" {
			continue // the program says so, and does not become ready
		}
		p.release = m.Metadata.Annotations["meta.helm.sh/release-name"]
		p.network, p.domain = config.Network, config.TrustDomain
		x.captures = x.captures || slices.Contains(scopesThatCapture, config.Capture.Scope)
		x.installed = append(x.installed, installedAs{"isthmus-" + kind, config.Network, config.TrustDomain})
	}
	return nil
}

// compared compares the network and the trust domain that the chart was installed with with those
// of the link card: keys and roots of another network prove nothing of this one.
func (c *checkup) compared(x *checkedCluster, p *place) {
	if x.card.Network == "" || len(x.installed) == 0 {
		return
	}
	var wrong, set []string
	var other installedAs
	for _, i := range x.installed {
		for _, f := range [][3]string{{"network", i.network, x.card.Network}, {"trustDomain", i.domain, x.card.TrustDomain}} {
			if f[1] == f[2] {
				continue
			}
			other = i
			wrong = append(wrong, fmt.Sprintf("ConfigMap %s: %s is %q, and %q on the link card (ConfigMap %s)", i.configMap, f[0], f[1], f[2], cardMap))
			if s := f[0] + "=" + f[2]; !slices.Contains(set, s) {
				set = append(set, s)
			}
		}
	}
	remedy := p.fill("{helm} upgrade {release} {chart} --reuse-values --set " + strings.Join(set, ","))
	q := *p
	q.network, q.domain = other.network, other.domain
	c.remedied(checkInstalled, x.where, checkBad, strings.Join(wrong, "\n"), remedy+
		q.fill("\nisthmus init --network {network} --trust-domain {domain} --dir {network}-anew --replace --apply {at} # instead, where the card is wrong"))
}
