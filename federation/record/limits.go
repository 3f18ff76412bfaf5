package record

import (
	"fmt"
	"slices"
	"strings"
)

// Limits of one record. They bound what a faulty or hostile instance can make
// others keep; how many records it may have is the ledger's matter.
const (
	MaxName        = 253       // bytes of a hostname, of a gateway's name and of any other name
	MaxKey         = 300       // bytes of an encoded key
	MaxBody        = 64 << 10  // bytes of an encoded body with its signature
	MaxExceptions  = 64        // named; the rest is a number
	MaxPorts       = 256       // of one service
	MaxAliases     = 64        // of one service
	MaxIdentities  = 256       // of one service
	MaxAddresses   = 16        // of one gateway
	MaxBundles     = 8         // of one network
	MaxEndpoints   = 1_000_000 // ready, and so on, of one service
	MaxCapacity    = 1 << 27   // of one share; sums of 16 fit 32 bits
	MaxBucketBytes = 192 << 10 // of the entries of one bucket: a chunk holds one with its hashes and a statement
)

// InvalidError is a record that breaks a rule of its form.
type InvalidError struct {
	Field  string
	Value  any
	Remedy string
}

func (e *InvalidError) Error() string {
	v := e.Value
	if s, ok := v.(string); ok {
		v = fmt.Sprintf("%.80q", s)
	}
	return fmt.Sprintf("federation record: %s %v: %s", e.Field, v, e.Remedy)
}

// Validate checks the form of r, not who may say it. The error is an
// [*InvalidError].
func (r Record) Validate() error {
	if err := r.Key.validate(); err != nil {
		return err
	}
	bodies := 0
	for _, has := range []bool{r.Network != nil, r.Export != nil, r.Health != nil} {
		if has {
			bodies++
		}
	}
	switch {
	case bodies != 1:
		return &InvalidError{"body", bodies, "want exactly one of network, export and health"}
	case r.Key.Kind == KindNetwork && r.Network != nil:
		return r.Network.validate()
	case r.Key.Kind == KindExport && r.Export != nil:
		return r.Export.validate()
	case r.Key.Kind == KindHealth && r.Health != nil:
		return r.Health.validate()
	}
	return &InvalidError{"body", r.Key.Kind.String(), "want the body of the key's kind"}
}

func (k Key) validate() error {
	switch {
	case k.Kind < KindNetwork || k.Kind > KindHealth:
		return &InvalidError{"kind", int(k.Kind), "want network, export or health"}
	case k.Kind == KindNetwork && k.Service != "":
		return &InvalidError{"service", k.Service, "a network record names none"}
	case k.Kind != KindNetwork && !validName(k.Service):
		return &InvalidError{"service", k.Service, "want a hostname of 1 to 253 bytes, without spaces"}
	case k.Kind == KindHealth && k.Port == 0:
		return &InvalidError{"port", k.Port, "want 1 to 65535"}
	case k.Kind != KindHealth && k.Port != 0:
		return &InvalidError{"port", k.Port, "only health is about one port"}
	}
	return nil
}

// validName rejects what would garble a log line or a header.
func validName(s string) bool {
	return s != "" && len(s) <= MaxName && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '\uFFFD' })
}

func checkNames(field string, names []string, limit int) error {
	if len(names) > limit {
		return &InvalidError{field, len(names), fmt.Sprintf("want at most %d", limit)}
	}
	for _, n := range names {
		if !validName(n) {
			return &InvalidError{field, n, "want 1 to 253 bytes without spaces"}
		}
	}
	return nil
}

func (n *Network) validate() error {
	switch {
	case !validName(n.Gateway):
		return &InvalidError{"gateway", n.Gateway, "want 1 to 253 bytes without spaces"}
	case n.Group != "" && !validName(n.Group):
		return &InvalidError{"group", n.Group, "want at most 253 bytes without spaces"}
	case max(len(n.Addresses), len(n.QUIC)) > MaxAddresses:
		return &InvalidError{"addresses", max(len(n.Addresses), len(n.QUIC)), fmt.Sprintf("want at most %d", MaxAddresses)}
	case len(n.Bundles) > MaxBundles:
		return &InvalidError{"trust bundles", len(n.Bundles), fmt.Sprintf("want at most %d", MaxBundles)}
	case len(n.Keys) > 2:
		return &InvalidError{"network keys", len(n.Keys), "want one, or two while it is rotated"}
	}
	for _, part := range []string{n.Locality.Region, n.Locality.Zone, n.Locality.Subzone} {
		if len(part) > MaxName {
			return &InvalidError{"locality", part, "want parts of at most 253 bytes"}
		}
	}
	for _, a := range slices.Concat(n.Addresses, n.QUIC) {
		if !validName(a.Host) || a.Port == 0 {
			return &InvalidError{"address", a.String(), "want an IP address or a host name, and a port from 1 to 65535"}
		}
	}
	for _, b := range n.Bundles {
		if !validName(b.TrustDomain) {
			return &InvalidError{"trust domain", b.TrustDomain, "want 1 to 253 bytes without spaces"}
		}
	}
	return nil
}

func (e *Export) validate() error {
	if err := checkNames("name", []string{e.Name, e.Namespace}, 2); err != nil {
		return err
	}
	if err := checkNames("aliases", e.Aliases, MaxAliases); err != nil {
		return err
	}
	switch {
	case len(e.Ports) == 0 || len(e.Ports) > MaxPorts:
		return &InvalidError{"ports", len(e.Ports), fmt.Sprintf("want 1 to %d", MaxPorts)}
	case len(e.Identities) > MaxIdentities:
		return &InvalidError{"identities", len(e.Identities), fmt.Sprintf("want at most %d", MaxIdentities)}
	case e.Scope < ScopeSegment || e.Scope > ScopeGlobalOnly:
		return &InvalidError{"scope", int(e.Scope), "want segment, global or globalOnly"}
	case e.Capacity > MaxCapacity:
		return &InvalidError{"capacity", e.Capacity, fmt.Sprintf("want at most %d", MaxCapacity)}
	}
	seen := map[uint16]bool{}
	for _, p := range e.Ports {
		if p.Port == 0 || seen[p.Port] || len(p.Name) > MaxName {
			return &InvalidError{"port", p.Port, "want 1 to 65535, each once, with a name of at most 253 bytes"}
		}
		seen[p.Port] = true
	}
	for i, id := range e.Identities {
		if id.IsZero() || i > 0 && e.Identities[i-1].String() >= id.String() {
			return &InvalidError{"identity", id.String(), "want SPIFFE IDs, sorted, each once"}
		}
	}
	return nil
}

func (h *Health) validate() error {
	switch {
	case h.Ready > MaxEndpoints:
		return &InvalidError{"ready", h.Ready, fmt.Sprintf("want at most %d", MaxEndpoints)}
	case h.Healthy > h.Ready:
		return &InvalidError{"healthy", h.Healthy, fmt.Sprintf("must not exceed ready %d", h.Ready)}
	case h.ReadyCapacity > MaxCapacity:
		return &InvalidError{"ready capacity", h.ReadyCapacity, fmt.Sprintf("want at most %d", MaxCapacity)}
	case h.HealthyCapacity > h.ReadyCapacity:
		return &InvalidError{"healthy capacity", h.HealthyCapacity, fmt.Sprintf("must not exceed ready capacity %d", h.ReadyCapacity)}
	case len(h.Exceptions) > MaxExceptions:
		return &InvalidError{"exceptions", len(h.Exceptions), fmt.Sprintf("want at most %d, and the rest as a number", MaxExceptions)}
	case h.Unnamed > MaxEndpoints:
		return &InvalidError{"unnamed exceptions", h.Unnamed, fmt.Sprintf("want at most %d", MaxEndpoints)}
	}
	for _, x := range h.Exceptions {
		if x.Endpoint == 0 {
			return &InvalidError{"exception", 0, "zero means unknown; want an endpoint id"}
		}
	}
	return nil
}
