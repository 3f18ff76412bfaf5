package nodeproxy

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/discovery/excerpt"
	"github.com/isthmus-mesh/isthmus/discovery/file"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/links"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/route"
)

// ownNetwork is what the gateways of the own network tell of it, where no file does. A nil
// one is that of a process with a file.
type ownNetwork struct {
	cfg    Config
	log    zerolog.Logger
	keeper *excerpt.Keeper
	dialed *gatewayAddresses
	cache  discoveryCache
	ask    func(names []string) // follows names
}

// tendEvery is how often what time alone ends is looked for.
const tendEvery = time.Second

// firstTold is how long the first connection to a name that discovery does not know waits
// for the gateway that tells of the own network.
const firstTold = time.Second

// discover opens what says what the mesh is.
func (p *Proxy) discover() (*file.Watcher, error) {
	if len(p.cfg.Discovery.Gateways) > 0 {
		w := file.Excerpt(p.cfg.Network, p.cfg.TrustDomain, p.store, p.log)
		id, domain, account := identity.ParseAccount(p.cfg.TrustDomain, p.cfg.Discovery.GatewayServiceAccount)
		if err := cmp.Or(domain, account); err != nil {
			return nil, err
		}
		p.own = &ownNetwork{cfg: p.cfg, log: p.log, dialed: newGatewayAddresses(p.cfg.Discovery.Gateways, id, p.log), cache: discoveryCache{path: p.cfg.Discovery.Cache, log: p.log}}
		p.own.ask = func(names []string) { p.stream.Follow(names...) }
		p.own.keeper = excerpt.NewKeeper(excerpt.NewHeld(p.cfg.Network, p.cfg.Node, p.cfg.TrustDomain),
			func(c ...discovery.Change) { w.Apply(c...) }, func(name string) bool { return p.stream.Follows(name) }, time.Now)
		p.own.keeper.Reread = func() { p.stream.Reread() }
		return w, nil
	}
	w, err := p.cfg.Discovery.OpenFor(p.cfg.Network, p.store, p.log)
	if err != nil {
		return nil, err
	}
	return w, p.cfg.checkKnown(p.store.Current(), w.NameOf)
}

// ownExcerpts takes what gateways tell of the own network; nil where a file says so.
func (p *Proxy) ownExcerpts() healthstream.Excerpts {
	if p.own == nil {
		return nil
	}
	return p.own.keeper
}

// ownGateways are the gateways of the own network that health streams go to.
func (p *Proxy) ownGateways() []*mesh.Gateway {
	if p.own == nil {
		return apart(p.store.Current().Gateways(p.cfg.Network))
	}
	if !p.own.told() {
		return p.own.dialed.list()
	}
	names, up := p.stream.Answered()
	return beside(p.own.dialed.list(), p.store.Current().Gateways(p.cfg.Network), p.own.dialed.identity, names, up)
}

// beside returns the gateways of configuration and those that the gateways list, so that a node proxy that
// was given one has others when that one goes. Who answers must have the identity that
// configuration gives, also where the list has another one: who tells is not believed who else may. A gateway that a stream is up to at another
// address is left out: it would end the older of two streams. names says who has answered last at an
// address, up where a stream is up: elsewhere another one may answer by now, and does if the list has
// the one that answered, or what a stream to it is up to, at an address of its own.
func beside(configured, listed []*mesh.Gateway, id spiffeid.ID, names map[netip.AddrPort]string, up map[netip.AddrPort]bool) []*mesh.Gateway {
	out, has := slices.Clone(configured), map[netip.AddrPort]bool{}
	for _, g := range configured {
		has[g.Address] = true
	}
	reached := map[string]netip.AddrPort{} // at which address of configuration, or another
	for a := range up {
		if old, is := reached[names[a]]; !is || has[a] && !has[old] || has[a] == has[old] && a.Compare(old) < 0 {
			reached[names[a]] = a
		}
	}
	for _, g := range listed {
		at := cmp.Or(g.Federation, g.Address)
		by, is := reached[cmp.Or(names[at], g.Name)]
		if is && !up[at] && slices.ContainsFunc(listed, func(o *mesh.Gateway) bool {
			other := cmp.Or(o.Federation, o.Address)
			return other != at && (o.Name == names[at] || other == by)
		}) {
			by, is = reached[g.Name]
		}
		if has[at] || is && by != at || len(out) >= maxOwnGateways {
			continue
		}
		has[at] = true
		out = append(out, &mesh.Gateway{Name: at.String(), Address: at, Identity: id})
	}
	return out
}

// run lets time pass until ctx ends.
func (o *ownNetwork) run(ctx context.Context) {
	if o == nil {
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { o.dialed.run(ctx) })
	for pause(ctx, tendEvery) {
		o.keeper.Tend()
		o.cache.keep(o.keeper, time.Now(), false)
	}
	o.cache.keep(o.keeper, time.Now(), true)
}

// told reports whether what this node needs of its network is known.
func (o *ownNetwork) told() bool { return o == nil || o.keeper.Told() }

// means reports whether the own network has something of a name or an address that was
// asked for.
func (o *ownNetwork) means(name string) bool { return o != nil && o.keeper.Means(name) }

// firstWhole is how long a new node proxy waits for a gateway that leads to tell everything, which
// may have died since without a word.
const firstWhole = settleLimit + time.Second

// await waits until a gateway has told everything, or the cache has: it is used when no
// gateway leads after settleLimit, or one does and has not told everything after firstWhole. What that
// tells then goes before the cache. False if ctx ends before.
func (o *ownNetwork) await(ctx context.Context) bool {
	if o == nil {
		return true
	}
	o.cache.policies(o.keeper)
	began, waiting := time.Now(), true
	for !o.told() {
		after := time.Since(began)
		if waiting && (after > firstWhole || after > settleLimit && o.leader() == "") {
			waiting = false
			o.cache.restore(o.keeper, o.ask)
			continue
		}
		if !pause(ctx, 10*time.Millisecond) {
			return false
		}
	}
	return true
}

// toldState is what the gateways tell, and how it stands with them.
type toldState struct {
	excerpt.Status
	Gateways []string   `json:"gateways"`           // addresses to dial
	NotFound string     `json:"notFound,omitempty"` // why names in discovery.gateways do not resolve now
	Cache    cacheState `json:"cache,omitzero"`     // cache for a start without gateways
}

func (o *ownNetwork) state(gateways []*mesh.Gateway) *toldState {
	if o == nil {
		return nil
	}
	s := &toldState{Status: o.keeper.Status(), Gateways: []string{}, Cache: o.cache.state()}
	for _, g := range gateways {
		s.Gateways = append(s.Gateways, g.Name)
	}
	if err := o.dialed.failing(); err != nil {
		s.NotFound = err.Error()
	}
	return s
}

// source says where what is known of the own network comes from; nil where a file says it.
func (o *ownNetwork) source() *answer.Told {
	if o == nil {
		return nil
	}
	s := o.keeper.Status()
	return &answer.Told{Known: s.Told, Gateway: s.Gateway, Last: o.keeper.Current(), Cached: !s.Cached.IsZero(), Doubted: s.Doubted}
}

// leader is the gateway that tells; "" if none does.
func (o *ownNetwork) leader() string { return o.keeper.Status().Gateway }

// findings says, a line each, what of the own network is not known as it should be.
func (o *ownNetwork) findings() (lines []string) {
	if o == nil {
		return nil
	}
	s := o.state(nil)
	age := (time.Duration(s.AgeMS) * time.Millisecond).Round(time.Second)
	switch {
	case !s.Told:
		lines = append(lines, "no gateway of this network has told what is on it yet: nothing is known")
	case !s.Cached.IsZero():
		lines = append(lines, fmt.Sprintf("no gateway of this network tells what is on it: what is known is from the cache %s and %v old", s.Cache.Path, age))
	case s.Gateway == "":
		lines = append(lines, fmt.Sprintf("no gateway of this network tells what is on it: what is known is %v old", age))
	}
	if s.Told && s.Gateway != "" && !s.Policed {
		lines = append(lines, fmt.Sprintf("gateway %s tells no policies: its version has none, or the API server refuses it their list (`isthmus status` there): the %d that were known stay in force, and changes do not arrive", s.Gateway, s.Policies))
	}
	if s.NotFound != "" {
		lines = append(lines, "discovery.gateways: "+s.NotFound)
	}
	if s.Held != "" {
		lines = append(lines, s.Held)
	}
	if s.Older != "" {
		lines = append(lines, s.Older)
	}
	if s.LeftOut > 0 {
		lines = append(lines, fmt.Sprintf("%d objects that gateway %s has told this node proxy of are left out, beyond its bound of %s: they are asked for again when there is room; if no node needs that much, see whether the gateway can be trusted", s.LeftOut, s.Gateway, s.Bound))
	}
	if s.Odd != "" {
		lines = append(lines, "gateway "+s.Gateway+" has told what makes no sense, which is not used: "+s.Odd)
	}
	if s.Cache.LastError != "" {
		lines = append(lines, "discovery.cache "+s.Cache.Path+": "+s.Cache.LastError)
	}
	return lines
}

// firstAnswer is how long the first connection to a name waits for gateways.
func (p *Proxy) firstAnswer() time.Duration {
	if p.own != nil {
		return firstTold
	}
	return firstUse
}

// askable returns what gateways are asked for when discovery does not know what flow asks
// for; not ok for what none of them could know. Other networks export by the canonical
// hostname; the own one is asked for any name, and for addresses.
func (p *Proxy) askable(flow route.Flow) (name string, ok bool) {
	host := strings.ToLower(strings.TrimSuffix(flow.Host, "."))
	if p.own != nil {
		if a, err := netip.ParseAddr(host); err == nil {
			return a.Unmap().String(), a.Zone() == ""
		}
		if a := flow.Addr.Addr(); host == "" && a.IsValid() {
			return a.Unmap().String(), a.Zone() == ""
		}
	}
	name, ok = links.Canonical(host)
	if !ok && p.own != nil && host != "" && !strings.Contains(host, ".") {
		_, ok = links.Canonical(host + ".local") // an alias of one word
		name = host
	}
	return name, ok && (p.links != nil || p.own != nil)
}

// announce and forget tell what the CNI plugin says of the addresses of pods; where a file says it all they do nothing.

func (o *ownNetwork) announce(uid string, addresses []netip.Addr) {
	if o != nil {
		o.keeper.Announce(uid, addresses)
	}
}

func (o *ownNetwork) forget(uid string) {
	if o != nil {
		o.keeper.Forget(uid)
	}
}
