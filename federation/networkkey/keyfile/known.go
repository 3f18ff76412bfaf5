package keyfile

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/internal/hostport"
	"github.com/isthmus-mesh/isthmus/internal/settled"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
)

// File is the file of known networks.
type File struct {
	Networks []Network `yaml:"networks" doc:"other networks with their keys; the own network may be listed"`
}

// Network is one of them.
type Network struct {
	Name string   `yaml:"name" doc:"required; the network's name in discovery and at its gateways"`
	Keys []string `yaml:"keys" doc:"required; public keys of the network, as printed by isthmus network show: one, or two during a rotation"`
	Link `yaml:",inline"`
}

// Link has the settings of one other network: the addresses of its gateways (for gateways),
// the bounds on its exports (for node proxies), and the roots that verify its identities
// (for both).
type Link struct {
	Addresses             []string      `yaml:"addresses" doc:"where gateways here dial the gateways there, if discovery does not list them: IP addresses or host names with ports, such as 203.0.113.7:15008. One may lead to any of several gateways. Addresses that these gateways report are dialed too. Left out, the gateways there must dial here"`
	TrustDomains          []string      `yaml:"trustDomains" doc:"trust domains that identities there may have; those of trustBundles when left out, and without these that of the mesh. Like namespaces and maxCapacity, used by node proxies"`
	Namespaces            []string      `yaml:"namespaces" doc:"namespaces that service accounts there may be in, for any service; the namespace of the service when left out"`
	MaxCapacity           uint32        `yaml:"maxCapacity" doc:"greatest weight of one service there, whatever health its gateways report; 0: no bound"`
	GatewayServiceAccount string        `yaml:"gatewayServiceAccount" default:"isthmus-system/gateway" doc:"namespace/name of the service account of gateways there, if discovery does not list them: the identity they must present. Its trust domain is the first one of trustBundles, or without these that of the mesh"`
	TrustBundles          []TrustBundle `yaml:"trustBundles" doc:"roots that verify identities of the trust domains there, at gateways and node proxies; left out, only identities of the own trust domain are accepted, verified with the own roots"`
}

// ReadKnown reads the file of known networks at path. Every mistake is a line
// that names the file and the field.
func ReadKnown(path string) (networkkey.Known, error) {
	known, _, err := ReadLinks(path)
	return known, err
}

// ReadLinks is ReadKnown, and what bounds each network.
func ReadLinks(path string) (networkkey.Known, map[string]Link, error) {
	b, err := readSettled(path)
	if err != nil {
		return nil, nil, err
	}
	return parse(path, b)
}

// readSettled reads the file at path as soon as nobody writes to it: cut by a rewrite in
// place, it lists fewer networks without any mistake.
func readSettled(path string) ([]byte, error) {
	var file settled.File
	for began := time.Now(); ; time.Sleep(settled.Pause / 4) {
		before, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		if file.Alone(before, time.Now()) {
			b, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			if after, err := os.Stat(path); err == nil && settled.Same(after, before) {
				return b, nil
			}
		}
		if time.Since(began) >= settled.Patience {
			return nil, fmt.Errorf("%s: it is written to again and again and is never left alone for %v: write a new file beside it and rename it", path, settled.Pause)
		}
	}
}

// ParseKnown is ReadKnown of b; errors call the file name.
func ParseKnown(name string, b []byte) (networkkey.Known, error) {
	known, _, err := parse(name, b)
	return known, err
}

func parse(name string, b []byte) (networkkey.Known, map[string]Link, error) {
	doc, err := strictyaml.Parse(name, b)
	if err != nil {
		return nil, nil, err
	}
	var f File
	if err := doc.Decode(&f); err != nil {
		return nil, nil, err
	}
	var errs []error
	known, links := networkkey.Known{}, map[string]Link{}
	for i, n := range f.Networks {
		if _, twice := known[n.Name]; twice {
			errs = append(errs, fmt.Errorf("%s: networks[%d].name: %q is listed already: put all of its keys in one place", doc.Pos("networks", i, "name"), i, n.Name))
			continue
		}
		known[n.Name], links[n.Name] = nil, n.Link
		for field, err := range n.Link.check() {
			errs = append(errs, fmt.Errorf("%s: networks[%d].%s: %w", doc.Pos("networks", i, field), i, field, err))
		}
		for j, s := range n.Keys {
			p, err := networkkey.ParsePublic(s)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: networks[%d].keys[%d]: %w", doc.Pos("networks", i, "keys", j), i, j, err))
			}
			known[n.Name] = append(known[n.Name], p)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, nil, err
	}
	if err := known.Validate(); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", name, err)
	}
	return known, links, nil
}

// check yields what cannot be of l, by field.
func (l Link) check() iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for _, a := range l.Addresses {
			if _, _, err := hostport.Split(a); err != nil && !yield("addresses", err) {
				return
			}
		}
		for _, d := range l.TrustDomains {
			if td, err := spiffeid.TrustDomainFromString(d); (err != nil || td.Name() != d) && !yield("trustDomains", fmt.Errorf("%.80q is not the name of a trust domain: write one such as cluster.local, or leave the key out", d)) {
				return
			}
		}
		for _, n := range l.Namespaces {
			if err := spiffeid.ValidatePathSegment(n); err != nil && !yield("namespaces", fmt.Errorf("%.80q is not a namespace: %w: write one such as default, or leave the key out", n, err)) {
				return
			}
		}
		for i, b := range l.TrustBundles {
			if _, _, err := b.parse(); err != nil && !yield("trustBundles", fmt.Errorf("[%d].%w", i, err)) {
				return
			}
			if slices.ContainsFunc(l.TrustBundles[:i], func(o TrustBundle) bool { return o.TrustDomain == b.TrustDomain }) && !yield("trustBundles", fmt.Errorf("[%d].trustDomain: %q is listed already: put all of its roots in one place", i, b.TrustDomain)) {
				return
			}
		}
		if a := l.GatewayServiceAccount; a != "" {
			namespace, name, two := strings.Cut(a, "/")
			if !two || spiffeid.ValidatePathSegment(namespace) != nil || spiffeid.ValidatePathSegment(name) != nil {
				yield("gatewayServiceAccount", fmt.Errorf("%.80q is not a service account: write namespace/name, such as isthmus-system/gateway", a))
			}
		}
	}
}

// FormatKnown returns the file that ParseKnown reads.
func FormatKnown(k networkkey.Known) []byte { return formatLinks(k, nil) }

// formatLinks is FormatKnown with what bounds each network.
func formatLinks(k networkkey.Known, links map[string]Link) []byte {
	b := []byte("networks:\n")
	for _, name := range slices.Sorted(maps.Keys(k)) {
		b = fmt.Appendf(b, "  - name: %s\n    keys:\n", strconv.Quote(name))
		for _, p := range k[name] {
			b = fmt.Appendf(b, "      - %s\n", p)
		}
		b = links[name].append(b)
	}
	return b
}

// append adds to b, the file of one network, what is set of l.
func (l Link) append(b []byte) []byte {
	for _, f := range []struct {
		key    string
		values []string
	}{{"addresses", l.Addresses}, {"trustDomains", l.TrustDomains}, {"namespaces", l.Namespaces}} {
		if len(f.values) == 0 {
			continue
		}
		b = fmt.Appendf(b, "    %s:\n", f.key)
		for _, v := range f.values {
			b = fmt.Appendf(b, "      - %s\n", strconv.Quote(v))
		}
	}
	if l.MaxCapacity > 0 {
		b = fmt.Appendf(b, "    maxCapacity: %d\n", l.MaxCapacity)
	}
	if l.GatewayServiceAccount != "" {
		b = fmt.Appendf(b, "    gatewayServiceAccount: %s\n", strconv.Quote(l.GatewayServiceAccount))
	}
	return l.appendBundles(b)
}
