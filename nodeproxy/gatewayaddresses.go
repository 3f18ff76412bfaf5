package nodeproxy

import (
	"cmp"
	"context"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// gatewayAddresses are where the gateways of the own network are dialled, by configuration:
// a name stands for all of its addresses. Safe for concurrent use.
type gatewayAddresses struct {
	identity spiffeid.ID
	targets  []string
	lookup   func(ctx context.Context, host string) ([]netip.Addr, error)
	log      zerolog.Logger

	mu       sync.Mutex
	known    map[netip.AddrPort]int // how many answers lately did not have it
	err      error                  // of the last lookup that failed
	gateways []*mesh.Gateway
}

const (
	// resolveEvery is the pause between two lookups: a new gateway is found within it, and
	// one that is gone is known by its stream before.
	resolveEvery = 5 * time.Second
	// resolveFirst is the same while nothing is known.
	resolveFirst = 250 * time.Millisecond
	// missedAnswers is how many answers in a row must not have an address before it is
	// dialled no more: a gateway that is not ready for a moment keeps its streams.
	missedAnswers = 6
	// maxOwnGateways is how many addresses are dialled at most.
	maxOwnGateways = 64
)

func newGatewayAddresses(targets []string, id spiffeid.ID, log zerolog.Logger) *gatewayAddresses {
	g := &gatewayAddresses{identity: id, targets: targets, log: log, known: map[netip.AddrPort]int{}}
	g.lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
		return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	}
	for _, t := range targets { // addresses need nobody to resolve them
		if a, err := netip.ParseAddrPort(t); err == nil {
			g.known[a] = 0
		}
	}
	g.publish()
	return g
}

// list returns them as gateways, each called by its address until it says its name.
func (g *gatewayAddresses) list() []*mesh.Gateway {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.gateways
}

// failing returns why names are not resolved now, nil if they are.
func (g *gatewayAddresses) failing() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// run resolves names until ctx ends.
func (g *gatewayAddresses) run(ctx context.Context) {
	for {
		g.resolve(ctx)
		every := resolveEvery
		if len(g.list()) == 0 {
			every = resolveFirst
		}
		if !pause(ctx, every) {
			return
		}
	}
}

func (g *gatewayAddresses) resolve(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, resolveEvery)
	defer cancel()
	found, failed := map[netip.AddrPort]bool{}, error(nil)
	for _, t := range g.targets {
		host, port, err := splitTarget(t)
		if err != nil {
			continue // Validate has said so
		}
		if a, err := netip.ParseAddr(host); err == nil {
			found[netip.AddrPortFrom(a.Unmap(), port)] = true
			continue
		}
		addrs, err := g.lookup(ctx, host)
		failed = cmp.Or(failed, err)
		for _, a := range addrs {
			found[netip.AddrPortFrom(a.Unmap(), port)] = true
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if failed != nil && g.err == nil && ctx.Err() == nil {
		g.log.Warn().Err(failed).Str("field", "discovery.gateways").Msg("gateways of this network are not found, those found before are used")
	}
	g.err = failed
	for a := range g.known {
		if g.known[a]++; failed != nil || found[a] {
			g.known[a] = 0
		} else if g.known[a] >= missedAnswers {
			delete(g.known, a)
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(found), netip.AddrPort.Compare) {
		if _, has := g.known[a]; !has && len(g.known) < maxOwnGateways {
			g.known[a] = 0
		}
	}
	g.publish()
}

// publish makes the list; the caller holds mu, or nobody else has g.
func (g *gatewayAddresses) publish() {
	var out []*mesh.Gateway
	for _, a := range slices.SortedFunc(maps.Keys(g.known), netip.AddrPort.Compare) {
		out = append(out, &mesh.Gateway{Name: a.String(), Address: a, Identity: g.identity})
	}
	g.gateways = out
}
