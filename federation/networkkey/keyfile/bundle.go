package keyfile

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// TrustBundle has the roots that verify identities of one trust domain.
type TrustBundle struct {
	TrustDomain string `yaml:"trustDomain" doc:"required; trust domain of the identities that these roots verify, and of no others. The own trust domain means that it is shared: these roots can then issue every identity here"`
	Roots       string `yaml:"roots" doc:"required; root certificates in PEM, more than one during a root rotation"`
}

// maxRoots bounds the roots of one trust domain on one network.
const maxRoots = 32

// parse returns the trust domain and its roots.
func (b TrustBundle) parse() (spiffeid.TrustDomain, []*x509.Certificate, error) {
	td, err := spiffeid.TrustDomainFromString(b.TrustDomain)
	if err != nil || td.Name() != b.TrustDomain {
		return td, nil, fmt.Errorf("trustDomain: %.80q is not the name of a trust domain: write one such as cluster.local", b.TrustDomain)
	}
	var roots []*x509.Certificate
	rest := bytes.TrimSpace([]byte(b.Roots))
	for len(rest) > 0 {
		block, tail := pem.Decode(rest)
		if block == nil || block.Type != "CERTIFICATE" || !bytes.HasPrefix(rest, []byte("-----BEGIN CERTIFICATE-----")) {
			return td, nil, fmt.Errorf("roots: what follows %d certificates is none in PEM: write such as `isthmus ca show` lists, from -----BEGIN CERTIFICATE----- on", len(roots))
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return td, nil, fmt.Errorf("roots: certificate %d: %w", len(roots)+1, err)
		}
		if err := checkRoot(c, td); err != nil {
			return td, nil, fmt.Errorf("roots: certificate %d: %w", len(roots)+1, err)
		}
		roots, rest = append(roots, c), bytes.TrimSpace(tail)
	}
	switch {
	case len(roots) == 0:
		return td, nil, errors.New("roots: is empty: write the root certificates of the trust domain in PEM")
	case len(roots) > maxRoots:
		return td, nil, fmt.Errorf("roots: %d certificates: want at most %d", len(roots), maxRoots)
	}
	return td, roots, nil
}

// checkRoot refuses what cannot vouch for identities of td.
func checkRoot(c *x509.Certificate, td spiffeid.TrustDomain) error {
	if !c.IsCA {
		return fmt.Errorf("serial %x is no CA certificate: a bundle holds roots only", c.SerialNumber)
	}
	for _, u := range c.URIs {
		if got, err := spiffeid.TrustDomainFromURI(u); err != nil || got != td {
			return fmt.Errorf("it is a root of %s: put it under that trust domain", u)
		}
	}
	return nil
}

// Domains are the trust domains of those who may answer there: those that the link names,
// else those of its trust bundles. Empty is that of the mesh.
func (l Link) Domains() []string {
	if len(l.TrustDomains) > 0 {
		return l.TrustDomains
	}
	var out []string
	for _, b := range l.TrustBundles {
		out = append(out, b.TrustDomain)
	}
	return out
}

// GatewayDomain is the trust domain of the gateways there: the first that the link has
// roots of; empty is that of the mesh.
func (l Link) GatewayDomain() string {
	if len(l.TrustBundles) == 0 {
		return ""
	}
	return l.TrustBundles[0].TrustDomain
}

// Roots are those of all links, by the trust domain that they vouch for. What Parse has
// refused is not among them.
func Roots(links map[string]Link) map[spiffeid.TrustDomain][]*x509.Certificate {
	out := map[spiffeid.TrustDomain][]*x509.Certificate{}
	for _, name := range slices.Sorted(maps.Keys(links)) {
		for _, b := range links[name].TrustBundles {
			td, roots, err := b.parse()
			if err != nil {
				continue
			}
			for _, c := range roots {
				if !slices.ContainsFunc(out[td], c.Equal) {
					out[td] = append(out[td], c)
				}
			}
		}
	}
	return out
}

// appendBundles adds to b, the file of one network, the roots of l.
func (l Link) appendBundles(b []byte) []byte {
	if len(l.TrustBundles) == 0 {
		return b
	}
	b = append(b, "    trustBundles:\n"...)
	for _, x := range l.TrustBundles {
		b = fmt.Appendf(b, "      - trustDomain: %s\n        roots: |\n", strconv.Quote(x.TrustDomain))
		for line := range strings.SplitSeq(strings.TrimSpace(x.Roots), "\n") {
			b = fmt.Appendf(b, "          %s\n", strings.TrimSpace(line))
		}
	}
	return b
}
