package identity

import (
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// belief is which roots a Manager believes beside the bundle that comes with an SVID.
// Never changed once it is in force.
type belief struct {
	own     []*x509.Certificate                          // of the own trust domain, by the bundle file
	foreign map[spiffeid.TrustDomain][]*x509.Certificate // by links to other networks; the own trust domain may be among them
}

// bundle returns the roots of td that who is s believes; nil if there is none. A root
// vouches for the trust domain that it was given for, and for no other one.
func (b *belief) bundle(s *SVID, td spiffeid.TrustDomain) *x509bundle.Bundle {
	own := s.ID.TrustDomain() == td
	if own && (b == nil || len(b.own)+len(b.foreign[td]) == 0) {
		return s.Bundle
	}
	if b == nil || !own && len(b.foreign[td]) == 0 {
		return nil
	}
	roots := b.foreign[td]
	if own {
		roots = slices.Concat(s.Bundle.X509Authorities(), b.own, roots)
	}
	return x509bundle.FromX509Authorities(td, roots)
}

// withBundleFile makes the Manager believe the roots in the file at path too.
func withBundleFile(path string) Option { return func(m *Manager) { m.bundlePath = path } }

// Believe replaces the roots of other trust domains that peers may prove themselves by.
// Those of the own one are believed beside those that it has. An identity of a trust
// domain that is not here is refused.
func (m *Manager) Believe(roots map[spiffeid.TrustDomain][]*x509.Certificate) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.believed()
	b.foreign = maps.Clone(roots)
	m.belief.Store(&b)
}

// believed returns a copy of what is in force; the caller holds mu.
func (m *Manager) believed() belief {
	if b := m.belief.Load(); b != nil {
		return *b
	}
	return belief{}
}

// Believes lists the trust domains besides the own one that peers may be of, sorted.
func (m *Manager) Believes() (out []string) {
	if b := m.belief.Load(); b != nil {
		for td := range b.foreign {
			out = append(out, td.Name())
		}
	}
	slices.Sort(out)
	return out
}

// readBundleFile takes the roots of the bundle file if it has changed. A file that cannot
// be read or is no bundle leaves those in force that it had.
func (m *Manager) readBundleFile() {
	if m.bundlePath == "" {
		return
	}
	print := fingerprint([]string{m.bundlePath})
	m.mu.Lock()
	same := print == m.bundlePrint
	m.bundlePrint = print
	m.mu.Unlock()
	if same {
		return
	}
	roots, err := readRoots(m.bundlePath)
	if err != nil {
		m.refused.Add(1)
		m.log.Error().Err(err).Msg("identity.bundle refused, keeping the one in force")
		return
	}
	m.mu.Lock()
	b := m.believed()
	b.own = roots
	m.belief.Store(&b)
	m.mu.Unlock()
	m.log.Info().Str("file", m.bundlePath).Int("roots", len(roots)).Msg("identity.bundle read")
}

// readRoots reads roots of one trust domain.
func readRoots(path string) ([]*x509.Certificate, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("identity.bundle: %w", err)
	}
	certs, err := ParseCertificates(data)
	if err != nil {
		return nil, fmt.Errorf("identity.bundle: %s: %w", path, err)
	}
	if err := sameDomain(certs); err != nil {
		return nil, fmt.Errorf("identity.bundle: %s: %w", path, err)
	}
	return certs, nil
}

// sameDomain refuses what is no root, and roots that name several trust domains.
func sameDomain(certs []*x509.Certificate) error {
	named := map[string]bool{}
	for i, c := range certs {
		if !c.IsCA {
			return fmt.Errorf("block %d (serial %x) is no CA certificate: a bundle holds roots only", i+1, c.SerialNumber)
		}
		for _, u := range c.URIs {
			named[u.String()] = true
		}
	}
	if len(named) > 1 {
		return errors.New("its roots are of " + strings.Join(slices.Sorted(maps.Keys(named)), " and ") + ": those of other trust domains belong into federation.networks")
	}
	return nil
}
