package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
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

// printedInit is what is said before manifests that are printed: who prints them cannot look
// at the cluster.
const printedInit = `# Keys and certificates of network %s, trust domain %s. Two of them are Secrets: keep this out of repositories.
# kubectl create replaces nothing that the cluster has. kubectl apply does, also keys and roots of another
# directory, which linked networks believe: isthmus init --apply looks before, and refuses.
%s`

func newInitCommand() *cobra.Command {
	var network, domain, dir, at string
	var apply, replace bool
	var k kubectl
	cmd := &cobra.Command{
		Use:   "init --network NAME",
		Short: "Make the keys and certificates of a cluster",
		Long: `init makes the key of a network and the certificate authority of a cluster in a directory,
and gives its cluster what it needs of them, by kubectl, with --apply; without it prints that
as manifests. What the directory has already is used as it is, so that init can be run again,
after isthmus network rotate for example. With --apply a cluster whose key or root the
directory does not have, such as that of another network, is left as it is, unless --replace
says that the network is made anew, and so is one that is a network by another namespace.
Whoever prints manifests has to see to that: kubectl create replaces nothing, kubectl apply does.

The directory has the secrets: keep it where you keep such things. Whoever rotates a key or a
root, or runs init again, needs it; the cluster has them in the Secrets isthmus-network-key
and isthmus-ca.`,
		Example: "  isthmus init --network west --trust-domain west.local --apply --context west\n  isthmus init --network west --trust-domain west.local | kubectl --context west create -f -",
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
		k := k.of(at)
		if apply && !replace {
			if err := replaces(cmd.Context(), k, network, dir); err != nil {
				return err
			}
		}
		if apply {
			if err := elsewhere(cmd.Context(), k); err != nil {
				return err
			}
		}
		text, made, err := initManifests(dir, network, td, k.namespace)
		if err != nil {
			return exit(exitStart, err)
		}
		if !apply {
			if made {
				fmt.Fprintf(cmd.ErrOrStderr(), "isthmus: made %s. If a cluster is network %[2]q already, they are not what it has: name the directory of its keys with --dir\n", keysOf(network, td, dir), network)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), printedInit, network, td, text)
			return exit(exitStart, err)
		}
		said, err := k.apply(cmd.Context(), []byte(text))
		fmt.Fprint(cmd.OutOrStdout(), said)
		if err != nil {
			return err
		}
		word := "uses"
		if made {
			word = "made"
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n%s", word, keysOf(network, td, dir), k.afterInit(network, td))
		return exit(exitStart, err)
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

// keysOf says what a directory has, and where that is.
func keysOf(network string, td spiffeid.TrustDomain, dir string) string {
	return fmt.Sprintf("the key of network %q and the certificate authority of trust domain %q in %s", network, td, absolute(dir))
}

func absolute(dir string) string {
	if path, err := filepath.Abs(dir); err == nil {
		return path
	}
	return dir
}

// afterInit says what is to be kept, and what comes next.
func (k kubectl) afterInit(network string, td spiffeid.TrustDomain) string {
	helm := "{helm}"
	if k.context == "" {
		helm += " --namespace " + quoted(k.namespace)
	}
	return (&place{k: k, network: network, domain: td.Name()}).fill(`Keep that directory where you keep secrets: rotations, and init when it is run again, need it.
Next, unless the chart is there: ` + helm + ` install isthmus helm/isthmus --set network={network},trustDomain={domain} --set-string image.registry=REGISTRY,image.tag=TAG # of your images
then, also after a rotation: isthmus link --contexts {context},OTHER --apply{flags} # docs/kubernetes.md has each step
`)
}

// initManifests makes what is not in dir yet, and returns all that the cluster needs of it.
func initManifests(dir, network string, td spiffeid.TrustDomain, namespace string) (text string, made bool, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", false, err
	}
	keys, caDir := filepath.Join(dir, "network"), filepath.Join(dir, "ca")
	d, err := keyfile.Open(keys)
	kept := err == nil
	switch {
	case !errors.Is(err, fs.ErrNotExist):
	case anyOf(keys, keyfile.ListFile):
		err = fmt.Errorf("%w, though %s is there: put the missing file back; a new key would be believed by nobody who knows this one", err, filepath.Join(keys, keyfile.ListFile))
	default:
		d, err = keyfile.Init(keys, network, rand.Reader)
	}
	if err != nil {
		return "", false, err
	}
	if d.Network != network {
		return "", false, fmt.Errorf("--network %s: the key in %s is of network %s: name another directory with --dir", network, keys, d.Network)
	}
	ca, err := identity.OpenCA(caDir)
	if errors.Is(err, fs.ErrNotExist) && !anyOf(caDir, caFiles...) {
		if kept {
			return "", false, fmt.Errorf("%s has the key of network %s, and there is no certificate authority in %s: put the one back that it had, or make it another one with `isthmus ca init --dir %[3]s --trust-domain %s`, which linked networks believe once they are linked again", keys, network, caDir, td)
		}
		ca, err = identity.InitCA(caDir, td, identity.WithCALifetime(caLifetime))
	}
	if err != nil {
		return "", false, err
	}
	if ca.TrustDomain() != td {
		return "", false, fmt.Errorf("--trust-domain %s: the certificate authority in %s is of %s: name another directory with --dir", td, caDir, ca.TrustDomain())
	}
	key, err := contents(keys, networkFiles...)
	if err != nil {
		return "", false, err
	}
	authority, err := contents(caDir, caFiles...)
	if err != nil {
		return "", false, err
	}
	card := linkcard.Card{Version: linkcard.Version, Network: network, TrustDomain: td.Name(), Roots: linkcard.Bundle(ca.Roots())}
	for _, p := range d.Public() {
		card.Keys = append(card.Keys, p.String())
	}
	return namespaceManifest(namespace) +
		manifest("Secret", namespace, keySecret, key) +
		manifest("Secret", namespace, caSecret, authority) +
		manifest("ConfigMap", namespace, cardMap, map[string]string{cardFile: string(card.Format())}) +
		manifest("ConfigMap", namespace, rootMap, map[string]string{bundleFile: card.Roots}), !kept, nil
}

// What a cluster needs of the two directories. Of a root that signs nothing yet it needs the
// certificate alone, which is in bundle.pem: next-ca-key.pem stays where it was made.
var (
	networkFiles = []string{keyfile.KeyFile, keyfile.NextFile, keyfile.ListFile, keyfile.FinishedFile}
	caFiles      = []string{"ca.pem", "ca-key.pem", "bundle.pem"}
)

// contents are those of these files of a directory that are there.
func contents(dir string, names ...string) (map[string]string, error) {
	out := map[string]string{}
	for _, name := range names {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out[name] = string(b)
	}
	return out, nil
}

// anyOf reports whether a directory has one of these files.
func anyOf(dir string, names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		_, err := os.Lstat(filepath.Join(dir, name))
		return err == nil
	})
}
