package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// belief is which roots a Manager believes beside the bundle that comes with an SVID.
// Never changed once it is in force.
type belief struct {
	own     []*x509.Certificate                          // of the own trust domain, by the bundle file
	foreign map[spiffeid.TrustDomain][]*x509.Certificate // by links to other networks; the own trust domain may be among them

	removed   map[spiffeid.TrustDomain][]*x509.Certificate // those that links had, and have no longer
	removedAt time.Time                                    // when that last changed
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
// domain that is not here is refused. removed reports that this call, or one of the last
// minute, has removed roots: sessions that rest on them may be open; see Revoked.
func (m *Manager) Believe(roots map[spiffeid.TrustDomain][]*x509.Certificate) (removed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.believed()
	missing := func(of map[spiffeid.TrustDomain][]*x509.Certificate) map[spiffeid.TrustDomain][]*x509.Certificate {
		out := map[spiffeid.TrustDomain][]*x509.Certificate{}
		for td, certs := range of {
			for _, c := range certs {
				if !slices.ContainsFunc(roots[td], c.Equal) {
					out[td] = append(out[td], c)
				}
			}
		}
		return out
	}
	gone := missing(b.foreign)
	b.removed = missing(b.removed)
	for td, certs := range gone {
		b.removed[td] = append(b.removed[td], certs...)
		b.removedAt = time.Now()
	}
	b.foreign = maps.Clone(roots)
	m.belief.Store(&b)
	return !b.removedAt.IsZero() && time.Since(b.removedAt) < removedFor
}

// removedFor is longer than a handshake takes: one that began with the roots from before
// has made its session by then.
const removedFor = time.Minute

// Revoked reports whether the peer of state, a connection of id, proved itself by a root that
// Believe has removed since, and no other root vouches for it. Roots of the own trust domain
// that rotation has replaced do not count. A certificate that has expired counts only where no link
// has a root of its trust domain: until then open connections have timeouts.certificateGrace,
// and the last step of a rotation comes when what the old root signed has expired.
func (m *Manager) Revoked(id spiffeid.ID, state tls.ConnectionState) bool {
	peer, err := PeerID(state)
	b := m.belief.Load()
	if err != nil || b == nil {
		return false
	}
	td := peer.TrustDomain()
	now := time.Now()
	at := now
	for _, c := range state.PeerCertificates {
		if c.NotAfter.Before(at) {
			at = c.NotAfter
		}
	}
	if at.Before(now) && len(b.foreign[td]) > 0 {
		return false
	}
	signed := func(bundle *x509bundle.Bundle) bool {
		_, _, err := x509svid.Verify(state.PeerCertificates, bundle, x509svid.WithTime(at))
		return err == nil
	}
	if len(b.removed[td]) == 0 || !signed(x509bundle.FromX509Authorities(td, b.removed[td])) {
		return false
	}
	own := m.held(id)
	if own == nil {
		return false // without an SVID the own roots are not known
	}
	bundle := b.bundle(own, td)
	return bundle == nil || !signed(bundle)
}

// held returns the SVID that id had last, also an expired one; nil if it had none.
func (m *Manager) held(id spiffeid.ID) *SVID {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.entries[id]; e != nil {
		return e.svid
	}
	return nil
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
