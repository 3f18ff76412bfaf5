package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/isthmus-mesh/isthmus/federation/linkcard"
	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
)

// linking is one cluster, as it is before it is linked or unlinked.
type linking struct {
	kubectl
	card  linkcard.Card
	known keyfile.File
	data  map[string]string // of the ConfigMap with the known networks
	// byHand are the networks whose addresses somebody has written with --address: what their
	// clusters say does not replace these.
	byHand []string
}

// byHandAnnotation keeps byHand at the ConfigMap, with commas between.
const byHandAnnotation = "isthmus.io/addresses-by-hand"

// openLinking reads what a cluster says of itself and knows of others.
func openLinking(ctx context.Context, k kubectl) (*linking, error) {
	card, err := readCard(ctx, k, nil)
	if err != nil {
		return nil, err
	}
	var m configMap
	if _, err := k.get(ctx, "configmap", networksMap, &m); err != nil {
		return nil, err
	}
	l := &linking{kubectl: k, card: card, data: m.Data}
	if text := m.Data[networksFile]; text != "" {
		if l.known, err = keyfile.ParseFile(fmt.Sprintf("%s in ConfigMap %s of context %q", networksFile, networksMap, k.context), []byte(text)); err != nil {
			return nil, exit(exitStart, err)
		}
	}
	l.byHand = m.byHand(l.known)
	return l, nil
}

// byHand are the networks of known whose addresses in it somebody has written with --address.
func (m *configMap) byHand(known keyfile.File) (networks []string) {
	for n := range strings.SplitSeq(m.Metadata.Annotations[byHandAnnotation], ",") {
		if len(addressesOf(known, n)) > 0 {
			networks = append(networks, n)
		}
	}
	return networks
}

// addressesOf are those by which a network is known.
func addressesOf(f keyfile.File, network string) []string {
	for _, n := range f.Networks {
		if n.Name == network {
			return n.Addresses
		}
	}
	return nil
}

// with are the manifests of the cluster when it knows the networks of these cards too, and what
// is to be said of them. Networks in written are dialed where that says, or without any address
// there where their clusters say.
func (l *linking) with(others []linkcard.Card, written map[string][]string, share bool) (text string, notes []string, err error) {
	f, hand := l.known, slices.Clone(l.byHand)
	for _, c := range others {
		d := dialling{network: c.Network, known: addressesOf(f, c.Network), said: c.Addresses, byHand: slices.Contains(hand, c.Network)}
		d.given, d.written = written[c.Network]
		c.Addresses, d.byHand = d.decide()
		hand = slices.DeleteFunc(hand, func(n string) bool { return n == c.Network })
		if d.byHand {
			hand = append(hand, c.Network)
		}
		if f, err = linkcard.Join(f, l.card, c, share); err != nil {
			return "", nil, exit(exitFinding, fmt.Errorf("link context %q: %w", l.context, err))
		}
		for _, n := range d.notes(c.Addresses) {
			notes = append(notes, fmt.Sprintf("context %q: %s", l.context, n))
		}
		if len(addressesOf(f, c.Network)) == 0 {
			notes = append(notes, noAddress(c.Network))
		}
		for _, domain := range linkcard.Beside(f, c) {
			notes = append(notes, fmt.Sprintf("context %q: network %q is believed for trust domain %q too, which is not on its card: if it was on an earlier one, isthmus unlink and isthmus link end that once nobody there is of it", l.context, c.Network, domain))
		}
	}
	more, err := l.clashes(f, written)
	if err != nil {
		return "", nil, err
	}
	return l.manifest(f, hand), append(notes, more...), nil
}

// without are the manifests of the cluster when it has forgotten networks: those that are named
// have to be known, the rest may be forgotten already.
func (l *linking) without(named, gone []string) (string, error) {
	known := make([]string, len(l.known.Networks))
	for i, n := range l.known.Networks {
		known[i] = n.Name
	}
	for _, n := range named {
		if !slices.Contains(known, n) {
			return "", exit(exitFinding, fmt.Errorf("--network %.80q: context %q is not linked with it: known are %q", n, l.context, known))
		}
	}
	f, hand := l.known, slices.Clone(l.byHand)
	for _, n := range slices.Concat(named, gone) {
		f, _ = linkcard.Drop(f, n)
		hand = slices.DeleteFunc(hand, func(h string) bool { return h == n })
	}
	return l.manifest(f, hand), nil
}

func (l *linking) manifest(f keyfile.File, byHand []string) string {
	data := maps.Clone(l.data)
	if data == nil {
		data = map[string]string{}
	}
	data[networksFile] = string(f.Format())
	if len(byHand) == 0 {
		return manifest("ConfigMap", l.namespace, networksMap, data)
	}
	slices.Sort(byHand)
	return manifest("ConfigMap", l.namespace, networksMap, data, fmt.Sprintf("%s: %q", byHandAnnotation, strings.Join(byHand, ",")))
}

// clashes are addresses at which two networks would be dialed. One that is written now is refused.
func (l *linking) clashes(f keyfile.File, written map[string][]string) (notes []string, err error) {
	of := map[string]string{}
	for _, a := range l.card.Addresses {
		of[a] = l.card.Network
	}
	for _, n := range f.Networks {
		for _, a := range n.Addresses {
			other, taken := of[a]
			of[a] = n.Name
			if !taken || other == n.Name {
				continue
			}
			if slices.Contains(written[n.Name], a) || slices.Contains(written[other], a) {
				return nil, exit(exitUsage, fmt.Errorf("--address: %s: context %q has it as an address of networks %q and %q: each has addresses of its own: give another, or unlink the one that is gone", a, l.context, other, n.Name))
			}
			notes = append(notes, fmt.Sprintf("context %q: %s is an address of networks %q and %q, and leads to one of them at most: give the other's with --address NETWORK=ADDRESS", l.context, a, other, n.Name))
		}
	}
	return notes, nil
}

// noAddress is what is said of a network that nobody can dial.
func noAddress(network string) string {
	return fmt.Sprintf("network %q: it has no address, so others do not know where to dial its gateways: link again with --wait 5m if the chart or its load balancer is not there yet, or with --address %[1]s=ADDRESS", network)
}

// dialling is what is known of where a cluster dials a network.
type dialling struct {
	network string
	known   []string // where it did so far
	said    []string // what the network's cluster or card says now
	given   []string // what --address says now
	written bool     // --address names the network, without an address to take what is said
	byHand  bool     // known was given by --address
}

// decide is where the network is dialed from now on, and whether that is given by hand; without
// any, what is known stays.
func (d *dialling) decide() (addresses []string, byHand bool) {
	switch {
	case len(d.given) > 0:
		return d.given, true
	case d.byHand && !d.written:
		return d.known, true
	}
	return d.said, false
}

// notes are what is to be said of a decision: what changes, and what stays though its cluster says
// something else.
func (d *dialling) notes(decided []string) (out []string) {
	list := func(addresses []string) string { return strings.Join(addresses, ", ") }
	switch {
	case len(d.known) == 0:
	case len(decided) == 0:
		out = append(out, fmt.Sprintf("network %q says no address now: it is dialed at %s as before: link again with --wait 5m if the chart or its load balancer is not there yet, or with --address %[1]s=ADDRESS", d.network, list(d.known)))
	case !same(d.known, decided):
		out = append(out, fmt.Sprintf("network %q is dialed at %s from now on, and no longer at %s", d.network, list(decided), list(d.known)))
	}
	if d.byHand && !d.written && len(d.said) > 0 && !same(d.said, d.known) {
		out = append(out, fmt.Sprintf("network %q is dialed at %s, as --address said, though it says %s: --address %[1]s= takes that", d.network, list(d.known), list(d.said)))
	}
	for _, a := range decided {
		if why := nearOnly(a); why != "" {
			out = append(out, fmt.Sprintf("network %q says that it is dialed at %s: that is %s: give --address %[1]s=ADDRESS", d.network, a, why))
		}
	}
	return out
}

// same reports whether two lists have the same addresses.
func same(a, b []string) bool {
	return slices.Equal(slices.Compact(slices.Sorted(slices.Values(a))), slices.Compact(slices.Sorted(slices.Values(b))))
}

// oneCluster refuses cards that are of one network and share a key: names are where each is from.
func oneCluster(names []string, cards []linkcard.Card) error {
	for i, a := range cards {
		for j, b := range cards[:i] {
			if a.Network == b.Network && slices.ContainsFunc(a.Keys, func(key string) bool { return slices.Contains(b.Keys, key) }) {
				return exit(exitFinding, fmt.Errorf("%s and %s are the same cluster: both are network %q with the same key: name each cluster once", names[j], names[i], a.Network))
			}
		}
	}
	return nil
}

// contextList returns the contexts that --contexts names, without spaces around them, and
// rejects one that is named twice.
func contextList(list []string) (out []string, err error) {
	for _, c := range list {
		if c = strings.TrimSpace(c); slices.Contains(out, c) {
			return nil, exit(exitUsage, fmt.Errorf("--contexts: %q is there twice: name each cluster once", c))
		}
		out = append(out, c)
	}
	return out, nil
}
