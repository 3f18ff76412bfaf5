package linkcard

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"go.yaml.in/yaml/v3"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
)

// Version is that of cards that Parse reads.
const Version = 1

// MaxSize bounds a card, in bytes.
const MaxSize = 256 << 10

// Card is what other networks need to know of one.
type Card struct {
	Version     int      `yaml:"version" doc:"1"`
	Network     string   `yaml:"network" doc:"required; the network that the card is of"`
	TrustDomain string   `yaml:"trustDomain" doc:"required; that of the identities there"`
	Keys        []string `yaml:"keys" doc:"required; public keys of the network, as isthmus network show prints them"`
	Addresses   []string `yaml:"addresses" doc:"where its gateways are dialed: IP addresses or host names with ports; without any they dial us"`
	Roots       string   `yaml:"roots" doc:"required; PEM of the root certificates of its trust domain"`
}

// Parse reads a card; errors call it name. Every mistake names its field.
func Parse(name string, b []byte) (Card, error) {
	var c Card
	if len(b) > MaxSize {
		return c, fmt.Errorf("%s: it has %d bytes: a link card has at most %d", name, len(b), MaxSize)
	}
	doc, err := strictyaml.Parse(name, b)
	if err != nil {
		return c, err
	}
	if err := doc.Decode(&c); err != nil {
		return c, err
	}
	if err := c.Check(); err != nil {
		return c, fmt.Errorf("%s: %w: is it what `isthmus link card` printed?", name, err)
	}
	return c, nil
}

// Check says what cannot be of c.
func (c Card) Check() error {
	var errs []error
	fail := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: "+format, append([]any{field}, args...)...))
	}
	if c.Version != Version {
		fail("version", "%d: this isthmus knows %d", c.Version, Version)
	}
	if err := discovery.NetworkName(c.Network); err != nil {
		fail("network", "%.80q: %w", c.Network, err)
	}
	if td, err := spiffeid.TrustDomainFromString(c.TrustDomain); err != nil || td.Name() != c.TrustDomain {
		fail("trustDomain", "%.80q is not the name of a trust domain", c.TrustDomain)
	}
	known := networkkey.Known{c.Network: nil}
	for i, k := range c.Keys {
		p, err := networkkey.ParsePublic(k)
		if err != nil {
			fail(fmt.Sprintf("keys[%d]", i), "%w", err)
		}
		known[c.Network] = append(known[c.Network], p)
	}
	if len(errs) == 0 {
		if err := known.Validate(); err != nil {
			fail("keys", "%w", err)
		}
	}
	for i, a := range c.Addresses {
		if err := address(a); err != nil {
			fail(fmt.Sprintf("addresses[%d]", i), "%w", err)
		}
	}
	if roots, err := Certificates(c.Roots); err != nil {
		fail("roots", "%w", err)
	} else {
		for _, r := range roots {
			if err := rootOf(r, c.TrustDomain); err != nil {
				fail("roots", "%w", err)
			}
		}
	}
	return errors.Join(errs...)
}

// address says why a is none that can be dialed.
func address(a string) error {
	if p, err := netip.ParseAddrPort(a); err == nil && p.Port() > 0 && !p.Addr().IsUnspecified() && !p.Addr().IsMulticast() {
		return nil
	}
	host, port, err := net.SplitHostPort(a)
	if n, bad := strconv.ParseUint(port, 10, 16); err == nil && bad == nil && n > 0 && len(host) <= 253 {
		if host != "" && !strings.ContainsFunc(host, func(r rune) bool {
			return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.", r)
		}) {
			return nil
		}
	}
	return fmt.Errorf("%.80q is not an address: write an IP address or a host name and a port, such as 203.0.113.7:15008", a)
}

// rootOf says why r is no root of a trust domain.
func rootOf(r *x509.Certificate, domain string) error {
	if !r.IsCA {
		return fmt.Errorf("the certificate of %q is no CA's", r.Subject)
	}
	for _, u := range r.URIs {
		if u.Scheme == "spiffe" && u.Host != domain {
			return fmt.Errorf("the certificate of %q is of trust domain %q, not %q", r.Subject, u.Host, domain)
		}
	}
	return nil
}

// Format returns the card as Parse reads it.
func (c Card) Format() []byte {
	b, err := yaml.Marshal(c)
	if err != nil {
		panic(err) // it has strings alone
	}
	return append([]byte("# What other networks need to know of network "+c.Network+". Nothing of it is secret, but give it to them by a\n# way on which nobody can change it: whoever does can be that network.\n"), b...)
}

// Certificates reads one or more certificates in PEM.
func Certificates(text string) (out []*x509.Certificate, err error) {
	for rest := []byte(text); ; {
		var block *pem.Block
		block, rest = pem.Decode(rest)
		if block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("a %s is among the certificates: never give it to anybody", block.Type)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	if len(out) == 0 {
		return nil, errors.New("there is no certificate in PEM")
	}
	return out, nil
}

// Bundle returns the roots of all in PEM, each once, in their order.
func Bundle(all ...[]*x509.Certificate) string {
	var b strings.Builder
	var seen []*x509.Certificate
	for _, list := range all {
		for _, c := range list {
			if slices.ContainsFunc(seen, func(o *x509.Certificate) bool { return bytes.Equal(o.Raw, c.Raw) }) {
				continue
			}
			seen = append(seen, c)
			pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
		}
	}
	return b.String()
}
