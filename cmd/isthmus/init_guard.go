package main

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/isthmus-mesh/isthmus/federation/linkcard"
	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
	"github.com/isthmus-mesh/isthmus/identity"
)

// replaces says what of a cluster init would replace by what dir does not share: other
// networks believe the keys and roots that are there. A step of a rotation shares a key, and
// believes the root that signs. Where the Secret of a key or a root is gone, the link card has
// its public half still.
func replaces(ctx context.Context, k kubectl, network, dir string) error {
	card, err := ownCard(ctx, k)
	if err != nil {
		return err
	}
	key, of, err := otherKey(ctx, k, card, filepath.Join(dir, "network"))
	if err != nil {
		return err
	}
	root, err := otherRoot(ctx, k, card, filepath.Join(dir, "ca"))
	if err != nil {
		return err
	}
	found := slices.DeleteFunc([]string{key, root}, func(s string) bool { return s == "" })
	if len(found) == 0 {
		return nil
	}
	at := "init of " + k.where()
	if of != "" && of != network {
		return exit(exitFinding, fmt.Errorf("%s: its cluster is network %q already: %s: name the context of network %q with --context, or this network with --network %[2]s, or say --replace to make the cluster network %[4]q, which networks that are linked with it do not believe until they unlink and link it again", at, of, strings.Join(found, "; "), network))
	}
	missing := absolute(dir)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		missing += ", which is not there yet,"
	}
	return exit(exitFinding, fmt.Errorf("%s: %s, and %s does not have that: use the directory that made them (--dir), or say --replace to make the network anew, which linked networks refuse until they unlink and link it again", at, strings.Join(found, "; "), missing))
}

// elsewhere refuses a cluster that is a network already by another namespace.
func elsewhere(ctx context.Context, k kubectl) error {
	others, err := cardsElsewhere(ctx, k)
	if err != nil || len(others) == 0 {
		return err
	}
	o := others[0]
	at, kubectl := k, "{kubectl}"
	if at.namespace = o.namespace; k.context == "" {
		kubectl += " --namespace " + quoted(o.namespace)
	}
	return exit(exitFinding, fmt.Errorf("init of %s: its cluster is network %q already, in namespace %s: a cluster is one network: name another context with --context, or that namespace with --namespace %[3]s; if that is given up, before: %s", k.where(), o.network, o.namespace, (&place{k: at}).fill(kubectl+" delete configmap "+cardMap)))
}

// cardElsewhere is a link card in a namespace that is not asked.
type cardElsewhere struct{ namespace, network string }

// cardsElsewhere are those that can be read. Who may not look there has none: a right in the own
// namespace is enough.
func cardsElsewhere(ctx context.Context, k kubectl) (out []cardElsewhere, err error) {
	b, err := k.run(ctx, nil, "get", "configmaps", "--all-namespaces", "--field-selector", "metadata.name="+cardMap, "--output", "json")
	if err != nil {
		return nil, nil
	}
	var list struct{ Items []configMap }
	if len(b) > 0 {
		if err := json.Unmarshal(b, &list); err != nil {
			return nil, exit(exitStart, fmt.Errorf("ConfigMaps %s of %s: %w", cardMap, k.where(), err))
		}
	}
	for _, m := range list.Items {
		if c, err := linkcard.Parse(cardMap, []byte(m.Data[cardFile])); err == nil && m.Metadata.Namespace != k.namespace {
			out = append(out, cardElsewhere{m.Metadata.Namespace, c.Network})
		}
	}
	return out, nil
}

// ownCard is the link card of a cluster; nothing if it has none that can be read.
func ownCard(ctx context.Context, k kubectl) (linkcard.Card, error) {
	var m configMap
	if _, err := k.get(ctx, "configmap", cardMap, &m); err != nil {
		return linkcard.Card{}, err
	}
	if c, err := linkcard.Parse(cardMap, []byte(m.Data[cardFile])); err == nil {
		return c, nil
	}
	return linkcard.Card{}, nil
}

// otherKey says which key of its network a cluster has that dir does not, and of which network it is.
func otherKey(ctx context.Context, k kubectl, card linkcard.Card, dir string) (found, network string, err error) {
	data, err := k.secret(ctx, keySecret)
	if err != nil {
		return "", "", err
	}
	there, where := keyfile.File{}, "Secret "+keySecret
	switch {
	case data[keyfile.ListFile] != "":
		if there, err = keyfile.ParseFile(keyfile.ListFile+" of "+where, []byte(data[keyfile.ListFile])); err != nil {
			return "", "", exit(exitStart, err)
		}
	case data[keyfile.KeyFile] != "":
		if sameFile(filepath.Join(dir, keyfile.KeyFile), data[keyfile.KeyFile]) {
			return "", "", nil
		}
		return fmt.Sprintf("%s has a key of a network, and no %s that says of which", where, keyfile.ListFile), card.Network, nil
	case card.Network != "":
		there.Networks = []keyfile.Network{{Name: card.Network, Keys: card.Keys}}
		where = fmt.Sprintf("there is no %s, but ConfigMap %s", where, cardMap)
	}
	var own []string
	switch d, err := keyfile.Open(dir); {
	case err == nil:
		for _, key := range d.Public() {
			own = append(own, key.String())
		}
	case !errors.Is(err, fs.ErrNotExist):
		return "", "", exit(exitStart, err)
	}
	for _, n := range there.Networks {
		if !slices.ContainsFunc(own, func(key string) bool { return slices.Contains(n.Keys, key) }) {
			return fmt.Sprintf("%s has the key of network %q, %s", where, n.Name, strings.Join(n.Keys, ", ")), n.Name, nil
		}
	}
	return "", "", nil
}

// otherRoot says which root a cluster has that dir does not.
func otherRoot(ctx context.Context, k kubectl, card linkcard.Card, dir string) (found string, err error) {
	data, err := k.secret(ctx, caSecret)
	if err != nil {
		return "", err
	}
	text, where := data["ca.pem"], "Secret "+caSecret
	switch {
	case text != "":
	case data["ca-key.pem"] != "":
		if sameFile(filepath.Join(dir, "ca-key.pem"), data["ca-key.pem"]) {
			return "", nil
		}
		return fmt.Sprintf("%s has the key of a root, and no ca.pem that says of which", where), nil
	case card.Roots != "":
		text, where = card.Roots, fmt.Sprintf("there is no %s, but ConfigMap %s", where, cardMap)
	default:
		return "", nil
	}
	there, err := linkcard.Certificates(text)
	if err != nil {
		return "", exit(exitStart, fmt.Errorf("%s: %w", where, err))
	}
	var own []*x509.Certificate
	switch ca, err := identity.OpenCA(dir); {
	case err == nil:
		own = ca.Roots()
	case !errors.Is(err, fs.ErrNotExist):
		return "", exit(exitStart, err)
	}
	if slices.ContainsFunc(own, there[0].Equal) {
		return "", nil
	}
	return fmt.Sprintf("%s has the root %q of %s", where, there[0].Subject, trustDomainOf(there[0])), nil
}

func sameFile(path, text string) bool {
	b, err := os.ReadFile(path)
	return err == nil && string(b) == text
}

// trustDomainOf is the one that a root names.
func trustDomainOf(c *x509.Certificate) string {
	if len(c.URIs) == 0 {
		return "no trust domain"
	}
	return "trust domain " + c.URIs[0].Host
}

// secret is the data of a Secret of the namespace; empty if there is none.
func (k kubectl) secret(ctx context.Context, name string) (map[string]string, error) {
	var s configMap
	if _, err := k.get(ctx, "secret", name, &s); err != nil {
		return nil, err
	}
	out := map[string]string{}
	for file, text := range s.Data {
		b, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, exit(exitStart, fmt.Errorf("%s of Secret %s: %w", file, name, err))
		}
		out[file] = string(b)
	}
	return out, nil
}
