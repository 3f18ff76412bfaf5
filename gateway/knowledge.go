package gateway

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/isthmus-mesh/isthmus/federation/gossip"
	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// federate builds this gateway's two ways of hearing and telling.
func (g *Gateway) federate() error {
	var err error
	metrics := peer.NewMetrics(g.registry)
	if g.nodes, err = g.listenToNodes(metrics); err != nil {
		return err
	}
	g.fed, err = gossip.New(gossip.Config{
		Name: g.cfg.Name, Network: g.cfg.Network, Self: g.self.Identity, Identity: g.ids, Keys: g.keys, Peers: g.peers, Doors: g.doors.all, DoorFailed: g.doors.unreachable, Log: g.log, Metrics: metrics,
	})
	if err == nil {
		g.warnOfKeys()
	}
	return err
}

// warnOfKeys says at the start of which networks nothing will be believed: discovery
// lists gateways of them, and no key of theirs is known.
func (g *Gateway) warnOfKeys() {
	keys, err := g.keys()
	if err != nil {
		return // gossip.New has refused it
	}
	if d, err := keyfile.Open(g.cfg.Federation.Keys); err == nil && d.NextError != nil {
		g.log.Warn().Err(d.NextError).Str("field", "federation.keys").Msg("the key of this network cannot be rotated")
	}
	var others []string // which of those in the file may be a misspelling
	for _, n := range slices.Sorted(maps.Keys(keys.Known)) {
		if n != g.cfg.Network && len(g.store.Current().Gateways(n)) == 0 {
			others = append(others, n)
		}
	}
	for _, n := range g.store.Current().GatewayNetworks() {
		if len(keys.Known[n]) == 0 {
			g.log.Warn().Str("network", n).Str("field", "federation.networks").Str("file", g.cfg.Federation.Networks).
				Msgf("no key for network %s, whose gateways %s lists: nothing that they say is believed: %s", n, g.cfg.Discovery.File, g.keyRemedy(n, others))
		}
	}
}

// disbelieved says what this gateway does not believe others for want of their keys.
func (g *Gateway) disbelieved() (list []string) {
	if g.fed == nil {
		return nil
	}
	if err := g.fed.KeysError(); err != nil {
		list = append(list, "network keys not read, those read before are used: "+err.Error())
	}
	into := cmp.Or(g.cfg.Federation.Networks, "a file, and name it as federation.networks")
	if g.ring().ListsOwn() {
		into = fmt.Sprintf("a file of its own, and name it as federation.networks: %s is for this network alone", g.cfg.Federation.Networks)
	}
	for _, n := range g.store.Current().GatewayNetworks() {
		if !g.fed.Knows(n) {
			list = append(list, fmt.Sprintf("no key for network %s: nothing that its gateways say is believed: add what `isthmus network show` prints there to %s", n, into))
		}
	}
	list = append(list, g.doors.problems(g.hears)...)
	for _, err := range g.fed.Refused() {
		list = append(list, "not believed: "+err.Error())
	}
	return list
}

// keyRemedy says how the key of network comes to be known. listed are the networks in
// the file that discovery lists no gateways of.
func (g *Gateway) keyRemedy(network string, listed []string) string {
	entry := fmt.Sprintf("%s's entry (`isthmus network show` there prints it)", network)
	if g.cfg.Federation.Networks == "" {
		return "set federation.networks to a file with " + entry
	}
	if g.ring().ListsOwn() {
		return fmt.Sprintf("set federation.networks to a file of its own with %s: %s is for this network alone", entry, g.cfg.Federation.Networks)
	}
	if near := strictyaml.Nearest(network, listed); near != "" {
		return fmt.Sprintf("did you mean %q in %s? Otherwise add %s", near, g.cfg.Federation.Networks, entry)
	}
	return fmt.Sprintf("add %s to %s", entry, g.cfg.Federation.Networks)
}

// ring is where the keys are.
func (g *Gateway) ring() keyfile.Ring {
	return keyfile.Ring{Dir: g.cfg.Federation.Keys, List: g.cfg.Federation.Networks}
}

// keys reads the keys of this network and of the others.
func (g *Gateway) keys() (gossip.Keys, error) {
	key, known, err := g.ring().Load(g.cfg.Network, "federation.keys", "federation.networks")
	if err == nil {
		err = g.believe()
	}
	return gossip.Keys{Network: key, Known: known}, err
}

// believe takes the roots of other networks' trust domains, as the file has them now.
func (g *Gateway) believe() error {
	if g.cfg.Federation.Networks == "" {
		return nil
	}
	_, links, err := keyfile.ReadLinks(g.cfg.Federation.Networks)
	if err != nil {
		return fmt.Errorf("federation.networks: %w", err)
	}
	delete(links, g.cfg.Network)
	if g.ids.Believe(keyfile.Roots(links)) {
		if n := g.sessions.Sever(g.untrusted, g.cfg.Timeouts.Drain, hbone.ErrUntrusted); n > 0 {
			g.log.Info().Int("sessions", n).Stringer("drain", g.cfg.Timeouts.Drain).Msg("sessions of unlinked networks draining")
		}
	}
	g.doors.setLinks(links)
	return nil
}

// untrusted reports whether the client of s proved itself by a root that was removed from
// federation.networks since.
func (g *Gateway) untrusted(s *hbone.Session) bool {
	state, ok := s.TLS()
	return ok && g.ids.Revoked(g.self.Identity, state)
}

// peers lists every other gateway of every network.
func (g *Gateway) peers() []*mesh.Gateway {
	snap := g.store.Current()
	var out []*mesh.Gateway
	for _, n := range snap.GatewayNetworks() {
		for _, x := range snap.Gateways(n) {
			if n != g.cfg.Network || x.Name != g.cfg.Name {
				out = append(out, x)
			}
		}
	}
	return out
}

// publish tells every network.
func (g *Gateway) publish(records []record.Record, withdrawn ...record.Key) {
	if g.fed != nil {
		g.fed.Publish(records, withdrawn...)
	}
}
