package healthstream

import (
	"maps"
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/mesh"
)

const (
	// returnedFor is for how long it is known who was taken back.
	returnedFor = time.Minute
	// maxLeftOut is how many endpoints of one share are remembered as left out: beyond it
	// those that were named longest ago are not told to have been taken back.
	maxLeftOut = 8 * record.MaxExceptions
)

// returns is who of one share is taken back, by port. An endpoint is left out from when
// what gateways deliver together names it for a fault. It is taken back when a gateway
// that has named it says that it is well, in a word that is later than all that have named
// it: one that leaves out nobody without a name, and does not name it. That is told, and
// dated by that word, as soon as nobody who is heard can leave it out still: it is named
// by nobody who counts, and no live gateway leaves out anybody whom it has no room to name.
//
// Nothing else takes an endpoint back: not that there is no room to name it, not that a
// gateway falls silent, ends or says what others heard before, not that its health lapses,
// and not the word of gateways that never left it out. A later process of a gateway speaks
// for the ones before. Who is not ready, terminating or gone is not taken back any more.
//
// Not safe for concurrent use.
type returns map[uint16]*returning

// returning are the endpoints of one port.
type returning struct {
	out  map[mesh.EndpointID]leftOut
	back map[mesh.EndpointID]time.Time // less than returnedFor ago; replaced, not changed
	last map[record.Instance]lastWord
}

// lastWord is what an instance said last of a port, as far as was heard here.
type lastWord struct {
	health   record.Health
	sequence uint64
	said     time.Time
}

// leftOut is an endpoint that was left out and not told to have been taken back since.
type leftOut struct {
	by    []string  // gateways that have named it
	named time.Time // when the latest word was said that names it
	well  time.Time // when one of by last said that it is well
}

func (r returns) of(port uint16) *returning {
	p := r[port]
	if p == nil {
		p = &returning{out: map[mesh.EndpointID]leftOut{}, last: map[record.Instance]lastWord{}}
		r[port] = p
	}
	return p
}

// saidSince returns since when, by this clock, d's instance has said what it says of each
// port: by its own numbers, of whose records an older one is no news. Who brings it, and
// whether it falls silent or nothing of it is heard for a while, changes nothing of what it
// says.
func (r returns) saidSince(d *Delivery, service string, now time.Time) map[uint16]time.Time {
	out := make(map[uint16]time.Time, len(d.Health))
	for port, h := range d.Health {
		p, w := r.of(port), lastWord{h, d.sequences[record.EncodeKey(record.Key{Kind: record.KindHealth, Service: service, Port: port})], now}
		if old, spoke := p.last[d.Instance]; spoke && (sameHealth(old.health, h) || w.sequence < old.sequence) {
			w.said = old.said
		}
		p.last[d.Instance] = w
		out[port] = w.said
	}
	return out
}

// take takes in what gateways say of a port, and together deliver, and returns who was
// taken back and when: shared, and never nil.
func (r returns) take(port uint16, deliveries []Delivery, together ledger.Health, now time.Time) map[mesh.EndpointID]time.Time {
	p := r.of(port)
	faults, absent := map[mesh.EndpointID]bool{}, map[mesh.EndpointID]bool{}
	for _, x := range together.Exceptions {
		if isFault(x.Cause) {
			faults[x.Endpoint] = true
		} else {
			absent[x.Endpoint] = true
		}
	}
	unnamed := together.Unnamed > 0
	for i := range deliveries {
		h, speaks := deliveries[i].Health[port]
		if !speaks {
			continue
		}
		unnamed = unnamed || deliveries[i].Live && h.Unnamed > 0
		p.name(&deliveries[i], port, faults)
	}
	p.back = recent(p.back, now) // the last one was shared
	for id, o := range p.out {
		o.well = o.wellSince(id, deliveries, port)
		switch {
		case faults[id]:
			p.out[id] = o
		case absent[id]:
			delete(p.out, id)
		case o.well.After(o.named) && !unnamed:
			delete(p.out, id)
			if now.Sub(o.well) < returnedFor {
				p.back[id] = o.well
			}
		default:
			p.out[id] = o
		}
	}
	return p.back
}

// name notes whom d names of those that are left out.
func (p *returning) name(d *Delivery, port uint16, faults map[mesh.EndpointID]bool) {
	said := d.said[port]
	for _, x := range d.Health[port].Exceptions {
		if !isFault(x.Cause) || !faults[x.Endpoint] {
			continue
		}
		o := p.out[x.Endpoint]
		if !slices.Contains(o.by, d.Gateway) {
			o.by = append(slices.Clip(o.by), d.Gateway)
		}
		if said.After(o.named) {
			o.named = said
		}
		p.out[x.Endpoint] = o
	}
}

// wellSince is when one of those that have left out id last said that it is well.
func (o leftOut) wellSince(id mesh.EndpointID, deliveries []Delivery, port uint16) time.Time {
	well := o.well
	for i := range deliveries {
		d := &deliveries[i]
		h, speaks := d.Health[port]
		if !speaks || h.Unnamed > 0 || !d.said[port].After(well) || !slices.Contains(o.by, d.Gateway) {
			continue
		}
		if !slices.ContainsFunc(h.Exceptions, func(x record.Exception) bool { return x.Endpoint == id }) {
			well = d.said[port]
		}
	}
	return well
}

// trim forgets what nobody can return to, and makes room.
func (r returns) trim(deliveries []Delivery, now time.Time) {
	type left struct {
		port  uint16
		id    mesh.EndpointID
		named time.Time
	}
	n := 0
	for port, p := range r {
		spoken := slices.ContainsFunc(deliveries, func(d Delivery) bool { _, is := d.Health[port]; return is })
		if len(p.last) > maxInstances {
			maps.DeleteFunc(p.last, func(id record.Instance, _ lastWord) bool {
				return !slices.ContainsFunc(deliveries, func(d Delivery) bool { return d.Instance == id })
			})
		}
		if p.back = recent(p.back, now); !spoken && len(p.out) == 0 && len(p.back) == 0 {
			delete(r, port)
		}
		n += len(p.out)
	}
	if n <= maxLeftOut {
		return
	}
	all := make([]left, 0, n)
	for port, p := range r {
		for id, o := range p.out {
			all = append(all, left{port, id, o.named})
		}
	}
	slices.SortFunc(all, func(a, b left) int { return b.named.Compare(a.named) })
	for _, x := range all[maxLeftOut:] {
		delete(r[x.port].out, x.id)
	}
}

// isFault says whether an endpoint that is left out for c is ready.
func isFault(c record.Cause) bool {
	switch c {
	case record.NotReady, record.Terminating, record.Gone:
		return false
	}
	return true
}

// recent returns what of old is less than returnedFor ago.
func recent(old map[mesh.EndpointID]time.Time, now time.Time) map[mesh.EndpointID]time.Time {
	out := map[mesh.EndpointID]time.Time{}
	for id, at := range old {
		if now.Sub(at) < returnedFor {
			out[id] = at
		}
	}
	return out
}
