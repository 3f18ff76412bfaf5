package nodeproxy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/internal/hostport"
	"github.com/isthmus-mesh/isthmus/internal/resolve"
)

const (
	maxNamesOfNetwork = 16 // host names of its gateways that are asked for
	maxToldAddresses  = 32 // of one gateway that are dialed
)

// addressesOf returns the addresses of list that may be those of another network's gateway,
// host names resolved, or why there is none. The one that was first before stays so: sessions
// are kept under it. While DNS has not answered for any of its names yet, those from before stay.
func (t *toldShares) addressesOf(network string, list []record.Address, told []netip.AddrPort) (out []netip.AddrPort, odd string) {
	snap, pending := t.snapshot(), false
	add := func(at netip.AddrPort) {
		why := discovery.NotElsewhere(snap, t.own, at)
		switch {
		case why == "" && !slices.Contains(out, at) && len(out) < maxToldAddresses:
			out = append(out, at)
		case why != "" && odd == "":
			odd = fmt.Sprintf("its address %s %s: that network must give it one at which it is reached from here", at, why)
		}
	}
	for _, a := range list {
		found, why := t.found(network, a.Host)
		if why != "" && odd == "" {
			odd = why
		}
		pending = pending || why == beingResolved(a.Host)
		for _, ip := range found {
			add(netip.AddrPortFrom(ip, a.Port))
		}
	}
	if len(out) == 0 && pending {
		for _, at := range told {
			add(at)
		}
	}
	var before netip.AddrPort
	if len(told) > 0 {
		before = told[0]
	}
	if i := slices.Index(out, before); i > 0 {
		out[0], out[i] = out[i], out[0]
	}
	if odd == "" {
		odd = "it has no address that can be dialed"
	}
	return out, odd
}

// found is what the host of a told address leads to, and why to nothing.
func (t *toldShares) found(network, host string) (found []netip.Addr, why string) {
	if ip, err := netip.ParseAddr(host); err == nil && ip.Zone() == "" {
		return []netip.Addr{ip.Unmap()}, ""
	}
	if t.names == nil || !hostport.IsName(host) {
		return nil, ""
	}
	if names := t.hosts[network]; !slices.Contains(names, host) {
		if len(names) >= maxNamesOfNetwork {
			return nil, fmt.Sprintf("its host name %s is one of more than %d of that network: the first are used", host, maxNamesOfNetwork)
		}
		t.hosts[network] = append(names, host)
	}
	found, err := t.names.Addresses(host)
	switch {
	case len(found) > 0:
		return found, ""
	case err != nil:
		return nil, fmt.Sprintf("its host name %s leads nowhere: %s", host, strings.TrimPrefix(err.Error(), "resolve "+host+": "))
	}
	return nil, beingResolved(host)
}

func beingResolved(host string) string {
	return fmt.Sprintf("its host name %s is being resolved", host)
}

// resolveBy has host names of other networks' gateways followed by r, which calls relocated when one
// of them leads elsewhere.
func (t *toldShares) resolveBy(r *resolve.Resolver) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.names = r
}

// followNames follows the host names that are told now; the caller holds mu.
func (t *toldShares) followNames() {
	if t.names == nil {
		return
	}
	var all []string
	for _, network := range slices.Sorted(maps.Keys(t.hosts)) {
		all = append(all, t.hosts[network]...)
	}
	slices.Sort(all)
	t.names.Follow(slices.Compact(all)...)
}

// relocated looks again at the gateways of other networks by what discovery says
// of the own network now, and DNS of their host names.
func (t *toldShares) relocated() {
	t.mu.Lock()
	defer t.mu.Unlock()
	networks := map[string]bool{}
	for network := range t.unused {
		networks[network] = true
	}
	for network := range t.ways {
		networks[network] = true
	}
	t.put(map[discovery.Key]discovery.Record{}, networks)
}
