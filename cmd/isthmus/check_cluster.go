package main

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/linkcard"
	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
)

// rootsEndSoon is when check warns of a root that ends.
const rootsEndSoon = 30 * 24 * time.Hour

// checkedCluster is what check has read of one.
type checkedCluster struct {
	where string
	card  linkcard.Card
	known keyfile.File
	roots []*x509.Certificate
	// addresses are where its gateways are dialled now, as far as it says itself.
	addresses []string
}

// cluster checks one alone. An error is that it could not be asked.
func (c *checkup) cluster(ctx context.Context, k kubectl) (*checkedCluster, error) {
	x := &checkedCluster{where: "context " + k.context}
	var card, roots, networks configMap
	for _, m := range []struct {
		name string
		into *configMap
	}{{cardMap, &card}, {rootMap, &roots}, {networksMap, &networks}} {
		if _, err := k.get(ctx, "configmap", m.name, m.into); err != nil {
			return nil, err
		}
	}
	found := ""
	var err error
	if x.card, err = linkcard.Parse("ConfigMap "+cardMap, []byte(card.Data[cardFile])); err != nil {
		found = "there is no ConfigMap " + cardMap
		if card.Data != nil {
			found = err.Error()
		}
	}
	c.add(checkCard, x.where, checkBad, found)
	var missing []string
	for _, s := range []string{keySecret, caSecret} {
		b, err := k.run(ctx, nil, "get", "secret", s, "--namespace", k.namespace, "--output", "name", "--ignore-not-found")
		if err != nil {
			return nil, err
		}
		if len(b) == 0 {
			missing = append(missing, "there is no Secret "+s)
		}
	}
	c.add(checkSecrets, x.where, checkBad, strings.Join(missing, "\n"))
	if text := networks.Data[networksFile]; text != "" {
		x.known, err = keyfile.ParseFile(networksFile, []byte(text))
		c.add(checkNetworks, x.where, checkBad, errorText(err))
	}
	c.rootsOf(x, roots.Data[bundleFile], time.Now())
	if err := c.workloads(ctx, k, x.where); err != nil {
		return nil, err
	}
	if err := c.objects(ctx, k, x.where, time.Now()); err != nil {
		return nil, err
	}
	if err := c.rights(ctx, k, x.where); err != nil {
		return nil, err
	}
	f, err := frontOf(ctx, k)
	if err != nil {
		return nil, err
	}
	x.addresses, found = f.addresses, ""
	if len(f.addresses) == 0 {
		found = "Service isthmus-gateway has none: " + f.why
	}
	c.add(checkAddress, x.where, checkWarning, found)
	return x, nil
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// rootsOf checks the bundle of a cluster.
func (c *checkup) rootsOf(x *checkedCluster, bundle string, now time.Time) {
	var err error
	if x.roots, err = linkcard.Certificates(bundle); err != nil {
		c.add(checkRoots, x.where, checkBad, fmt.Sprintf("%s of ConfigMap %s: %v", bundleFile, rootMap, err))
		return
	}
	var bad, soon []string
	own, _ := linkcard.Certificates(x.card.Roots)
	for _, w := range own {
		if !slices.ContainsFunc(x.roots, w.Equal) {
			bad = append(bad, fmt.Sprintf("%q is missing", w.Subject))
		}
	}
	for _, r := range x.roots {
		switch left := r.NotAfter.Sub(now); {
		case left <= 0:
			bad = append(bad, fmt.Sprintf("%q has ended on %s", r.Subject, r.NotAfter.UTC().Format(time.DateOnly)))
		case r.NotBefore.After(now):
			bad = append(bad, fmt.Sprintf("%q begins on %s", r.Subject, r.NotBefore.UTC().Format(time.RFC3339)))
		case left < rootsEndSoon:
			soon = append(soon, fmt.Sprintf("%q ends on %s", r.Subject, r.NotAfter.UTC().Format(time.DateOnly)))
		}
	}
	level := checkBad
	if len(bad) == 0 {
		level = checkWarning
	}
	c.add(checkRoots, x.where, level, strings.Join(append(bad, soon...), "\n"))
}

// pair checks what a knows of b.
func (c *checkup) pair(ctx context.Context, a, b *checkedCluster) {
	if a.card.Network == "" || b.card.Network == "" {
		return // that is said already
	}
	where := fmt.Sprintf("%s of %s", a.where, strings.TrimPrefix(b.where, "context "))
	if a.card.Network == b.card.Network {
		c.add(checkName, where, checkBad, fmt.Sprintf("both are network %q", a.card.Network))
		return
	}
	c.add(checkName, where, checkBad, "")
	found := ""
	foreign := func(r *x509.Certificate) bool { return !slices.ContainsFunc(a.roots, r.Equal) }
	list, _ := linkcard.Certificates(b.card.Roots)
	if a.card.TrustDomain == b.card.TrustDomain && slices.ContainsFunc(list, foreign) {
		found = fmt.Sprintf("both are of %q: the authority of either can vouch for every identity of both", a.card.TrustDomain)
	}
	c.add(checkDomain, where, checkWarning, found)
	i := slices.IndexFunc(a.known.Networks, func(n keyfile.Network) bool { return n.Name == b.card.Network })
	if i < 0 {
		c.add(checkLinked, where, checkBad, fmt.Sprintf("network %q is not in its file of known networks", b.card.Network))
		return
	}
	c.add(checkLinked, where, checkBad, "")
	var wrong []string
	for n, key := range b.card.Keys {
		if !slices.Contains(a.known.Networks[i].Keys, key) {
			wrong = append(wrong, fmt.Sprintf("key %d of network %q is not known", n+1, b.card.Network))
		}
	}
	level := checkWarning
	if len(wrong) == len(b.card.Keys) {
		level = checkBad
	}
	c.add(checkKeys, where, level, strings.Join(wrong, "\n"))
	wrong = nil
	var believed []*x509.Certificate
	if a.card.TrustDomain == b.card.TrustDomain {
		believed = slices.Clone(a.roots)
	}
	for _, t := range a.known.Networks[i].TrustBundles {
		if t.TrustDomain == b.card.TrustDomain {
			more, _ := linkcard.Certificates(t.Roots)
			believed = append(believed, more...)
		}
	}
	for _, r := range list {
		if !slices.ContainsFunc(believed, r.Equal) {
			wrong = append(wrong, fmt.Sprintf("%q is not among the roots that it believes for %s", r.Subject, b.card.TrustDomain))
		}
	}
	c.add(checkTrusted, where, checkBad, strings.Join(wrong, "\n"))
	c.dialled(ctx, where, a.known.Networks[i], b)
}

// dialled checks where a cluster dials the gateways of another. What the other does not say
// itself is compared with nothing.
func (c *checkup) dialled(ctx context.Context, where string, known keyfile.Network, b *checkedCluster) {
	if len(b.addresses) == 0 {
		return
	}
	found := ""
	switch gone := stale(ctx, known.Addresses, b.addresses, c.lookup); {
	case len(known.Addresses) == 0:
		found = fmt.Sprintf("no address of network %q is known, and it has %s", known.Name, strings.Join(b.addresses, ", "))
	case len(gone) > 0:
		found = fmt.Sprintf("network %q is dialled at %s, which it does not have: it has %s", known.Name, strings.Join(gone, ", "), strings.Join(b.addresses, ", "))
	}
	c.add(checkDialled, where, checkWarning, found)
}
