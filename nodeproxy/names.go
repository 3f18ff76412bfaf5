package nodeproxy

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/nodeproxy/names"
	"github.com/isthmus-mesh/isthmus/route"
)

// namesOf returns what answers the DNS queries of a workload. resolver says what its resolv.conf says
// now; addresses are those of its network namespace; dial opens a socket in its network namespace, to one of the servers there, that is not
// captured itself.
func (p *Proxy) namesOf(uid string, addresses []netip.Addr, resolver func() names.Resolver, dial func(ctx context.Context, network string, server netip.AddrPort) (net.Conn, error)) *names.Server {
	c := names.Config{Snapshot: p.store.Current, Resolver: resolver, Domain: p.cfg.clusterDomain(), Dial: dial, Metrics: p.dns, Log: p.log.With().Str("workload", uid).Logger(),
		Memory: p.cfg.Memory, Owner: func() string { return p.ownerOf(uid) }}
	c.NoIPv4, c.NoIPv6 = !slices.ContainsFunc(addresses, func(a netip.Addr) bool { return a.Is4() && !a.IsLoopback() }), !slices.ContainsFunc(addresses, func(a netip.Addr) bool {
		return a.Is6() && a.IsGlobalUnicast()
	})
	if p.stream != nil && (p.own != nil || p.links != nil) {
		c.Ask = func(ctx context.Context, host string) bool { return p.askName(ctx, uid, host) }
		c.Used = p.soonUsed
	}
	return names.New(c)
}

// askName asks the gateways of this network for a name that discovery does not know, or not with an
// address, as learn does for connections, and reports whether they have said all that they know of it.
func (p *Proxy) askName(ctx context.Context, uid, host string) (sure bool) {
	if !p.own.told() {
		return false
	}
	snap := p.store.Current()
	if svc := snap.Service(host); svc != nil {
		return p.hear(ctx, svc.Hostname)
	}
	name, ok := p.askable(route.Flow{Host: host})
	if !ok {
		return true // nobody could have it
	}
	var by spiffeid.ID
	if w := snap.Workload(uid); w != nil {
		by = w.Identity
	}
	asked, expired := p.asking.begin(name, by, time.Now())
	p.forgetNames(expired)
	return asked && p.hear(ctx, name)
}

// hear waits for the gateways' word on a name.
func (p *Proxy) hear(ctx context.Context, name string) bool {
	p.stream.Use(ctx, name, p.firstAnswer())
	p.shares.update(name)
	return p.stream.Heard(name)
}

// soonUsed has the service of a name followed: who was told its address connects to it next.
func (p *Proxy) soonUsed(host string) {
	if svc := p.store.Current().Service(host); svc != nil {
		p.stream.Use(p.data, svc.Hostname, 0)
	}
}
