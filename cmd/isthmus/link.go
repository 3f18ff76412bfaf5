package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/isthmus-mesh/isthmus/federation/linkcard"
)

func newLinkCommand() *cobra.Command {
	var contexts, addresses []string
	var apply, share bool
	var wait time.Duration
	var k kubectl
	cmd := &cobra.Command{
		Use:   "link --contexts A,B --apply | link --contexts A CARD… [--apply]",
		Short: "Let networks know each other",
		Long: `link tells clusters what they need of each other: the public key of the network, the
roots of its trust domain, and where its gateways are dialed. Nothing of it is secret, and
no credential of one cluster's API server comes to another.

Of several contexts each is linked with each. Where nobody may ask both API servers, each
side prints its card (isthmus link card) and takes the other's as a file. Without --apply
the manifests are printed, which is of use for one context at a time. Linking again brings
what is there up to date: a rotated key, another address.

A cluster believes another's certificate authority for the trust domain on its card, and for
nothing else. A trust domain that both have, or that another linked network has, is refused
unless the roots are the same too: the authority of either could vouch for every identity of
both. isthmus init --trust-domain gives each its own; --share-trust-domain says that it is
meant.

A network without an address is linked all the same: its gateways have to dial the others
then, and who knew an address of it goes on dialing that. A load balancer, or a gateway's pod
that is dialed at its node, may take minutes to have one: --wait looks until it has, and links
nothing if it has none by then. What the cluster does not say, such as a name that somebody
made for its load balancer or the addresses of a NAT gateway, goes into --address. Later links
keep that, whatever the cluster says; --address NETWORK= takes what it says again.

Exit codes: 0 linked or printed, 1 refused, or --wait is over, 2 usage, 3 a cluster could not
be asked or changed.`,
		Example: "  isthmus link --contexts east,west --apply --wait 5m\n  isthmus link --contexts east,west --apply --address west=203.0.113.7:31008,west=203.0.113.8:31008\n  isthmus link card --context west > west.card\n  isthmus link --contexts east west.card | kubectl --context east apply -f -",
	}
	cmd.Args = cardsOrCommand
	cmd.RunE = func(cmd *cobra.Command, files []string) error {
		contexts, err := contextList(contexts)
		if err != nil {
			return err
		}
		if len(contexts) == 0 || len(contexts)+len(files) < 2 {
			return exit(exitUsage, errors.New("--contexts: name two or more clusters, or one and the cards of others as files"))
		}
		if len(contexts) > 1 && !apply {
			return exit(exitUsage, errors.New("--contexts: without --apply the manifests of one cluster are printed, and there are several contexts: let --apply write to each, or name one context and the cards of the others as files (isthmus link card --context OTHER)"))
		}
		written, err := byNetwork(addresses)
		if err != nil {
			return err
		}
		if wait < 0 {
			return exit(exitUsage, fmt.Errorf("--wait: %v: want a time such as 5m, or 0s not to wait", wait))
		}
		var others []linkcard.Card
		for _, f := range files {
			b, err := os.ReadFile(f)
			if errors.Is(err, fs.ErrNotExist) {
				return exit(exitStart, fmt.Errorf("link card %s: there is no such file; if it is a context, write --contexts %s,%[1]s", f, strings.Join(contexts, ",")))
			} else if err != nil {
				return exit(exitStart, err)
			}
			c, err := linkcard.Parse(f, b)
			if err != nil {
				return exit(exitStart, err)
			}
			others = append(others, c)
		}
		clusters, err := openAll(cmd.Context(), k, contexts)
		if err != nil {
			return err
		}
		var cards []linkcard.Card
		var names []string
		for _, l := range clusters {
			cards, names = append(cards, l.card), append(names, fmt.Sprintf("context %q", l.context))
		}
		cards, names = append(cards, others...), append(names, files...)
		if err := oneCluster(names, cards); err != nil {
			return err
		}
		if err := writtenFor(cards, written); err != nil {
			return err
		}
		for _, l := range clusters {
			if given := written[l.card.Network]; len(given) > 0 {
				l.card.Addresses = given
			}
		}
		// All of it is found out before any cluster is changed, and what no address mends
		// before one is waited for.
		texts, notes, err := linked(clusters, others, written, share)
		if err != nil {
			return err
		}
		if wait > 0 {
			if err := awaitFronts(cmd, clusters, written, wait); err != nil {
				return err
			}
			if texts, notes, err = linked(clusters, others, written, share); err != nil {
				return err
			}
		}
		for _, n := range notes {
			fmt.Fprintf(cmd.ErrOrStderr(), "isthmus: %s\n", n)
		}
		return give(cmd, clusters, texts, apply)
	}
	cmd.Flags().StringSliceVar(&contexts, "contexts", nil, "contexts of the clusters, with commas (required)")
	cmd.Flags().BoolVar(&apply, "apply", false, "apply the manifests by kubectl instead of printing them")
	cmd.Flags().StringSliceVar(&addresses, "address", nil, "NETWORK=ADDRESS: where gateways of a network are dialed, whatever its Service or card says, now and when it is linked again: an IP address or a host name, with a port unless it is 15008; with commas, or several times. NETWORK= alone ends that")
	cmd.Flags().DurationVar(&wait, "wait", 0, "wait until each network has an address, for so long")
	cmd.Flags().BoolVar(&share, "share-trust-domain", false, "believe other roots for a trust domain that is the cluster's own, or another network's")
	kubectlFlags(cmd, &k)
	cmd.AddCommand(newLinkCardCommand())
	return cmd
}

func newLinkCardCommand() *cobra.Command {
	var k kubectl
	var addresses []string
	cmd := &cobra.Command{
		Use:     "card",
		Short:   "Print what other networks need to know of this one",
		Long:    "card prints the link card of a cluster's network: its public key, the roots of its trust domain and the\naddresses of its gateways. Nothing of it is secret; see that nobody changes it on its way.",
		Example: "  isthmus link card --context west > west.card\n  isthmus link card --context west --address gw.west.example.com:15008",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			written, err := dialledAll(addresses)
			if err != nil {
				return err
			}
			c, err := readCard(cmd.Context(), k, written)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(c.Format())
			return exit(exitStart, err)
		},
	}
	cmd.Flags().StringVar(&k.context, "context", "", "context of the cluster; the current one when left out")
	cmd.Flags().StringSliceVar(&addresses, "address", nil, "where its gateways are dialed, instead of what the Service isthmus-gateway says: an IP address or a host name, with a port unless it is 15008; with commas")
	kubectlFlags(cmd, &k)
	return cmd
}

func newUnlinkCommand() *cobra.Command {
	var contexts, networks []string
	var apply bool
	var k kubectl
	cmd := &cobra.Command{
		Use:   "unlink --contexts A,B --apply | unlink --contexts A --network NAME [--apply]",
		Short: "Let networks forget each other",
		Long: `unlink takes back what link has written: of several contexts each forgets each, of one it
forgets the networks that are named. Gateways and node proxies end what leads there within
ten seconds; connections that are open go on until they end or their certificates do.`,
		Example: "  isthmus unlink --contexts east,west --apply\n  isthmus unlink --contexts east --network west | kubectl --context east apply -f -",
		Args:    cobra.NoArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		contexts, err := contextList(contexts)
		switch {
		case err != nil:
			return err
		case len(contexts) == 0 || len(contexts) == 1 && len(networks) == 0:
			return exit(exitUsage, errors.New("--contexts: name two or more clusters, or one and --network"))
		case len(contexts) > 1 && !apply:
			return exit(exitUsage, errors.New("--contexts: without --apply the manifests of one cluster are printed, and there are several contexts: let --apply write to each, or name one context and the others by --network"))
		}
		clusters, err := openAll(cmd.Context(), k, contexts)
		if err != nil {
			return err
		}
		texts := make([]string, len(clusters))
		for i, l := range clusters {
			var gone []string
			for j, o := range clusters {
				if j != i {
					gone = append(gone, o.card.Network)
				}
			}
			if texts[i], err = l.without(networks, gone); err != nil {
				return err
			}
		}
		return give(cmd, clusters, texts, apply)
	}
	cmd.Flags().StringSliceVar(&contexts, "contexts", nil, "contexts of the clusters, with commas (required)")
	cmd.Flags().StringSliceVar(&networks, "network", nil, "networks to forget, with commas")
	cmd.Flags().BoolVar(&apply, "apply", false, "apply the manifests by kubectl instead of printing them")
	kubectlFlags(cmd, &k)
	return cmd
}

// openAll reads the clusters of contexts.
func openAll(ctx context.Context, k kubectl, contexts []string) (out []*linking, err error) {
	for _, c := range contexts {
		l, err := openLinking(ctx, k.of(c))
		if err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	return out, nil
}

// linked are the manifests of clusters that know each other and the networks of these cards, and
// what is to be said, each once.
func linked(clusters []*linking, others []linkcard.Card, written map[string][]string, share bool) (texts, notes []string, err error) {
	for i, l := range clusters {
		cards := slices.Clone(others)
		for j, o := range clusters {
			if j != i {
				cards = append(cards, o.card)
			}
		}
		text, more, err := l.with(cards, written, share)
		if err != nil {
			return nil, nil, err
		}
		texts = append(texts, text)
		for _, n := range more {
			if !slices.Contains(notes, n) {
				notes = append(notes, n)
			}
		}
	}
	if own := clusters[0].card; len(clusters) == 1 && len(own.Addresses) == 0 {
		notes = append(notes, noAddress(own.Network))
	}
	return texts, notes, nil
}

// writtenFor refuses addresses that somebody has written for networks of no card.
func writtenFor(cards []linkcard.Card, written map[string][]string) error {
	names := make([]string, len(cards))
	for i, c := range cards {
		names[i] = c.Network
	}
	for _, network := range slices.Sorted(maps.Keys(written)) {
		if !slices.Contains(names, network) {
			return exit(exitUsage, fmt.Errorf("--address %.80q: no such network is linked here: they are %q", network, names))
		}
	}
	return nil
}

// give prints the manifests of one cluster, or applies those of all.
func give(cmd *cobra.Command, clusters []*linking, texts []string, apply bool) error {
	for i, l := range clusters {
		if !apply {
			if _, err := fmt.Fprint(cmd.OutOrStdout(), texts[i]); err != nil {
				return exit(exitStart, err)
			}
			continue
		}
		said, err := l.apply(cmd.Context(), []byte(texts[i]))
		for line := range strings.Lines(said) {
			fmt.Fprintf(cmd.OutOrStdout(), "%s: %s", l.context, line)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readCard is what a cluster says of its network; addresses stand for what its Service
// says, unless they are nil.
func readCard(ctx context.Context, k kubectl, addresses []string) (linkcard.Card, error) {
	var m configMap
	there, err := k.get(ctx, "configmap", cardMap, &m)
	if err != nil {
		return linkcard.Card{}, err
	}
	if !there || m.Data[cardFile] == "" {
		others, err := cardsElsewhere(ctx, k)
		if err != nil {
			return linkcard.Card{}, err
		}
		missing := fmt.Sprintf("%s has no ConfigMap %s in namespace %s", k.where(), cardMap, k.namespace)
		if len(others) > 0 {
			return linkcard.Card{}, exit(exitStart, fmt.Errorf("%s, and one of network %q in namespace %s: name that with --namespace %[3]s", missing, others[0].network, others[0].namespace))
		}
		return linkcard.Card{}, exit(exitStart, fmt.Errorf("%s: run `%s` first, where NAME and DOMAIN are network and trustDomain of the chart; where init has been run before, with --dir of its directory", missing, (&place{k: k, network: "NAME", domain: "DOMAIN"}).fill("isthmus init --network {network} --trust-domain {domain} --apply {at}")))
	}
	c, err := linkcard.Parse(fmt.Sprintf("ConfigMap %s of context %q", cardMap, k.context), []byte(m.Data[cardFile]))
	if err != nil {
		return c, exit(exitStart, err)
	}
	if addresses == nil {
		f, err := frontOf(ctx, k)
		if err != nil {
			return c, err
		}
		addresses = f.addresses
	}
	c.Addresses = addresses
	if err := c.Check(); err != nil {
		return c, exit(exitUsage, err)
	}
	return c, nil
}
