package main

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
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
	where     string
	card      linkcard.Card
	known     keyfile.File
	byHand    []string // networks of known whose addresses link was given
	roots     []*x509.Certificate
	installed []installedAs // how the chart was
	captures  bool          // so that node proxies capture
	gateways  bool          // there is their Deployment, or it could not be asked for
	// addresses are where its gateways are dialed now, as far as it says itself.
	addresses []string
	// unread is set where the card, or the file of known networks, could not be asked for.
	unread bool
	// lacking are objects of init that are not there, which pods wait for.
	lacking map[string]bool
}

// cluster checks one alone. An error is that it could not be asked; what whoever runs this may
// not ask is a warning.
func (c *checkup) cluster(ctx context.Context, k kubectl, chart string) (*checkedCluster, error) {
	x := &checkedCluster{where: "context " + k.context, lacking: map[string]bool{}}
	p := c.at(x.where, &place{k: k, chart: chart})
	err := c.steps(
		func() error { return c.chartOf(ctx, x, p) },
		func() error { return c.card(ctx, x, p) },
		func() error { return c.secrets(ctx, x, p) },
		func() error { return c.known(ctx, x, p) },
		func() error { return c.rootMap(ctx, x, p) },
		func() error { return c.workloads(ctx, x, p) },
		func() error { return c.leftOut(ctx, x, p) },
		func() error { return c.capturing(ctx, x, p) },
		func() error { return c.socketLB(ctx, x, p) },
		func() error { return c.objects(ctx, p, x.where, time.Now()) },
		func() error { return c.rights(ctx, p, x.where) },
		func() error { return c.address(ctx, x, p) })
	if errors.Is(err, errElsewhere) {
		return x, nil
	}
	return x, err
}

func (c *checkup) steps(list ...func() error) error {
	for _, step := range list {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// allowed says what whoever runs check may not ask of a cluster.
func (c *checkup) allowed(where string) {
	c.add(checkAllowed, where, checkWarning, strings.Join(c.place(where).refused, "\n"))
}

// card reads the link card. A namespace that has neither one nor gateways, where another one has, is
// the wrong one: nothing else of it says anything.
func (c *checkup) card(ctx context.Context, x *checkedCluster, p *place) error {
	var m configMap
	_, err := p.k.get(ctx, "configmap", cardMap, &m)
	if may, err := p.may(err, checkCard.code+", and what others know of this cluster"); !may {
		x.unread = true
		return err
	}
	found := ""
	if x.card, err = linkcard.Parse("ConfigMap "+cardMap, []byte(m.Data[cardFile])); err != nil {
		found = "there is no ConfigMap " + cardMap
		if m.Data != nil {
			found = err.Error()
		} else if len(x.installed) == 0 {
			if err := c.elsewhere(ctx, x.where, p); err != nil {
				return err
			}
		}
	}
	c.add(checkCard, x.where, checkBad, found)
	if c.compared(x, p); x.card.Network != "" {
		p.network, p.domain = x.card.Network, x.card.TrustDomain
	}
	return nil
}

// secrets looks whether those of init are there.
func (c *checkup) secrets(ctx context.Context, x *checkedCluster, p *place) error {
	var missing []string
	for _, s := range []string{keySecret, caSecret} {
		b, err := p.k.run(ctx, nil, "get", "secret", s, "--namespace", p.k.namespace, "--output", "name", "--ignore-not-found")
		if may, err := p.may(err, checkSecrets.code); !may {
			return err
		}
		if len(b) == 0 {
			missing = append(missing, "there is no Secret "+s)
			x.lacking[s] = true
		}
	}
	c.add(checkSecrets, x.where, checkBad, strings.Join(missing, "\n"), checkCard)
	return nil
}

// known reads the file of known networks.
func (c *checkup) known(ctx context.Context, x *checkedCluster, p *place) error {
	var m configMap
	_, err := p.k.get(ctx, "configmap", networksMap, &m)
	if may, err := p.may(err, checkNetworks.code+", and what this cluster knows of others"); !may {
		x.unread = true
		return err
	}
	if text := m.Data[networksFile]; text != "" {
		x.known, err = keyfile.ParseFile(networksFile, []byte(text))
		x.byHand = m.byHand(x.known)
		c.add(checkNetworks, x.where, checkBad, errorText(err))
	}
	return nil
}

// rootMap reads the bundle of a cluster.
func (c *checkup) rootMap(ctx context.Context, x *checkedCluster, p *place) error {
	var m configMap
	there, err := p.k.get(ctx, "configmap", rootMap, &m)
	if may, err := p.may(err, checkRoots.code); !may {
		x.unread = true
		return err
	}
	if !there {
		x.lacking[rootMap] = true
		c.add(checkRoots, x.where, checkBad, "there is no ConfigMap "+rootMap, checkCard, checkSecrets)
		return nil
	}
	c.rootsOf(x, m.Data[bundleFile], time.Now())
	return nil
}

// address looks where the gateways are dialed.
func (c *checkup) address(ctx context.Context, x *checkedCluster, p *place) error {
	f, err := frontOf(ctx, p.k)
	if may, err := p.may(err, checkAddress.code); !may {
		return err
	}
	found := ""
	if x.addresses = f.addresses; len(f.addresses) == 0 {
		found = "Service isthmus-gateway has none: " + f.why
	}
	var after []checkCode
	if !x.gateways { // nor is their Service
		after = append(after, checkGateways)
	}
	c.remedied(checkAddress, x.where, checkWarning, found, strings.Replace(checkAddress.remedy, "service isthmus-gateway", cmp.Or(f.look, "service isthmus-gateway"), 1), after...)
	return nil
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
	if a.card.Network == "" || b.card.Network == "" || a.unread {
		return // that is said already
	}
	where := fmt.Sprintf("%s of %s", a.where, strings.TrimPrefix(b.where, "context "))
	if p := *c.place(a.where); p.k.context != "" {
		p.contexts = p.k.context + "," + c.place(b.where).k.context
		c.at(where, &p)
	}
	if oneCluster([]string{a.where, b.where}, []linkcard.Card{a.card, b.card}) != nil {
		c.remedied(checkName, where, checkBad, fmt.Sprintf("both are network %q with the same key: the contexts are of one cluster", a.card.Network), "name each cluster once, or correct one of the contexts: kubectl config get-contexts")
		return
	}
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
	c.dialled(ctx, where, a, a.known.Networks[i], b)
}

// dialled checks where a cluster dials the gateways of another. What the other does not say
// itself is compared with nothing, and what somebody has given to link stays as it is: the other
// need not know of it.
func (c *checkup) dialled(ctx context.Context, where string, a *checkedCluster, known keyfile.Network, b *checkedCluster) {
	if len(b.addresses) == 0 || slices.Contains(a.byHand, known.Name) {
		return
	}
	found := ""
	switch gone := stale(ctx, known.Addresses, b.addresses, c.lookup); {
	case len(known.Addresses) == 0:
		found = fmt.Sprintf("no address of network %q is known, and it has %s", known.Name, strings.Join(b.addresses, ", "))
	case len(gone) > 0:
		found = fmt.Sprintf("network %q is dialed at %s, which it does not have: it has %s", known.Name, strings.Join(gone, ", "), strings.Join(b.addresses, ", "))
	}
	c.add(checkDialled, where, checkWarning, found)
}
