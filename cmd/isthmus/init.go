package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/federation/linkcard"
	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
	"github.com/isthmus-mesh/isthmus/identity"
)

// caLifetime is that of the root that init makes.
const caLifetime = 10 * 365 * 24 * time.Hour

func newInitCommand() *cobra.Command {
	var network, domain, dir, at string
	var apply, replace bool
	var k kubectl
	cmd := &cobra.Command{
		Use:   "init --network NAME",
		Short: "Make the keys and certificates of a cluster, as manifests",
		Long: `init makes the key of a network and the certificate authority of a cluster in a directory,
and prints what its cluster needs of them: pipe it to kubectl apply -f -, or let --apply
do that. What the directory has already is used as it is, so that init can be run again,
after isthmus network rotate for example. With --apply a cluster whose key or root the
directory does not have is left as it is, unless --replace says that the network is made anew.

The directory has the secrets: keep it where you keep such things. Whoever rotates a key or a
root, or runs init again, needs it; the cluster has them in the Secrets isthmus-network-key
and isthmus-ca.`,
		Example: "  isthmus init --network west | kubectl --context west apply -f -\n  isthmus init --network west --apply --context west",
		Args:    cobra.NoArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := discovery.NetworkName(network); err != nil {
			return exit(exitUsage, fmt.Errorf("--network %.80q: %w", network, err))
		}
		td, err := spiffeid.TrustDomainFromString(domain)
		if err != nil {
			return exit(exitUsage, fmt.Errorf("--trust-domain %q: %w: want a name such as cluster.local", domain, err))
		}
		if dir == "" {
			dir = network
		}
		if ca, err := identity.OpenCA(filepath.Join(dir, "ca")); err == nil && !cmd.Flags().Changed("trust-domain") {
			td = ca.TrustDomain()
		}
		if apply && !replace {
			if err := replaces(cmd.Context(), k.of(at), dir); err != nil {
				return err
			}
		}
		text, err := initManifests(dir, network, td, k.namespace)
		if err != nil {
			return exit(exitStart, err)
		}
		if !apply {
			_, err = fmt.Fprint(cmd.OutOrStdout(), text)
			return exit(exitStart, err)
		}
		said, err := k.of(at).apply(cmd.Context(), []byte(text))
		fmt.Fprint(cmd.OutOrStdout(), said)
		return err
	}
	f := cmd.Flags()
	f.StringVar(&network, "network", "", "name of the cluster's network, as other clusters will know it (required)")
	f.StringVar(&domain, "trust-domain", "cluster.local", "trust domain of its identities, which the chart has to have too; that of the directory when left out and there is one")
	f.StringVar(&dir, "dir", "", "directory of the keys; the network's name when left out")
	f.BoolVar(&apply, "apply", false, "apply the manifests by kubectl instead of printing them")
	f.BoolVar(&replace, "replace", false, "with --apply: replace another key or root that the cluster has")
	f.StringVar(&at, "context", "", "with --apply: context of the cluster; the current one when left out")
	kubectlFlags(cmd, &k)
	_ = cmd.MarkFlagRequired("network")
	_ = cmd.MarkFlagDirname("dir")
	return cmd
}

// initManifests makes what is not in dir yet, and returns all that the cluster needs of it.
func initManifests(dir, network string, td spiffeid.TrustDomain, namespace string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	keys, caDir := filepath.Join(dir, "network"), filepath.Join(dir, "ca")
	d, err := keyfile.Open(keys)
	if errors.Is(err, fs.ErrNotExist) {
		d, err = keyfile.Init(keys, network, rand.Reader)
	}
	if err != nil {
		return "", err
	}
	if d.Network != network {
		return "", fmt.Errorf("--network %s: the key in %s is of network %s: name another directory with --dir", network, keys, d.Network)
	}
	ca, err := identity.OpenCA(caDir)
	if errors.Is(err, fs.ErrNotExist) {
		ca, err = identity.InitCA(caDir, td, identity.WithCALifetime(caLifetime))
	}
	if err != nil {
		return "", err
	}
	if ca.TrustDomain() != td {
		return "", fmt.Errorf("--trust-domain %s: the certificate authority in %s is of %s: name another directory with --dir", td, caDir, ca.TrustDomain())
	}
	key, err := contents(keys)
	if err != nil {
		return "", err
	}
	authority, err := contents(caDir)
	if err != nil {
		return "", err
	}
	card := linkcard.Card{Version: linkcard.Version, Network: network, TrustDomain: td.Name(), Roots: linkcard.Bundle(ca.Roots())}
	for _, p := range d.Public() {
		card.Keys = append(card.Keys, p.String())
	}
	return namespaceManifest(namespace) +
		manifest("Secret", namespace, keySecret, key) +
		manifest("Secret", namespace, caSecret, authority) +
		manifest("ConfigMap", namespace, cardMap, map[string]string{cardFile: string(card.Format())}) +
		manifest("ConfigMap", namespace, rootMap, map[string]string{bundleFile: card.Roots}), nil
}

// contents are the files of a directory, but for hidden ones.
func contents(dir string) (map[string]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, e := range entries {
		if !e.Type().IsRegular() || e.Name()[0] == '.' {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		out[e.Name()] = string(b)
	}
	return out, nil
}
