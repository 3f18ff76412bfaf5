package nodeproxy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// linkFile is the other networks whose exports are used, by the file federation.networks:
// the keys that prove them, and what they may claim. A nil one has none. Safe for
// concurrent use.
type linkFile struct {
	path string
	own  string // network

	mu   sync.Mutex
	keys networkkey.Known
	of   map[string]keyfile.Link
	err  error // of the last reading; what was read before is used
}

func openLinks(path, own string) (*linkFile, error) {
	l := &linkFile{path: path, own: own}
	if _, err := l.reread(); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("federation.networks: %w: put what `isthmus network show` prints on each of the other networks into it, or leave the key out", err)
	} else if err != nil {
		return nil, fmt.Errorf("federation.networks: %w", err)
	}
	return l, nil
}

// reread reads the file again; changed says that something else is in force.
func (l *linkFile) reread() (changed bool, err error) {
	keys, of, err := keyfile.ReadLinks(l.path)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err = err; err != nil {
		return false, err
	}
	delete(keys, l.own)
	delete(of, l.own)
	changed = !maps.EqualFunc(keys, l.keys, slices.Equal[[]networkkey.Public]) || !maps.EqualFunc(of, l.of, equalLinks)
	l.keys, l.of = keys, of
	return changed, nil
}

func equalLinks(a, b keyfile.Link) bool {
	return slices.Equal(a.TrustDomains, b.TrustDomains) && slices.Equal(a.Namespaces, b.Namespaces) && a.MaxCapacity == b.MaxCapacity && a.GatewayServiceAccount == b.GatewayServiceAccount
}

// known are the keys of other networks; they are not to be changed.
func (l *linkFile) known() networkkey.Known {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.keys
}

// get returns what network may claim; not ok if it is not linked.
func (l *linkFile) get(network string) (keyfile.Link, bool) {
	if l == nil {
		return keyfile.Link{}, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	link, ok := l.of[network]
	return link, ok
}

// most is the greatest weight of one service on network; 0 is no bound.
func (l *linkFile) most(network string) uint32 {
	link, _ := l.get(network)
	return link.MaxCapacity
}

func (l *linkFile) has(network string) bool { _, ok := l.get(network); return ok }

// names are the networks that are linked, sorted.
func (l *linkFile) names() []string {
	return slices.Sorted(maps.Keys(l.known()))
}

// failure is why the file was not read last; nil: it was.
func (l *linkFile) failure() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// linksEvery is how often the file is read again, as by gateways.
const linksEvery = 10 * time.Second

// followLinks reads the file again and again, looks whether other networks' gateways are
// where they may be still, and forgets names that nobody offers.
func (p *Proxy) followLinks(ctx context.Context) {
	if p.links == nil {
		return
	}
	tick := time.NewTicker(linksEvery)
	defer tick.Stop()
	told, unlinked := false, map[string]time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		p.sweepNames(time.Now())
		changed, err := p.links.reread()
		if err != nil && !told {
			p.log.Warn().Err(err).Str("field", "federation.networks").Msg("keys of other networks not read: those read before are used")
		}
		if told = err != nil; changed {
			p.log.Info().Int("networks", len(p.links.names())).Msg("networks known by their keys have changed")
			p.stream.SetKnown(p.links.known())
			p.shares.relinked()
			p.view.relinked(p.store.Current(), time.Now())
		}
		p.shares.relocated()
		p.warnUnlinked(unlinked, time.Now())
	}
}

// unlinkedEvery is how often a warning says that one network is not linked.
const unlinkedEvery = time.Hour

// warnUnlinked warns of networks that are told of and not linked; told is when it last did.
func (p *Proxy) warnUnlinked(told map[string]time.Time, now time.Time) {
	maps.DeleteFunc(told, func(_ string, at time.Time) bool { return now.Sub(at) >= unlinkedEvery })
	for network, text := range p.unlinked() {
		if _, lately := told[network]; !lately {
			told[network] = now
			p.log.Warn().Str("network", network).Str("field", "federation.networks").Str("file", p.links.path).Msg(text)
		}
	}
}

func (p *Proxy) unlinked() map[string]string {
	if p.stream == nil {
		return nil
	}
	snap := p.store.Current()
	return p.links.unlinked(p.stream.Held(), snap.HasNetwork)
}

// unlinked says, by network, what is wrong with those of held, which gateways tell of, that
// neither the file nor discovery lists.
func (l *linkFile) unlinked(held []string, listed func(network string) bool) map[string]string {
	if l == nil {
		return nil
	}
	names := slices.DeleteFunc(l.names(), func(n string) bool { return slices.Contains(held, n) })
	out := map[string]string{}
	for _, n := range held {
		if n == l.own || l.has(n) || listed(n) {
			continue
		}
		remedy := fmt.Sprintf("add what `isthmus network show` prints there to %s", l.path)
		if near := strictyaml.Nearest(n, names); near != "" {
			remedy = fmt.Sprintf("did you mean %q in %s? Otherwise add what `isthmus network show` prints there", near, l.path)
		}
		out[n] = fmt.Sprintf("no entry for network %s, which gateways of this network tell of: nothing that it exports is used: %s", n, remedy)
	}
	return out
}

// foreign says which identities that the discovery file lists of shares are of a trust
// domain that neither the mesh is in nor the link to that network lets answer.
func (p *Proxy) foreign(snap *mesh.Snapshot) (list []string) {
	for _, svc := range snap.Services() {
		for _, network := range snap.Networks(svc) {
			x, ok := snap.Share(svc, network)
			if !ok || network == p.cfg.Network {
				continue
			}
			link, _ := p.links.get(network)
			for _, id := range x.Identities {
				if td := id.TrustDomain().Name(); td != snap.TrustDomain() && !slices.Contains(link.TrustDomains, td) {
					list = append(list, fmt.Sprintf("shares: identities of %s on network %s: %q: trust domain %s is not that of the mesh (%s), and the link to that network does not let it answer: correct the identity, or add %[4]s to trustDomains of %[2]s in federation.networks",
						svc.Hostname, network, id, td, snap.TrustDomain()))
				}
			}
		}
	}
	const most = 10
	if more := len(list) - most; more > 0 {
		list = append(list[:most:most], fmt.Sprintf("shares: %d identities more are of trust domains that may not answer", more))
	}
	return list
}

// doubts is what operators are to know of links: what does not hold of them, and why.
func (p *Proxy) doubts() (list []string) {
	if err := p.links.failure(); err != nil {
		list = append(list, "federation.networks not read, what was read before is used: "+err.Error())
	}
	list = slices.AppendSeq(list, maps.Values(p.unlinked()))
	slices.Sort(list)
	return append(append(list, p.stream.Unproven()...), p.shares.problems()...)
}
