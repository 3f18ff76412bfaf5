package gateway

import (
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// deliveries turns what this gateway knows of its own pods into what it can
// deliver of each service and port: a health record for every network and an
// export, if the service is for others, and a summary for this network's node
// proxies. What changes faster than it can matter is said a few times a second, the
// latest state last. Safe for concurrent use.
type deliveries struct {
	network string
	store   interface{ Current() *mesh.Snapshot }
	pods    podHealth
	why     podDetail
	publish func(records []record.Record, withdrawn ...record.Key) // to every network
	told    func(portKey)                                          // what own says has changed, or is gone

	turn sync.Mutex // one look at a time, published before the next: the latest is the last

	mu      sync.Mutex
	started bool
	ports   map[string]map[uint16]*delivery // by hostname and service port
	exports map[string]exported             // services that are published, by hostname
	queue   map[string]pods                 // services with pods that changed, until somebody looks
	latest  time.Time                       // when something was last put there
	late    map[portKey]time.Time           // looks that were put off, and until when
	behind  chan struct{}                   // one slot: a look was put off
}

// podHealth is what backends knows of one pod and target port: why a
// connection is not expected to work (zero: it is), that it would work and the pod
// is held back because it flaps, and when that was last seen to change (zero:
// never).
type podHealth func(w *mesh.Workload, target uint16, now time.Time) (cause record.Cause, damped bool, seen time.Time)

// pods are some of a service.
type pods map[mesh.EndpointID]struct{}

// exported is what was published of a service, and what that was derived from.
type exported struct {
	basis
	record record.Export
}

// podDetail is what there is to say to people of one that is left out.
type podDetail func(w *mesh.Workload, target uint16, cause record.Cause, now time.Time) record.Detail

// portKey is a service, by its hostname, and one of its ports.
type portKey struct {
	service string
	port    uint16
}

// start publishes everything for the first time. Until then nothing is said:
// a gateway that has no report of its nodes yet would call every pod healthy.
func (d *deliveries) start(now time.Time) {
	d.mu.Lock()
	d.started = true
	d.mu.Unlock()
	d.update(hostnames(d.store.Current().Services()), now)
}

func hostnames(services []*mesh.Service) []string {
	out := make([]string, len(services))
	for i, svc := range services {
		out[i] = svc.Hostname
	}
	return out
}

// touched publishes what changes for the services that pods are members of. It looks
// at these pods, and those that are out, and at each service once for all pods of which
// anybody said so meanwhile.
func (d *deliveries) touched(now time.Time, pods ...*mesh.Workload) {
	d.enqueue(now, pods)
	d.flush()
}

func (d *deliveries) enqueue(now time.Time, touched []*mesh.Workload) {
	snap := d.store.Current()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.queue == nil {
		d.queue = map[string]pods{}
	}
	for _, w := range touched {
		for _, svc := range snap.ServicesOf(w.UID) {
			if d.queue[svc.Hostname] == nil {
				d.queue[svc.Hostname] = pods{}
			}
			d.queue[svc.Hostname][w.Endpoint] = struct{}{}
		}
	}
	if now.After(d.latest) {
		d.latest = now
	}
}

// flush looks at the services that are queued. When it returns, what was queued at
// the call is published, if only by another call.
func (d *deliveries) flush() {
	d.turn.Lock()
	defer d.turn.Unlock()
	d.mu.Lock()
	queue, now := d.queue, d.latest
	d.queue = nil
	d.mu.Unlock()
	d.inspect(slices.Sorted(maps.Keys(queue)), queue, now)
}

// revised publishes whatever a new snapshot changed.
func (d *deliveries) revised(changes discovery.Changes, now time.Time) {
	services := slices.Sorted(maps.Keys(changes.Services))
	if changes.All {
		services = hostnames(d.store.Current().Services())
		d.mu.Lock()
		services = slices.AppendSeq(slices.AppendSeq(services, maps.Keys(d.ports)), maps.Keys(d.exports))
		d.mu.Unlock()
		slices.Sort(services)
		services = slices.Compact(services)
	}
	d.retain(services)
	d.update(services, now)
}

// expire publishes what time alone has changed: exceptions that have lingered.
func (d *deliveries) expire(now time.Time) {
	var services []string
	d.mu.Lock()
	for host, ports := range d.ports {
		for _, p := range ports {
			if next := p.exceptions.Next(); !next.IsZero() && !now.Before(next) {
				services = append(services, host)
				break
			}
		}
	}
	d.mu.Unlock()
	d.update(services, now)
}

// retain drops those of services, by hostname, that discovery no longer lists under this
// name (an alias is none), or lists for other networks than before, and withdraws them.
func (d *deliveries) retain(services []string) {
	d.turn.Lock()
	defer d.turn.Unlock()
	snap := d.store.Current()
	var withdrawn []record.Key
	var gone []portKey
	d.mu.Lock()
	for _, host := range services {
		svc := snap.Named(host)
		for port, p := range d.ports[host] {
			if svc != nil && svc.Exported() == p.exported {
				if _, ok := svc.Port(port); ok {
					continue
				}
			}
			k := portKey{host, port}
			delete(d.ports[host], port)
			delete(d.late, k)
			gone = append(gone, k)
			if p.exported {
				withdrawn = append(withdrawn, healthKey(k))
			}
		}
		if len(d.ports[host]) == 0 {
			delete(d.ports, host)
		}
		if _, is := d.exports[host]; is && (svc == nil || !mesh.Exports(svc, snap.Members(svc, d.network))) {
			delete(d.exports, host)
			withdrawn = append(withdrawn, exportKey(host))
		}
	}
	d.mu.Unlock()
	d.publish(nil, withdrawn...)
	for _, k := range gone {
		d.told(k)
	}
}

func healthKey(k portKey) record.Key {
	return record.Key{Kind: record.KindHealth, Service: k.service, Port: k.port}
}

func exportKey(host string) record.Key { return record.Key{Kind: record.KindExport, Service: host} }

// update looks at services, by hostname.
func (d *deliveries) update(services []string, now time.Time) {
	d.turn.Lock()
	defer d.turn.Unlock()
	d.inspect(services, nil, now)
}

// inspect looks at services, by hostname, and publishes what has changed. Where the
// members of one are those of the last look, only those that are in touched, and those
// that are out, are looked at. The caller holds turn: what discovery says is asked for
// with it, since a service of an older snapshot may have been withdrawn meanwhile.
func (d *deliveries) inspect(services []string, touched map[string]pods, now time.Time) {
	snap := d.store.Current()
	d.mu.Lock()
	if !d.started {
		d.mu.Unlock()
		return
	}
	var news news
	for _, host := range services {
		svc := snap.Named(host)
		if svc == nil {
			continue
		}
		b := basis{svc, snap.Members(svc, d.network)}
		d.export(b, &news)
		for _, p := range svc.Ports {
			d.port(portKey{host, p.Service}, b, p, touched[host], &news, now)
		}
	}
	d.mu.Unlock()
	d.publish(news.records, news.withdrawn...)
	for _, k := range news.told {
		d.told(k)
	}
}

// news is what comes of a look.
type news struct {
	records   []record.Record
	withdrawn []record.Key
	told      []portKey
}

// export looks at what is said of a service to other networks; the caller holds mu.
func (d *deliveries) export(b basis, n *news) {
	host := b.service.Hostname
	old, was := d.exports[host]
	if was && old.same(b) {
		return
	}
	e, is := mesh.ExportOf(b.service, b.members)
	if !is {
		if was {
			delete(d.exports, host)
			n.withdrawn = append(n.withdrawn, exportKey(host))
		}
		return
	}
	x := exported{b, exportOf(e)}
	if d.exports[host] = x; !was || !reflect.DeepEqual(x.record, old.record) {
		n.records = append(n.records, record.ExportRecord(host, x.record))
	}
}

// port looks at what is delivered of a service's port; the caller holds mu.
func (d *deliveries) port(k portKey, b basis, p mesh.Port, touched pods, n *news, now time.Time) {
	x := d.ports[k.service][k.port]
	first := x == nil
	if first && len(b.members) == 0 && !mesh.Exports(b.service, nil) {
		return // not a service of this network
	}
	if first {
		if d.ports[k.service] == nil {
			d.ports[k.service] = map[uint16]*delivery{}
		}
		x = &delivery{}
		d.ports[k.service][k.port] = x
	} else if x.touch(touched); d.hold(k, x, now) {
		return // the latest state comes last, a little later
	}
	was, fact, health := x.exported, x.fact, x.health
	x.look(b, p, d.pods, d.why, now)
	if first || !x.says(&fact, health.Exceptions) {
		n.told = append(n.told, k)
		x.pace = x.pace.took(now)
	}
	switch {
	case x.exported && (!was || !reflect.DeepEqual(x.health, health)):
		n.records = append(n.records, record.HealthRecord(k.service, k.port, x.health))
	case was && !x.exported: // between two snapshots: retain does not see it any more
		n.withdrawn = append(n.withdrawn, healthKey(k))
	}
}

// of returns what this gateway itself says of the health of a service's ports.
func (d *deliveries) of(service string) (out []record.Record) {
	svc := d.store.Current().Named(service)
	if svc == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range svc.Ports {
		if x := d.ports[svc.Hostname][p.Service]; x != nil {
			out = append(out, record.HealthRecord(svc.Hostname, p.Service, x.health))
		}
	}
	return out
}

var scopes = map[mesh.Scope]record.Scope{
	mesh.ScopeSegment: record.ScopeSegment, mesh.ScopeGlobal: record.ScopeGlobal,
}

func exportOf(e mesh.Export) record.Export {
	out := record.Export{Name: e.Name, Namespace: e.Namespace, Aliases: e.Aliases, Scope: scopes[e.Scope], Distribution: e.Distribution,
		Identities: e.Identities, Created: e.Created, Capacity: min(e.Capacity, record.MaxCapacity), Headless: e.Headless, Affinity: e.Affinity}
	for _, p := range e.Ports {
		out.Ports = append(out.Ports, record.Port{Name: p.Name, Port: p.Port})
	}
	return out
}
