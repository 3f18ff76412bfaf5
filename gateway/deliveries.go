package gateway

import (
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/damping"
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
	publish func(records []record.Record, withdrawn ...record.Key) // to every network
	told    func(portKey)                                          // what own says has changed, or is gone

	turn sync.Mutex // one look at a time, published before the next: the latest is the last

	mu      sync.Mutex
	started bool
	changed time.Time // when discovery last changed; zero: never
	ports   map[portKey]*delivery
	exports map[string]record.Export // services that are published
	queue   map[string]struct{}      // services with pods that changed, until somebody looks
	latest  time.Time                // when something was last put there
	late    map[portKey]time.Time    // looks that were put off, and until when
	behind  chan struct{}            // one slot: a look was put off
}

// podHealth is what backends knows of one pod and target port: why a
// connection is not expected to work (zero: it is), that it would work and the pod
// is held back because it flaps, and when that was last seen to change (zero:
// never).
type podHealth func(w *mesh.Workload, target uint16, now time.Time) (cause record.Cause, damped bool, seen time.Time)

// portKey is a service, by its hostname, and one of its ports.
type portKey struct {
	service string
	port    uint16
}

// delivery is what is known of one service and port.
type delivery struct {
	exported   bool
	fact       federation.SummaryFact // with each pod that is ready and left out
	seen       time.Time              // when something was last seen to change; zero: never
	members    map[mesh.EndpointID]struct{}
	exceptions record.Exceptions
	health     record.Health
	pace       pace
}

// start publishes everything for the first time. Until then nothing is said:
// a gateway that has no report of its nodes yet would call every pod healthy.
func (d *deliveries) start(now time.Time) {
	d.mu.Lock()
	d.started = true
	d.mu.Unlock()
	d.update(d.store.Current().Services(), now)
}

// touched publishes what changes for the services that pods are members of. It looks
// at each service once, for all pods of which anybody said so meanwhile: a look goes
// through all members.
func (d *deliveries) touched(now time.Time, pods ...*mesh.Workload) {
	d.enqueue(now, pods)
	d.flush()
}

func (d *deliveries) enqueue(now time.Time, pods []*mesh.Workload) {
	snap := d.store.Current()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.queue == nil {
		d.queue = map[string]struct{}{}
	}
	for _, w := range pods {
		for _, svc := range snap.ServicesOf(w.UID) {
			d.queue[svc.Hostname] = struct{}{}
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
	hosts, now := slices.Sorted(maps.Keys(d.queue)), d.latest
	d.queue = nil
	d.mu.Unlock()
	snap := d.store.Current()
	var services []*mesh.Service
	for _, host := range hosts {
		if svc := snap.Named(host); svc != nil {
			services = append(services, svc)
		}
	}
	if len(services) > 0 {
		d.inspect(services, now)
	}
}

// revised publishes whatever a new snapshot changed.
func (d *deliveries) revised(changes discovery.Changes, now time.Time) {
	snap := d.store.Current()
	d.mu.Lock()
	d.changed = now
	d.mu.Unlock()
	d.retain(snap)
	if changes.All {
		d.update(snap.Services(), now)
		return
	}
	var services []*mesh.Service
	for host := range changes.Services {
		if svc := snap.Named(host); svc != nil {
			services = append(services, svc)
		}
	}
	d.update(services, now)
}

// expire publishes what time alone has changed: exceptions that have lingered.
func (d *deliveries) expire(now time.Time) {
	snap := d.store.Current()
	var services []*mesh.Service
	d.mu.Lock()
	for k, p := range d.ports {
		if next := p.exceptions.Next(); !next.IsZero() && !now.Before(next) {
			if svc := snap.Service(k.service); svc != nil {
				services = append(services, svc)
			}
		}
	}
	d.mu.Unlock()
	d.update(services, now)
}

// retain drops what snap no longer lists, or lists for other ears than before, and
// withdraws it.
func (d *deliveries) retain(snap *mesh.Snapshot) {
	d.turn.Lock()
	defer d.turn.Unlock()
	var withdrawn []record.Key
	var gone []portKey
	d.mu.Lock()
	for k, p := range d.ports {
		if svc := snap.Service(k.service); svc != nil && svc.Exported() == p.exported {
			if _, ok := svc.Port(k.port); ok {
				continue
			}
		}
		delete(d.ports, k)
		delete(d.late, k)
		gone = append(gone, k)
		if p.exported {
			withdrawn = append(withdrawn, healthKey(k))
		}
	}
	for host := range d.exports {
		if svc := snap.Service(host); svc == nil || !svc.Exported() || len(snap.Members(svc, d.network)) == 0 {
			delete(d.exports, host)
			withdrawn = append(withdrawn, record.Key{Kind: record.KindExport, Service: host})
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

func (d *deliveries) update(services []*mesh.Service, now time.Time) {
	d.turn.Lock()
	defer d.turn.Unlock()
	d.inspect(services, now)
}

// inspect looks at services and publishes what has changed; the caller holds turn.
func (d *deliveries) inspect(services []*mesh.Service, now time.Time) {
	snap := d.store.Current()
	d.mu.Lock()
	if !d.started {
		d.mu.Unlock()
		return
	}
	var records []record.Record
	var told []portKey
	for _, svc := range services {
		members := snap.Members(svc, d.network)
		if e, ok := mesh.ExportOf(svc, members); ok {
			x := exportOf(e)
			if old, ok := d.exports[svc.Hostname]; !ok || !reflect.DeepEqual(x, old) {
				d.exports[svc.Hostname] = x
				records = append(records, record.ExportRecord(svc.Hostname, x))
			}
		}
		for _, p := range svc.Ports {
			k := portKey{svc.Hostname, p.Service}
			old := d.ports[k]
			if old == nil && len(members) == 0 {
				continue // not a service of this network
			}
			if old != nil && d.hold(k, old, now) {
				continue // the latest state comes last, a little later
			}
			next := d.look(old, svc, p, members, now)
			if d.ports[k] = next; old == nil || !next.says(old) {
				told = append(told, k)
				next.pace = next.pace.took(now)
			}
			if next.exported && (old == nil || !old.exported || !reflect.DeepEqual(next.health, old.health)) {
				records = append(records, record.HealthRecord(k.service, k.port, next.health))
			}
		}
	}
	d.mu.Unlock()
	d.publish(records)
	for _, k := range told {
		d.told(k)
	}
}

// look returns what is delivered of a service's port now; the caller holds mu.
func (d *deliveries) look(old *delivery, svc *mesh.Service, p mesh.Port, members []*mesh.Workload, now time.Time) *delivery {
	next := &delivery{exported: svc.Exported(), seen: d.changed, members: make(map[mesh.EndpointID]struct{}, len(members))}
	if old != nil {
		next.exceptions, next.pace = old.exceptions, old.pace
	}
	f := federation.SummaryFact{Service: svc.Hostname, Port: p.Service}
	offer := svc.Offer(p, members)
	well := func(w *mesh.Workload) {
		f.Healthy++
		f.HealthyCapacity += w.Capacity
		next.exceptions.Back(w.Endpoint)
	}
	out := func(w *mesh.Workload, cause record.Cause) {
		f.Exceptions = append(f.Exceptions, w.Endpoint)
		next.exceptions.Set(w.Endpoint, cause, now)
	}
	var held []*mesh.Workload
	for _, w := range members {
		next.members[w.Endpoint] = struct{}{}
		if !offer.Has(w) {
			next.left(w, now)
			continue
		}
		f.Ready++
		f.ReadyCapacity += w.Capacity
		cause, damped, at := d.pods(w, w.Target(p), now)
		if at.After(next.seen) {
			next.seen = at
		}
		switch {
		case cause == 0:
			well(w)
		case damped:
			held = append(held, w)
		default:
			out(w, cause)
		}
	}
	left := leftOut(held, p, &f)
	for _, w := range held {
		if slices.Contains(left, damping.Key{Endpoint: w.Endpoint, Port: w.Target(p)}) {
			out(w, record.Witness)
		} else {
			well(w)
		}
	}
	if old != nil {
		for id := range old.members {
			if _, still := next.members[id]; !still {
				next.exceptions.Set(id, record.Gone, now)
				next.exceptions.Clear(id, now)
			}
		}
	}
	slices.Sort(f.Exceptions)
	next.fact = f
	next.health = healthOf(f)
	next.health.Exceptions, next.health.Unnamed = next.exceptions.List(now)
	return next
}

// leftOut returns who of held, which answer and flap, is left out of the share that
// f is about. The picker leaves out the same ones.
func leftOut(held []*mesh.Workload, p mesh.Port, f *federation.SummaryFact) []damping.Key {
	members := make([]damping.Member, 0, len(held))
	for _, w := range held {
		members = append(members, damping.Member{Key: damping.Key{Endpoint: w.Endpoint, Port: w.Target(p)}, Capacity: w.Capacity})
	}
	return damping.Held(members, uint64(f.ReadyCapacity), f.Healthy > 0)
}

// says reports whether p and old are the same to node proxies: causes count too,
// because another gateway may reach what this one does not.
func (p *delivery) says(old *delivery) bool {
	return p.fact.Equal(&old.fact) && slices.Equal(p.health.Exceptions, old.health.Exceptions)
}

// left notes why a member gets no new connections.
func (p *delivery) left(w *mesh.Workload, now time.Time) {
	switch w.State {
	case mesh.Terminating, mesh.Serving:
		p.exceptions.Set(w.Endpoint, record.Terminating, now)
	case mesh.NotReady:
		p.exceptions.Set(w.Endpoint, record.NotReady, now)
	default: // without capacity, address or port: nobody's trouble
		p.exceptions.Back(w.Endpoint)
	}
}

// healthOf keeps to the limits of a record.
func healthOf(f federation.SummaryFact) record.Health {
	h := record.Health{Ready: min(f.Ready, record.MaxEndpoints), ReadyCapacity: min(f.ReadyCapacity, record.MaxCapacity)}
	h.Healthy, h.HealthyCapacity = min(f.Healthy, h.Ready), min(f.HealthyCapacity, h.ReadyCapacity)
	return h
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
		if x := d.ports[portKey{svc.Hostname, p.Service}]; x != nil {
			out = append(out, record.HealthRecord(svc.Hostname, p.Service, x.health))
		}
	}
	return out
}

var scopes = map[mesh.Scope]record.Scope{
	mesh.ScopeSegment: record.ScopeSegment, mesh.ScopeGlobal: record.ScopeGlobal, mesh.ScopeGlobalOnly: record.ScopeGlobalOnly,
}

func exportOf(e mesh.Export) record.Export {
	out := record.Export{Name: e.Name, Namespace: e.Namespace, Aliases: e.Aliases, Scope: scopes[e.Scope], Distribution: e.Distribution,
		Identities: e.Identities, Capacity: min(e.Capacity, record.MaxCapacity)}
	for _, p := range e.Ports {
		out.Ports = append(out.Ports, record.Port{Name: p.Name, Port: p.Port})
	}
	return out
}
