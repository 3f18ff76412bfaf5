package controller

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// resolveEvery is how often the names of gateways are asked for.
const resolveEvery = 5 * time.Second

// gateways are where those of the own network are, by their names. Safe for concurrent use.
type gateways struct {
	addresses []string // as configured
	network   string
	identity  spiffeid.ID
	lookup    func(ctx context.Context, host string) ([]netip.Addr, error)
	log       zerolog.Logger

	list  atomic.Pointer[[]*mesh.Gateway]
	found map[string][]netip.Addr // by address as configured; of run alone
	fails map[string]bool         // of run alone
}

func newGateways(addresses []string, network string, id spiffeid.ID, log zerolog.Logger) *gateways {
	return &gateways{addresses: addresses, network: network, identity: id, log: log, fails: map[string]bool{}, found: map[string][]netip.Addr{},
		lookup: func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}}
}

// all are those that are known; they are not to be changed.
func (g *gateways) all() []*mesh.Gateway {
	if p := g.list.Load(); p != nil {
		return *p
	}
	return nil
}

// run keeps them up to date until ctx ends.
func (g *gateways) run(ctx context.Context) {
	tick := time.NewTicker(resolveEvery)
	defer tick.Stop()
	for {
		g.resolve(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// resolve asks for all names. Of one that is not answered what was known stays.
func (g *gateways) resolve(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, resolveEvery)
	defer cancel()
	var next []*mesh.Gateway
	for _, address := range g.addresses {
		host, port, err := splitAddress(address)
		var found []netip.Addr
		if a, odd := netip.ParseAddr(host); odd == nil {
			found = []netip.Addr{a}
		} else if err == nil {
			found, err = g.lookup(ctx, host)
		}
		if g.note(address, err); err == nil {
			slices.SortFunc(found, netip.Addr.Compare)
			g.found[address] = slices.Compact(found)
		}
		for _, a := range g.found[address] {
			at := netip.AddrPortFrom(a.Unmap(), port)
			next = append(next, &mesh.Gateway{Name: at.String(), Network: g.network, Address: at, Identity: g.identity})
		}
	}
	g.list.Store(&next)
}

// note logs when a name is not answered for the first time, and when it is again.
func (g *gateways) note(address string, err error) {
	was := g.fails[address]
	g.fails[address] = err != nil
	switch {
	case err != nil && !was:
		g.log.Warn().Str("gateway", address).Err(err).Msg("the addresses of gateways are not known: those known before are used")
	case err == nil && was:
		g.log.Info().Str("gateway", address).Msg("the addresses of gateways are known again")
	}
}
