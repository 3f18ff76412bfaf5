package nodeproxy

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/links"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/internal/logging"
	"github.com/isthmus-mesh/isthmus/internal/resolve"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// toldShares puts what other networks have proven to offer into discovery, beside the
// file, whose word goes first: a share of each service that is followed, and the
// gateways that lead there. What they may claim is bounded by links: who may answer, and
// with how much weight; as which identity gateways must show themselves these do not say
// at all. Safe for concurrent use; a nil one does nothing.
type toldShares struct {
	own      string // network
	snapshot func() *mesh.Snapshot
	links    *links.File
	from     offers
	apply    func(...discovery.Change)
	log      zerolog.Logger
	names    *resolve.Resolver         // of host names; nil: IP addresses alone are dialed
	usesQUIC func(network string) bool // nil: none

	mu     sync.Mutex // held while it applies: the latest word is applied last
	told   map[discovery.Key]discovery.Record
	ways   map[string][]discovery.Key // gateways of told, by network
	faults map[discovery.Key]string   // what does not hold of that, in words
	unused map[string][]discovery.Key // gateways that have a fault, by network
	lines  logging.PeerLimits         // of the log, by network and object
	hosts  map[string][]string        // names of the hosts that gateways have told, by network
	admits links.Admission
}

// offers is what the health streams have proven; *healthstream.Client is one.
type offers interface {
	Known(network, service string) (healthstream.Known, bool)
	Gateways(network string) []healthstream.Gateway
}

func newToldShares(own string, snapshot func() *mesh.Snapshot, l *links.File, from offers, apply func(...discovery.Change), log zerolog.Logger) *toldShares {
	if l == nil {
		return nil
	}
	return &toldShares{own: own, snapshot: snapshot, links: l, from: from, apply: apply, log: log, told: map[discovery.Key]discovery.Record{}, ways: map[string][]discovery.Key{}, faults: map[discovery.Key]string{}, unused: map[string][]discovery.Key{}, lines: logging.PeerLimits{Every: faultEvery}, hosts: map[string][]string{}}
}

func shareKey(network, service string) discovery.Key {
	return discovery.Key{Kind: discovery.KindShare, Source: discovery.Told, Name: network + "/" + service}
}

func gatewayKeyOf(network, name string) discovery.Key {
	return discovery.Key{Kind: discovery.KindGateway, Source: discovery.Told, Name: network + "/" + name}
}

func networkKeyOf(network string) discovery.Key {
	return discovery.Key{Kind: discovery.KindNetwork, Source: discovery.Told, Name: network}
}

// update brings into force what is known of one service.
func (t *toldShares) update(service string) {
	if t == nil {
		return
	}
	var changes []healthstream.Change
	for _, n := range t.links.Names() {
		changes = append(changes, healthstream.Change{Service: service, Network: n})
	}
	t.updateAll(changes)
}

// updateAll brings into force what is known of shares now.
func (t *toldShares) updateAll(shares []healthstream.Change) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	networks := map[string]bool{}
	next := map[discovery.Key]discovery.Record{}
	for _, c := range shares {
		if networks[c.Network] = true; c.Network == t.own {
			continue
		}
		next[shareKey(c.Network, c.Service)] = t.share(c.Network, c.Service)
	}
	delete(networks, t.own)
	t.put(next, networks)
}

// relinked is updateAll of everything, after the file of links has changed.
func (t *toldShares) relinked() {
	t.mu.Lock()
	defer t.mu.Unlock()
	networks := map[string]bool{}
	next := map[discovery.Key]discovery.Record{}
	for k, r := range t.told {
		if s, ok := r.(discovery.Share); ok {
			networks[s.Network] = true
			next[k] = t.share(s.Network, s.Hostname)
		}
	}
	for k := range t.faults { // of which nothing may be in force
		network, service, _ := strings.Cut(k.Name, "/")
		if networks[network] = true; k.Kind == discovery.KindShare {
			next[k] = t.share(network, service)
		}
	}
	t.put(next, networks)
}

// put brings next, and the gateways of networks, into force; a nil record is none. The
// caller holds mu.
func (t *toldShares) put(next map[discovery.Key]discovery.Record, networks map[string]bool) {
	for network := range networks {
		for _, k := range t.ways[network] {
			next[k] = nil
		}
		next[networkKeyOf(network)] = nil
		delete(t.ways, network)
		for k, g := range t.gateways(network) {
			next[k] = g
			t.ways[network] = append(t.ways[network], k)
		}
		if len(t.ways[network]) > 0 {
			next[networkKeyOf(network)] = discovery.Network{Name: network}
		}
	}
	var changes []discovery.Change
	for k, r := range next {
		if old, was := t.told[k]; r == nil && was {
			delete(t.told, k)
		} else if r == nil || was && reflect.DeepEqual(old, r) {
			continue
		} else {
			t.told[k] = r
		}
		changes = append(changes, discovery.Change{Key: k, Record: r})
	}
	if len(changes) == 0 {
		return
	}
	slices.SortFunc(changes, func(a, b discovery.Change) int {
		return cmp.Or(cmp.Compare(a.Key.Kind, b.Key.Kind), cmp.Compare(a.Key.Name, b.Key.Name))
	})
	t.apply(changes...)
}

// share is what holds of the export of service on network; nil: nothing.
func (t *toldShares) share(network, service string) discovery.Record {
	k := shareKey(network, service)
	link, linked := t.links.Get(network)
	known, _ := t.from.Known(network, service)
	if !linked || known.Offer == nil {
		t.fault(k, "")
		t.admits.Forget(network, service)
		return nil
	}
	admitted, ok, fault := t.admits.Admit(link, links.Offer{Network: network, Service: service, Export: known.Offer, Differ: known.Differ}, t.snapshot().TrustDomain(), t.listed)
	if t.fault(k, fault); !ok {
		return nil
	}
	s := discovery.Share{Network: network, Name: admitted.Name, Namespace: admitted.Namespace, Hostname: service, Aliases: admitted.Aliases, Scope: string(admitted.Scope),
		TrafficDistribution: string(admitted.Distribution), Capacity: &admitted.Capacity}
	if known.Offer.Created > 0 {
		s.Created = time.Unix(known.Offer.Created, 0).UTC()
	}
	for _, p := range admitted.Ports {
		s.Ports = append(s.Ports, discovery.SharePort(p))
	}
	for _, id := range admitted.Identities {
		s.Identities = append(s.Identities, id.String())
	}
	return s
}

// listed is the namespace of a service whose name does not say it, by what is listed here.
func (t *toldShares) listed(service string) (string, bool) {
	if svc := t.snapshot().Named(service); svc != nil {
		return svc.Namespace, true
	}
	return "", false
}

// gateways are those of network that have proved where they are, one of each name: the
// instance that lives and does not drain goes first, then that with the latest certificate.
// What does not hold of those that are gone is forgotten. The caller holds mu.
func (t *toldShares) gateways(network string) map[discovery.Key]discovery.Record {
	out := map[discovery.Key]discovery.Record{}
	link, linked := t.links.Get(network)
	before := t.unused[network]
	delete(t.unused, network)
	delete(t.hosts, network)
	defer t.followNames()
	defer func() {
		for _, k := range before {
			if !slices.Contains(t.unused[network], k) {
				t.fault(k, "")
			}
		}
	}()
	if !linked {
		return out
	}
	best := map[string]healthstream.Gateway{}
	for _, g := range t.from.Gateways(network) {
		if old, ok := best[g.Name]; !ok || rankOf(g) > rankOf(old) || rankOf(g) == rankOf(old) && g.Issued.After(old.Issued) {
			best[g.Name] = g
		}
	}
	live := map[record.Address]bool{} // addresses at which a replica is that lives
	for _, g := range best {
		for _, a := range g.Body.Addresses {
			live[a] = live[a] || g.Live
		}
	}
	for _, name := range slices.Sorted(maps.Keys(best)) {
		k, b := gatewayKeyOf(network, name), best[name].Body
		if !best[name].Live && slices.ContainsFunc(b.Addresses, func(a record.Address) bool { return live[a] }) {
			continue // a replica that is gone, and whose siblings answer in its place
		}
		var before, beforeQUIC []netip.AddrPort
		if old, ok := t.told[k].(discovery.Gateway); ok {
			before, beforeQUIC = append([]netip.AddrPort{old.Address}, old.MoreAddresses...), old.QUICAddresses
		}
		at, odd := t.addressesOf(network, b.Addresses, before)
		quic, oddQUIC := t.addressesOf(network, b.QUIC, beforeQUIC)
		if len(at) == 0 {
			t.fault(k, fmt.Sprintf("gateway %s of network %s is not used: %s", name, network, odd))
			t.unused[network] = append(t.unused[network], k)
			continue
		}
		if len(b.QUIC) > 0 && len(quic) == 0 && t.usesQUIC != nil && t.usesQUIC(network) {
			t.fault(k, fmt.Sprintf("QUIC to gateway %s of network %s is dialed at its addresses for TCP: %s", name, network, oddQUIC))
			t.unused[network] = append(t.unused[network], k)
		}
		out[k] = discovery.Gateway{Name: name, Network: network, Address: at[0], MoreAddresses: slices.Clip(at[1:]), QUICAddresses: quic, ServiceAccount: link.GatewayServiceAccount, TrustDomain: link.GatewayDomain(), Locality: discovery.Locality(b.Locality), Drained: b.Draining}
	}
	return out
}

func rankOf(g healthstream.Gateway) (rank int) {
	if g.Live {
		rank += 2
	}
	if !g.Body.Draining {
		rank++
	}
	return rank
}

// faultEvery is how often a line says what does not hold of one object, and of all
// objects of a network beyond the first 64 together.
const faultEvery = 10 * time.Second

// fault notes, and logs, what does not hold of k; empty: nothing. The caller holds mu.
func (t *toldShares) fault(k discovery.Key, text string) {
	old := t.faults[k]
	if old == text {
		return
	}
	if text == "" {
		delete(t.faults, k)
		return
	}
	t.faults[k] = text
	network, _, _ := strings.Cut(k.Name, "/")
	t.lines.Sample(t.log.Warn(), network, k.String()).Str("object", k.String()).Str("problem", text).Msg("not all that another network exports is used")
}

// problems returns what does not hold of what other networks offer, sorted.
func (t *toldShares) problems() []string {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Sorted(maps.Values(t.faults))
}
