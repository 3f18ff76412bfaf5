package discovery

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// Share is what another network says of its part of one service, without a word of its
// workloads.
type Share struct {
	Network             string      `yaml:"network" doc:"required; the network whose share it is"`
	Name                string      `yaml:"name" doc:"required; of the service"`
	Namespace           string      `yaml:"namespace" default:"default" doc:"of the service"`
	Hostname            string      `yaml:"hostname" doc:"canonical name of the service; <name>.<namespace>.svc.cluster.local when left out"`
	Aliases             []string    `yaml:"aliases" doc:"other names, if the service is not listed under services; it also has <name>.<namespace>.mesh.internal"`
	Ports               []SharePort `yaml:"ports" doc:"required; what clients may ask for there: at least one"`
	Scope               string      `yaml:"scope" default:"global" doc:"who may reach it: segment (networks of the same segment), global or global-only"`
	TrafficDistribution string      `yaml:"trafficDistribution" default:"PreferNetwork" doc:"which endpoints come first, if the service is not listed under services"`
	Created             time.Time   `yaml:"created" doc:"when the service was created there, such as 2026-11-22T10:00:00Z: of two networks that say different things of a service that is not listed under services, the earlier one's hold"`
	Identities          []string    `yaml:"identities" doc:"required; SPIFFE IDs of those who may answer there: at least one"`
	Capacity            *uint32     `yaml:"capacity" default:"1" doc:"its weight beside other networks and workloads, and how many workloads it counts as, while the gateways there say nothing of its health; 0: nobody answers there"`
}

// SharePort is a port that clients may ask for.
type SharePort struct {
	Name string `yaml:"name" doc:"optional; unique in the share"`
	Port uint16 `yaml:"port" doc:"required; what clients dial, 1 to 65535"`
}

func (Share) kind() Kind { return KindShare }

func (s Share) read(r *reader) reading {
	x := &mesh.Export{Name: s.Name, Namespace: or(s.Namespace, defaultNamespace), Capacity: 1}
	named := r.label(at{"name"}, s.Name) && r.label(at{"namespace"}, x.Namespace)
	where := at{"name"}
	if x.Hostname = strings.ToLower(s.Hostname); s.Hostname != "" {
		if where = (at{"hostname"}); !isHostname(x.Hostname) {
			r.out(CauseValue, where, x.Hostname, "is not a host name: use lower-case letters, digits, hyphens and dots")
		}
	} else if named {
		x.Hostname = s.Name + "." + x.Namespace + ".svc.cluster.local"
	}
	out := reading{share: x, on: s.Network, created: s.Created, claims: []claim{{what: shareName, text: s.Network + " " + x.Hostname, path: where}}}
	s.addAliases(r, &out, named)
	x.Ports = s.ports(r)
	switch x.Scope = mesh.Scope(or(s.Scope, string(mesh.ScopeGlobal))); {
	case x.Scope == mesh.ScopeCluster:
		r.out(CauseValue, at{"scope"}, s.Scope, "is not for other networks: use segment, global or global-only, or remove the share")
	case !slices.Contains(scopes, x.Scope):
		r.out(CauseValue, at{"scope"}, s.Scope, "is not a scope: use segment, global or global-only")
	}
	x.Distribution, _ = r.distribution(at{"trafficDistribution"}, s.TrafficDistribution, Inherited{})
	x.Identities = s.identities(r)
	if s.Capacity != nil {
		x.Capacity = mesh.RoundCapacity(uint64(*s.Capacity))
	}
	return out
}

// addAliases adds the names that the service has besides its hostname.
func (s Share) addAliases(r *reader, out *reading, named bool) {
	x := out.share
	add := func(path at, name string) {
		if name != x.Hostname && !slices.Contains(x.Aliases, name) {
			out.offers = append(out.offers, claim{what: sharedAlias, text: name, path: path})
			x.Aliases = append(x.Aliases, name)
		}
	}
	for i, a := range s.Aliases {
		if a = strings.ToLower(a); isHostname(a) {
			add(at{"aliases", i}, a)
		} else {
			r.drop(CauseValue, at{"aliases", i}, a, "is not a host name: use lower-case letters, digits, hyphens and dots")
		}
	}
	if named {
		add(at{"name"}, s.Name+"."+x.Namespace+".mesh.internal")
	}
}

func (s Share) ports(r *reader) (out []mesh.ExportPort) {
	if len(s.Ports) == 0 {
		r.out(CauseMissing, at{"ports"}, nil, "is empty: list at least one port")
		return nil
	}
	for i, p := range s.Ports {
		path := at{"ports", i}
		switch {
		case p.Port == 0:
			r.drop(CauseValue, path.below("port"), p.Port, "is not a port: write a number from 1 to 65535")
		case slices.ContainsFunc(out, func(o mesh.ExportPort) bool { return o.Port == p.Port }):
			r.drop(CauseConflict, path.below("port"), p.Port, "is listed already: list each port once")
		case p.Name != "" && slices.ContainsFunc(out, func(o mesh.ExportPort) bool { return o.Name == p.Name }):
			r.drop(CauseConflict, path.below("name"), p.Name, "is the name of an earlier port: give each port its own name")
		default:
			out = append(out, mesh.ExportPort(p))
		}
	}
	if len(out) == 0 { // each has its own remedy
		r.problems[len(r.problems)-1].Out = true
	}
	return out
}

// identities leaves out what is no SPIFFE ID; without any nobody may answer.
func (s Share) identities(r *reader) (out []spiffeid.ID) {
	if len(s.Identities) == 0 {
		r.out(CauseMissing, at{"identities"}, nil, "is empty: list the SPIFFE IDs of those who may answer, such as spiffe://cluster.local/ns/default/sa/web")
		return nil
	}
	for i, text := range s.Identities {
		id, err := spiffeid.FromString(text)
		if err != nil || id.Path() == "" {
			r.drop(CauseValue, at{"identities", i}, text, "is not the SPIFFE ID of a workload: write such as spiffe://cluster.local/ns/default/sa/web")
			continue
		}
		out = append(out, id)
	}
	if len(out) == 0 { // each has its own remedy
		r.problems[len(r.problems)-1].Out = true
	}
	slices.SortFunc(out, func(a, b spiffeid.ID) int { return strings.Compare(a.String(), b.String()) })
	return slices.Clip(slices.Compact(out))
}

// sharedService is a service that no Service record lists, as its shares describe it.
type sharedService struct{ service *mesh.Service }

func (sharedService) kind() Kind { return KindService }

func (s sharedService) read(*reader) reading {
	out := reading{service: s.service, claims: []claim{{what: sharedHost, text: s.service.Hostname, path: at{"hostname"}}}}
	for _, a := range s.service.Aliases {
		out.extras = append(out.extras, claim{what: sharedAlias, text: a, path: at{"aliases"}})
	}
	return out
}

func keyOfShared(host string) Key {
	return Key{Kind: KindService, Name: host, Source: derivedFromShares}
}

// serviceOf returns the service that shares describe, which are in: what the oldest
// says of it, with the ports that all of them have.
func serviceOf(shares []*entry) *mesh.Service {
	age := func(a, b *entry) int { // what is not known is youngest
		unknown := func(e *entry) int {
			if e.reading.created.IsZero() {
				return 1
			}
			return 0
		}
		return cmp.Or(cmp.Compare(unknown(a), unknown(b)), a.reading.created.Compare(b.reading.created), a.before(b))
	}
	x := slices.MinFunc(shares, age).reading.share
	svc := &mesh.Service{Name: x.Name, Namespace: x.Namespace, Hostname: x.Hostname, Aliases: x.Aliases, Scope: x.Scope, Distribution: x.Distribution,
		DistributionFrom: mesh.FromService,
		Takeover:         x.Scope != mesh.ScopeGlobalOnly} // of a name that nobody here has, there is nothing to take over
	for _, p := range x.Ports {
		if !slices.ContainsFunc(shares, func(e *entry) bool { return !e.reading.share.Offers(p.Port) }) {
			svc.Ports = append(svc.Ports, mesh.Port{Name: p.Name, Service: p.Port, Target: p.Port})
		}
	}
	return svc
}

// enlist and delist keep the shares of each hostname.

func (b *Builder) enlist(e *entry) {
	if host := e.reading.sharedHost(); e.key.Kind == KindShare {
		b.shares[host] = append(b.shares[host], e)
	}
}

func (b *Builder) delist(e *entry) {
	if e.key.Kind != KindShare {
		return
	}
	host := e.reading.sharedHost()
	left := slices.DeleteFunc(b.shares[host], func(o *entry) bool { return o == e })
	if len(left) == 0 {
		delete(b.shares, host)
		return
	}
	b.shares[host] = left
}

// sharedHost is the hostname of the service that a share, or several, are of.
func (r *reading) sharedHost() string {
	switch {
	case r.folded != nil:
		return r.folded.hostname
	case r.share != nil:
		return r.share.Hostname
	}
	return ""
}

// sharesIn returns the shares of a hostname that records tell and that are in, one for
// each network at most.
func (b *Builder) sharesIn(host string) []*entry {
	return slices.DeleteFunc(slices.Clone(b.shares[host]), func(e *entry) bool { return !e.in || e.reading.folded != nil })
}

// tells returns the shares of a hostname that there are: first those that follow from
// workloads which were listed.
func (b *Builder) tells(host string) (told []mesh.Told) {
	for _, e := range b.shares[host] {
		if e.in && e.reading.folded != nil {
			told = append(told, e.reading.folded.shares...)
		}
	}
	for _, e := range b.sharesIn(host) {
		if !slices.ContainsFunc(told, func(t mesh.Told) bool { return t.Network == e.reading.on }) {
			told = append(told, mesh.Told{Network: e.reading.on, Export: e.reading.share})
		}
	}
	return told
}

// describeShared adds and removes services that only shares describe, now that those
// which records list are settled.
func (b *Builder) describeShared() {
	for name := range b.aliases { // every name that changed is among them
		if b.shares[name] != nil {
			b.shared[name] = struct{}{}
		}
	}
	for host := range b.shared {
		key := keyOfShared(host)
		var record Record
		if in := b.sharesIn(host); len(in) > 0 && b.claims.listed(host) == nil {
			record = sharedService{serviceOf(in)}
		}
		old := b.entries[key]
		if old != nil && record != nil && reflect.DeepEqual(old.record, record) {
			continue
		}
		if old != nil {
			b.remove(old)
		}
		if record != nil {
			b.add(key, record)
		}
	}
}

// commitShares says of each service that may have other shares now which it has.
func (b *Builder) commitShares() {
	for host := range b.hosts {
		b.shared[host] = struct{}{}
	}
	for name := range b.aliases { // of a hostname that is another service's alias now, or no more
		b.shared[name] = struct{}{}
	}
	for host := range b.shared {
		if b.edit.TellShares(host, b.tells(host)) {
			b.changes.service(host)
		}
		for _, e := range b.shares[host] {
			b.refresh(e)
		}
	}
}

// membersChanged notes that the listed workloads of a service changed: a share beside
// them may have become one too many, or not.
func (b *Builder) membersChanged(host string) {
	for _, e := range b.shares[host] {
		b.refresh(e)
	}
}

// checkShare says what of the share e counts for nothing as things stand.
func (b *Builder) checkShare(r *reader, e *entry) {
	if !e.in || e.reading.folded != nil {
		return
	}
	x, here := e.reading.share, e.reading.claims[0].path
	has := b.claims.named(x.Hostname)
	switch {
	case has == nil:
		return
	case has.reading.service.Hostname != x.Hostname:
		r.drop(CauseConflict, here, x.Hostname, "is also a name of %s, so that this share counts for nothing: write the hostname of that service", has.key)
		return
	case has.key.Source != derivedFromShares:
		if svc := b.edit.Peek().Named(x.Hostname); e.key.Source == Written && svc != nil && len(b.edit.Peek().Members(svc, e.reading.on)) > 0 {
			r.drop(CauseConflict, at{"network"}, e.reading.on, "has workloads of this service that are listed, and they count: remove this share or them")
		}
		return
	}
	for i, p := range x.Ports {
		if _, all := has.reading.service.Port(p.Port); !all {
			r.drop(CauseConflict, at{"ports", i}, p.Port, "is not a port of this service on every network, and so on none: list the service under services, or the same ports at each share")
		}
	}
	for _, c := range e.reading.offers {
		if o := b.claims.named(c.text); o != nil && o != has && o.key.Source == derivedFromShares {
			e.conflict(r, c, o, false)
		}
	}
}
