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

// gatewayAddresses are where the gateways of the own network are dialed, by configuration:
// a name stands for all of its addresses. Safe for concurrent use.
type gatewayAddresses struct {
	identity spiffeid.ID
	targets  []string
	lookup   func(ctx context.Context, host string) ([]netip.Addr, error)
	log      zerolog.Logger

	mu       sync.Mutex
	known    map[string]map[netip.AddrPort]int // by target: how many answers lately did not have it
	err      error                             // of the last lookup that failed
	gateways []*mesh.Gateway
}

const (
	// resolveEvery is the pause between two lookups: a new gateway is found within it, and
	// one that is gone is known by its stream before.
	resolveEvery = 5 * time.Second
	// resolveFirst is the same while nothing is known.
	resolveFirst = 250 * time.Millisecond
	// missedAnswers is how many answers in a row must not have an address before it is
	// dialed no more: a gateway that is not ready for a moment keeps its streams.
	missedAnswers = 6
	// maxOwnGateways is how many addresses are dialed at most: of each target in turn, those of its
	// last answer first, so that none shuts out others.
	maxOwnGateways = 64
)

func newGatewayAddresses(targets []string, id spiffeid.ID, log zerolog.Logger) *gatewayAddresses {
	g := &gatewayAddresses{identity: id, targets: targets, log: log, known: map[string]map[netip.AddrPort]int{}}
	g.lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
		return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	}
	for _, t := range targets {
		g.known[t] = map[netip.AddrPort]int{}
		if a, err := netip.ParseAddrPort(t); err == nil { // nobody needs to resolve it
			g.known[t][a] = 0
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
	var asking sync.WaitGroup
	errs := make([]error, len(g.targets))
	for i, t := range g.targets {
		host, port, err := splitTarget(t)
		if err != nil {
			continue // Validate has said so
		}
		if _, err := netip.ParseAddr(host); err == nil {
			continue // it is known
		}
		asking.Go(func() { errs[i] = g.ask(ctx, t, host, port) })
	}
	asking.Wait()
	failed := cmp.Or(errs...)
	g.mu.Lock()
	defer g.mu.Unlock()
	if failed != nil && g.err == nil && ctx.Err() == nil {
		g.log.Warn().Err(failed).Str("field", "discovery.gateways").Msg("gateways of this network are not found, those found before are used")
	}
	g.err = failed
	g.publish()
}

// ask asks for the host of one target. What it led to stays while it is not found.
func (g *gatewayAddresses) ask(ctx context.Context, target, host string, port uint16) error {
	ctx, cancel := context.WithTimeout(ctx, resolveEvery)
	defer cancel()
	addrs, err := g.lookup(ctx, host)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	known := g.known[target]
	for a := range known {
		if known[a]++; known[a] >= missedAnswers {
			delete(known, a)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	for _, a := range addrs[:min(len(addrs), maxOwnGateways)] {
		known[netip.AddrPortFrom(a.Unmap(), port)] = 0
	}
	for len(known) > maxOwnGateways {
		delete(known, inOrder(known)[len(known)-1])
	}
	return nil
}

// inOrder are addresses of one target, those of its last answers first.
func inOrder(known map[netip.AddrPort]int) []netip.AddrPort {
	return slices.SortedFunc(maps.Keys(known), func(a, b netip.AddrPort) int { return cmp.Or(known[a]-known[b], a.Compare(b)) })
}

// publish makes the list; the caller holds mu, or nobody else has g.
func (g *gatewayAddresses) publish() {
	var parts [][]netip.AddrPort
	for _, t := range g.targets {
		parts = append(parts, inOrder(g.known[t]))
	}
	dialled := map[netip.AddrPort]struct{}{}
	for i, left := 0, true; left && len(dialled) < maxOwnGateways; i++ {
		left = false
		for _, p := range parts {
			if i < len(p) && len(dialled) < maxOwnGateways {
				left = true
				dialled[p[i]] = struct{}{}
			}
		}
	}
	var out []*mesh.Gateway
	for _, a := range slices.SortedFunc(maps.Keys(dialled), netip.AddrPort.Compare) {
		out = append(out, &mesh.Gateway{Name: a.String(), Address: a, Identity: g.identity})
	}
	g.gateways = out
}
