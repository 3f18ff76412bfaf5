package healthstream

import (
	"maps"
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// Change names a share of which something else may be known than before.
type Change struct {
	Service, Network string
}

// Known is what is known of a share. It is never changed.
type Known struct {
	Deliveries []Delivery // of each gateway instance that speaks of it, sorted
	// Summaries are what comes of them, by service port.
	Summaries map[uint16]federation.SummaryFact
	// Turned is when the numbers of endpoints or the exceptions of a port changed, by this
	// clock; never nil.
	Turned map[uint16]time.Time
	// Returned is when endpoints were taken back by those who had left them out, by port:
	// as far as that is less than a minute ago, and never nil; see returned.go.
	Returned map[uint16]map[mesh.EndpointID]time.Time
	// Offer is what the network has proven to offer to others: the ports and identities of
	// any instance that offers it. Nil: nothing. It is not changed.
	Offer *record.Export
	// Differ says in what instances differ that offer it; empty if they do not.
	Differ string
	// Silent is since when instances that are not live are not, as far as was heard here.
	Silent map[record.Instance]time.Time
}

// Stale is since when nobody live speaks of a port: what is known is the last word of
// those who did. Zero: somebody does, or nobody ever did.
func (k Known) Stale(port uint16) (since time.Time) {
	for _, d := range k.Deliveries {
		if _, speaks := d.Health[port]; !speaks {
			continue
		}
		if d.Live {
			return time.Time{}
		}
		if at := k.Silent[d.Instance]; at.After(since) {
			since = at
		}
	}
	return since
}

// Exception is what is said of an endpoint that is left out of a port, and the gateway
// that says it: with details, if anybody gives them, and rather by one that is live.
func (k Known) Exception(port uint16, id mesh.EndpointID) (x record.Exception, gateway string, ok bool) {
	best := -1
	for _, d := range k.Deliveries {
		for _, e := range d.Health[port].Exceptions {
			if e.Endpoint != id {
				continue
			}
			if worth := 2*truth(e.Detail != record.Detail{}) + truth(d.Live); worth > best {
				x, gateway, ok, best = e, d.Gateway, true, worth
			}
		}
	}
	return x, gateway, ok
}

// exportsOf is what holds of deliveries that nobody vouches for any more.
func exportsOf(deliveries []Delivery) (out []Delivery) {
	for _, d := range deliveries {
		if d.Export != nil {
			d.Live, d.Health = false, map[uint16]record.Health{}
			out = append(out, d)
		}
	}
	return out
}

// offered returns what instances offer by their own proven word, and in what they
// differ: those that are live, if any of these offers it, and of those of one gateway the
// one with the latest certificate. Another one may have ended long ago, and be repeated by
// somebody.
func offered(service, network string, deliveries []Delivery) (*record.Export, string) {
	var live, all []Delivery
	for _, d := range deliveries {
		if d.Export == nil || !d.Proven() {
			continue
		}
		if all = append(all, d); d.Live {
			live = append(live, d)
		}
	}
	if len(live) > 0 {
		all = live
	}
	if len(all) == 0 {
		return nil, ""
	}
	latest := map[string]int64{}
	for _, d := range all {
		latest[d.speaker.gateway] = max(latest[d.speaker.gateway], d.speaker.issued.Load())
	}
	var exports []*record.Export
	for _, d := range all {
		if d.speaker.issued.Load() == latest[d.speaker.gateway] {
			exports = append(exports, d.Export)
		}
	}
	merged, differ := ledger.MergeExports(network, service, exports)
	return &merged, differ
}

// knownOf is what comes of deliveries, where before was known; r goes on with who is left
// out.
func knownOf(service, network string, deliveries []Delivery, before Known, r returns, now time.Time) Known {
	deliveries = slices.Clone(deliveries)
	for i := range deliveries {
		d := &deliveries[i]
		d.said = r.saidSince(d, service, now)
	}
	k := Known{Deliveries: deliveries, Summaries: map[uint16]federation.SummaryFact{}, Turned: map[uint16]time.Time{}, Returned: map[uint16]map[mesh.EndpointID]time.Time{}}
	k.Silent = silentSince(deliveries, before.Silent, now)
	k.Offer, k.Differ = offered(service, network, deliveries)
	for _, d := range deliveries {
		for port := range d.Health {
			if _, done := k.Summaries[port]; done {
				continue
			}
			h, _ := HealthOf(deliveries, port)
			f := summaryOf(service, h, port)
			k.Summaries[port] = f
			k.Turned[port] = now
			if old, known := before.Summaries[port]; known && old.Ready == f.Ready && old.Healthy == f.Healthy && slices.Equal(old.Exceptions, f.Exceptions) {
				k.Turned[port] = before.Turned[port]
			}
			k.Returned[port] = r.take(port, deliveries, h, now)
		}
	}
	r.trim(deliveries, now)
	return k
}

// sameHealth says whether both say the same, but for what is for people.
func sameHealth(a, b record.Health) bool {
	return a.Ready == b.Ready && a.Healthy == b.Healthy && a.ReadyCapacity == b.ReadyCapacity && a.HealthyCapacity == b.HealthyCapacity && a.Unnamed == b.Unnamed &&
		slices.EqualFunc(a.Exceptions, b.Exceptions, func(x, y record.Exception) bool { return x.Endpoint == y.Endpoint && x.Cause == y.Cause })
}

// silentSince notes since when instances are not live.
func silentSince(deliveries []Delivery, before map[record.Instance]time.Time, now time.Time) map[record.Instance]time.Time {
	var out map[record.Instance]time.Time
	for _, d := range deliveries {
		if d.Live {
			continue
		}
		if out == nil {
			out = map[record.Instance]time.Time{}
		}
		if out[d.Instance] = now; !before[d.Instance].IsZero() {
			out[d.Instance] = before[d.Instance]
		}
	}
	return out
}

// summaryOf says what comes of deliveries: as exceptions it names whom witnesses
// leave out and whom the best gateways cannot reach, and not what is not ready.
func summaryOf(service string, h ledger.Health, port uint16) federation.SummaryFact {
	f := federation.SummaryFact{Service: service, Port: port, Ready: h.Ready, Healthy: h.Healthy,
		ReadyCapacity: h.ReadyCapacity, HealthyCapacity: h.HealthyCapacity, Draining: len(h.Deliveries) > 0}
	for _, d := range h.Deliveries {
		f.Draining = f.Draining && d.Draining
	}
	for _, x := range h.Exceptions {
		if isFault(x.Cause) {
			f.Exceptions = append(f.Exceptions, x.Endpoint)
		}
	}
	slices.Sort(f.Exceptions)
	f.Exceptions = slices.Compact(f.Exceptions)
	return f
}

// KnownShare is what is known of a share, in a form for JSON.
type KnownShare struct {
	Network   string                   `json:"network"`   // network of the remote service
	Instances []KnownInstance          `json:"instances"` // gateway instances that report on it
	Summaries []federation.SummaryFact `json:"ports"`     // the result, by port
}

// KnownInstance is what one gateway instance can deliver, in a form for JSON.
type KnownInstance struct {
	Instance record.Instance `json:"instance"` // of the gateway process
	Gateway  string          `json:"gateway"`  // name of the gateway
	Live     bool            `json:"live"`     // its report is current; false if it is silent and this is its last report
	Draining bool            `json:"draining"` // other gateways are preferred
	Proven   bool            `json:"proven"`   // the report has its signature, and its certificate that of its network's key
}

func (k Known) dump(network string) KnownShare {
	out := KnownShare{Network: network, Instances: []KnownInstance{}, Summaries: []federation.SummaryFact{}}
	for _, d := range k.Deliveries {
		out.Instances = append(out.Instances, KnownInstance{Instance: d.Instance, Gateway: d.Gateway, Live: d.Live, Draining: d.Draining, Proven: d.Proven()})
	}
	for _, port := range slices.Sorted(maps.Keys(k.Summaries)) {
		s := k.Summaries[port]
		if s.Exceptions == nil { // [] in JSON, as everywhere else
			s.Exceptions = []mesh.EndpointID{}
		}
		out.Summaries = append(out.Summaries, s)
	}
	return out
}
