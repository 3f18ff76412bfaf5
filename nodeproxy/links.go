package nodeproxy

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/mesh"
)

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
		changed, err := p.links.Reread()
		removed := p.ids.Believe(p.links.Roots())
		if err != nil && !told {
			p.log.Warn().Err(err).Str("field", "federation.networks").Msg("keys of other networks not read: those read before are used")
		}
		if told = err != nil; changed {
			p.log.Info().Int("networks", len(p.links.Names())).Msg("networks known by their keys have changed")
			p.stream.SetKnown(p.links.Known())
			p.shares.relinked()
			p.view.relinked(p.store.Current(), time.Now())
		}
		p.shares.relocated()
		p.sever(removed)
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
			p.log.Warn().Str("network", network).Str("field", "federation.networks").Str("file", p.links.Path()).Msg(text)
		}
	}
}

func (p *Proxy) unlinked() map[string]string {
	if p.stream == nil {
		return nil
	}
	snap := p.store.Current()
	return p.links.Unlinked(p.stream.Held(), snap.HasNetwork)
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
			link, _ := p.links.Get(network)
			for _, id := range x.Identities {
				if td := id.TrustDomain().Name(); td != snap.TrustDomain() && !slices.Contains(link.Domains(), td) {
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
	if err := p.links.Failure(); err != nil {
		list = append(list, "federation.networks not read, what was read before is used: "+err.Error())
	}
	list = slices.AppendSeq(list, maps.Values(p.unlinked()))
	slices.Sort(list)
	return append(append(list, p.stream.Unproven()...), p.shares.problems()...)
}
