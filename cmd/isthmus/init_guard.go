package main

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/isthmus-mesh/isthmus/federation/linkcard"
	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
	"github.com/isthmus-mesh/isthmus/identity"
)

// replaces says which Secrets of a cluster init would replace by what dir does not share:
// other networks believe the keys and roots that are there. A step of a rotation shares a
// key, and believes the root that signs.
func replaces(ctx context.Context, k kubectl, dir string) error {
	var found []string
	data, err := k.secret(ctx, keySecret)
	if err != nil {
		return err
	}
	if text := data["network.yaml"]; text != "" {
		f, err := keyfile.ParseFile("network.yaml of Secret "+keySecret, []byte(text))
		if err != nil {
			return exit(exitStart, err)
		}
		d, err := keyfile.Open(filepath.Join(dir, "network"))
		var own []string
		switch {
		case err == nil:
			for _, key := range d.Public() {
				own = append(own, key.String())
			}
		case !errors.Is(err, fs.ErrNotExist):
			return exit(exitStart, err)
		}
		for _, n := range f.Networks {
			if !slices.ContainsFunc(own, func(key string) bool { return slices.Contains(n.Keys, key) }) {
				found = append(found, fmt.Sprintf("Secret %s has the key of network %q, %s", keySecret, n.Name, strings.Join(n.Keys, ", ")))
			}
		}
	}
	if data, err = k.secret(ctx, caSecret); err != nil {
		return err
	}
	if text := data["ca.pem"]; text != "" {
		there, err := linkcard.Certificates(text)
		if err != nil {
			return exit(exitStart, fmt.Errorf("ca.pem of Secret %s: %w", caSecret, err))
		}
		var own []*x509.Certificate
		ca, err := identity.OpenCA(filepath.Join(dir, "ca"))
		switch {
		case err == nil:
			own = ca.Roots()
		case !errors.Is(err, fs.ErrNotExist):
			return exit(exitStart, err)
		}
		if !slices.ContainsFunc(own, there[0].Equal) {
			found = append(found, fmt.Sprintf("Secret %s has the root %q of %s", caSecret, there[0].Subject, trustDomainOf(there[0])))
		}
	}
	if len(found) == 0 {
		return nil
	}
	return exit(exitFinding, fmt.Errorf("init of context %q: %s, and %s does not: use the directory that made them (--dir), or say --replace to make the network anew, which linked networks refuse until they unlink and link it again", k.context, strings.Join(found, "; "), dir))
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
