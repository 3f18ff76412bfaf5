package discovery

import (
	"cmp"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// Share is one remote service: a service as one other network offers it, without its
// workloads.
type Share struct {
	Network             string        `yaml:"network" doc:"required; the network that offers it"`
	Name                string        `yaml:"name" doc:"required; of the service"`
	Namespace           string        `yaml:"namespace" default:"default" doc:"of the service"`
	Hostname            string        `yaml:"hostname" doc:"canonical name of the service; <name>.<namespace>.svc.cluster.local when left out"`
	Aliases             []string      `yaml:"aliases" doc:"other names, if the service is not listed under services (rejected in exports of other networks); <name>.<namespace>.mesh.internal is always one"`
	Ports               []SharePort   `yaml:"ports" doc:"required; ports that clients may dial: at least one"`
	Scope               string        `yaml:"scope" default:"global" doc:"reach: segment (networks of the same segment) or global (global-only is the same)"`
	TrafficDistribution string        `yaml:"trafficDistribution" default:"PreferNetwork" doc:"order of endpoints, if the service is not listed under services and all its entries agree; otherwise, and for StrictNode, PreferNetwork"`
	Created             time.Time     `yaml:"created" doc:"time of the export there, such as 2026-11-22T10:00:00Z. For a service that is not listed under services, the oldest entry determines its name and ports; an entry without a time is the youngest"`
	Identities          []string      `yaml:"identities" doc:"required unless capacity is 0; SPIFFE IDs of the workloads there: at least one"`
	Headless            bool          `yaml:"-"` // see mesh.Service
	Affinity            mesh.Affinity `yaml:"-"`
	Capacity            *uint32       `yaml:"capacity" default:"1" doc:"its weight relative to other networks and workloads, and the number of workloads it counts as, until gateways there report its health; 0: no workload answers there"`
}

// SharePort is a port that clients may dial.
type SharePort struct {
	Name string `yaml:"name" doc:"optional; unique in the entry"`
	Port uint16 `yaml:"port" doc:"required; what clients dial, 1 to 65535"`
}

func (Share) kind() Kind { return KindShare }

func (s Share) read(r *reader) reading {
	x := &mesh.Export{Name: s.Name, Namespace: or(s.Namespace, defaultNamespace), Capacity: 1, Headless: s.Headless, Affinity: s.Affinity}
	named := r.label(at{"name"}, s.Name) && r.label(at{"namespace"}, x.Namespace)
	where := at{"name"}
	if x.Hostname = strings.ToLower(s.Hostname); s.Hostname != "" {
		if where = (at{"hostname"}); !isHostname(x.Hostname) {
			r.out(CauseValue, where, x.Hostname, "is not a host name: use lower-case letters, digits, hyphens and dots")
		}
	} else if named {
		x.Hostname = s.Name + "." + x.Namespace + ".svc.cluster.local"
	}
	out := reading{share: x, on: s.Network, claims: []claim{{what: shareName, text: s.Network + " " + x.Hostname, path: where}}}
	created, ok := s.Since()
	if !ok {
		r.drop(CauseValue, at{"created"}, s.Created.Format(time.RFC3339), "is a time that cannot be written again: use a year from 0 to 9999 and an offset from UTC below 24 hours, such as 2026-11-22T10:00:00Z")
	}
	if out.created = created; !created.IsZero() {
		x.Created = created.Unix()
	}
	s.addAliases(r, &out, named)
	x.Ports = s.ports(r)
	switch x.Scope = mesh.Scope(or(s.Scope, string(mesh.ScopeGlobal))); {
	case s.Scope == globalOnly: // takeover is a matter of the service that clients ask for
		x.Scope = mesh.ScopeGlobal
	case x.Scope == mesh.ScopeCluster:
		r.out(CauseValue, at{"scope"}, s.Scope, "is not for other networks: use segment or global, or remove the share")
	case !slices.Contains(scopes, x.Scope):
		r.out(CauseValue, at{"scope"}, s.Scope, "is not a scope: use segment or global")
	}
	if x.Distribution, _ = r.distribution(at{"trafficDistribution"}, s.TrafficDistribution, Inherited{}); x.Distribution == mesh.StrictNode {
		x.Distribution = mesh.PreferNetwork // it holds on the network of the share alone
	}
	x.Identities = s.identities(r)
	if s.Capacity != nil {
		x.Capacity = mesh.RoundCapacity(uint64(*s.Capacity))
	}
	return out
}

// Since returns Created. A time that no RFC 3339 text says, which some that is read as
// such does (an offset of 24 hours), is none, and not ok: JSON does not take it.
func (s Share) Since() (created time.Time, ok bool) {
	if _, err := s.Created.MarshalText(); err != nil {
		return time.Time{}, false
	}
	return s.Created, true
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
	derived := ""
	if named {
		derived = s.Name + "." + x.Namespace + ".mesh.internal"
	}
	for i, a := range s.Aliases {
		switch a = strings.ToLower(a); {
		case !isHostname(a):
			r.drop(CauseValue, at{"aliases", i}, a, "is not a host name: use lower-case letters, digits, hyphens and dots")
		case r.object.Source == Told && a != derived && a != x.Hostname:
			out.refused = append(out.refused, claim{what: sharedAlias, text: a, path: at{"aliases", i}})
		default:
			add(at{"aliases", i}, a)
		}
	}
	if named {
		add(at{"name"}, derived)
	}
}

// describes reports whether the share can make a service: what a network tells makes
// those that are called by their name and namespace. Under any other hostname it joins a
// service that a record lists.
func (e *entry) describes() bool {
	x := e.reading.share
	return e.key.Source != Told || x.Hostname == x.Name+"."+x.Namespace+".svc.cluster.local"
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

// identities returns the valid ones, sorted. A share of capacity 0 has no endpoints, and
// needs none.
func (s Share) identities(r *reader) (out []spiffeid.ID) {
	if len(s.Identities) == 0 && s.Capacity != nil && *s.Capacity == 0 {
		return nil
	}
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

// SharesOf are the problems of a process on network with the shares that c lists of that
// network itself.
func (c Config) SharesOf(network string) (problems []Problem) {
	for _, s := range c.Shares {
		if s.Network != network || network == "" {
			continue
		}
		r := reader{object: Key{Kind: KindShare, Name: s.Network + "/" + or(s.Namespace, defaultNamespace) + "/" + s.Name}}
		r.out(CauseUnsupported, at{"network"}, s.Network, "is the network of this process, and a share is what another one has: list its workloads, and remove the share or name the network that has it")
		problems = append(problems, r.problems...)
	}
	return problems
}

// checkPorts says which ports of the share x, whose service is listed, nobody can ask for.
func checkPorts(r *reader, x *mesh.Export, svc *mesh.Service) {
	var ports []string
	for _, p := range svc.Ports {
		ports = append(ports, strconv.Itoa(int(p.Service)))
	}
	if len(ports) == 0 {
		return // that service has a problem of its own
	}
	for _, p := range x.Ports {
		if _, has := svc.Port(p.Port); !has {
			r.drop(CauseConflict, at{"ports"}, p.Port, "is not a port of service %s, which has %s: write one of them, or list it at the service too", svc.Hostname, strings.Join(ports, ", "))
		}
	}
}

// sharedService is a service that no Service record lists, as its shares describe it.
type sharedService struct {
	service *mesh.Service
	from    Source // the earliest of its shares'
}

func (sharedService) kind() Kind { return KindService }

func (s sharedService) read(*reader) reading {
	out := reading{service: s.service, rank: int(s.from), claims: []claim{{what: sharedHost, text: s.service.Hostname, path: at{"hostname"}}}}
	for _, a := range s.service.Aliases {
		what := sharedAlias
		if own, ok := strings.CutSuffix(s.service.Hostname, ".svc.cluster.local"); ok && a == own+".mesh.internal" {
			what = sharedDerived // what it calls itself beside its hostname does not count
		}
		out.extras = append(out.extras, claim{what: what, text: a, path: at{"aliases"}})
	}
	return out
}

func keyOfShared(host string) Key {
	return Key{Kind: KindService, Name: host, Source: derivedFromShares}
}

// serviceOf returns the service that shares describe, which are in. Each share keeps its
// own ports and scope; see [Builder].
func serviceOf(shares []*entry) sharedService {
	slices.SortFunc(shares, older)
	x := shares[0].reading.share
	lead := shares // those of the earliest source
	if i := slices.IndexFunc(shares, func(e *entry) bool { return e.key.Source != shares[0].key.Source }); i > 0 {
		lead = shares[:i]
	}
	svc := &mesh.Service{Name: x.Name, Namespace: x.Namespace, Hostname: x.Hostname, Aliases: x.Aliases, Scope: mesh.ScopeGlobal, Takeover: true, Distribution: x.Distribution, DistributionFrom: mesh.FromService}
	if all(shares, func(x *mesh.Export) bool { return x.Scope == mesh.ScopeSegment }) { // else each share's own scope counts
		svc.Scope = mesh.ScopeSegment
	}
	if !all(lead, func(o *mesh.Export) bool { return o.Distribution == x.Distribution }) {
		svc.Distribution, svc.DistributionFrom = mesh.PreferNetwork, "" // none of them chooses among the others
	}
	for _, e := range shares {
		for _, p := range e.reading.share.Ports {
			if _, has := svc.Port(p.Port); has {
				continue
			}
			if slices.ContainsFunc(svc.Ports, func(o mesh.Port) bool { return o.Name == p.Name }) {
				p.Name = "" // an older share gives it to another port
			}
			svc.Ports = append(svc.Ports, mesh.Port{Name: p.Name, Service: p.Port, Target: p.Port})
		}
	}
	return sharedService{svc, shares[0].key.Source}
}

// older is the order of shares that describe a service: the earlier source's first, then
// the older one; what is not known is youngest.
func older(a, b *entry) int {
	unknown := func(e *entry) int {
		if e.reading.created.IsZero() {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(a.key.Source, b.key.Source), cmp.Compare(unknown(a), unknown(b)), a.reading.created.Compare(b.reading.created), a.before(b))
}

// all reports whether is holds of each of shares.
func all(shares []*entry, is func(*mesh.Export) bool) bool {
	return !slices.ContainsFunc(shares, func(e *entry) bool { return !is(e.reading.share) })
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
	listed := b.claims.listed(host) != nil
	for _, e := range b.sharesIn(host) {
		if (listed || e.describes()) && !slices.ContainsFunc(told, func(t mesh.Told) bool { return t.Network == e.reading.on }) {
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
		if b.claims.listed(host) == nil {
			if in := slices.DeleteFunc(b.sharesIn(host), func(e *entry) bool { return !e.describes() }); len(in) > 0 {
				record = serviceOf(in)
			}
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
	if e.reading.folded != nil {
		return
	}
	x, here := e.reading.share, e.reading.claims[0].path
	if _, winner := b.claims.lost(e); winner != nil || x.Hostname == "" {
		return // another entry is the share, or nobody knows of what it is one
	}
	has := b.claims.named(x.Hostname)
	switch {
	case !e.describes() && b.claims.listed(x.Hostname) == nil:
		r.unlisted(false, here, x.Hostname, "services", "is not <name>.<namespace>.svc.cluster.local of the share, which counts for nothing until a service of this hostname is listed under services")
		return
	case has == nil:
		return
	case has.reading.service.Hostname != x.Hostname:
		r.drop(CauseConflict, here, x.Hostname, "is also a name of %s, so that this share counts for nothing: write the hostname of that service", has.key)
		return
	case has.key.Source != derivedFromShares:
		if e.key.Source == Written {
			checkPorts(r, x, has.reading.service)
		}
		if svc := b.edit.Peek().Named(x.Hostname); e.in && e.key.Source == Written && svc != nil && len(b.edit.Peek().Members(svc, e.reading.on)) > 0 {
			r.drop(CauseConflict, at{"network"}, e.reading.on, "has workloads of this service that are listed, and they count: remove this share or them")
		}
		return
	case !e.in:
		return
	}
	for _, c := range e.reading.refused {
		r.drop(CauseConflict, c.path, c.text, "does not follow from the hostname of the service, and a network gives it no other name: list the service under services with this alias")
	}
	for _, c := range e.reading.offers {
		if o := b.claims.named(c.text); o != nil && o != has && o.key.Source == derivedFromShares {
			e.conflict(r, c, o, false)
		}
	}
}
