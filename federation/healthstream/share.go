package healthstream

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

// Share is a service on one network, by the word of that network's gateway
// instances.
type Share struct {
	Network   string
	Instances []Voice
}

// Voice is what one gateway instance says of a service.
type Voice struct {
	Instance record.Instance
	Gateway  string
	Group    string // of gateways that see the same pods
	Draining bool
	Live     bool // false: it has fallen silent, and this is its last word
	// Entries are the export and the health of each port, as the instance has
	// written them.
	Entries []record.Entry
	// Certificate is that of the instance, signed by its network, and Introduction its
	// network record. Without them node proxies cannot check what it says.
	Certificate  []byte
	Introduction record.Entry
}

const (
	// maxShare is how large a share may be, in bytes: instances beyond it are left
	// out, the newest names last.
	maxShare = 512 << 10

	maxNetworks  = 1024 // of one service
	maxInstances = 64   // of one share
)

// encodeShare returns s as a ShareState. Of equal shares the bytes are equal.
func encodeShare(s Share) []byte {
	m := &pb.ShareState{Network: s.Network}
	voices := slices.Clone(s.Instances)
	slices.SortFunc(voices, func(a, b Voice) int { return bytes.Compare(a.Instance[:], b.Instance[:]) })
	size := 0
	for _, v := range voices {
		size += 64 + len(v.Gateway) + len(v.Group)
		for _, e := range v.Entries {
			size += e.Size()
		}
		if size > maxShare || len(m.Instances) == maxInstances {
			break
		}
		entries := slices.Clone(v.Entries)
		slices.SortFunc(entries, func(a, b record.Entry) int { return strings.Compare(a.Key, b.Key) })
		m.Instances = append(m.Instances, &pb.InstanceState{
			Instance: v.Instance[:], Gateway: v.Gateway, Group: v.Group, Draining: v.Draining, Live: v.Live, Entries: record.ToWire(entries),
		})
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil { // a name that is no UTF-8
		return nil
	}
	return b
}

// appendService appends a field services of ServiceStates.
func appendService(dst []byte, service string, whole, refused bool, shares [][]byte) []byte {
	var body []byte
	body = protowire.AppendTag(body, 1, protowire.BytesType)
	body = protowire.AppendString(body, service)
	if whole {
		body = protowire.AppendTag(body, 2, protowire.VarintType)
		body = protowire.AppendVarint(body, 1)
	}
	for _, s := range shares {
		body = protowire.AppendTag(body, 3, protowire.BytesType)
		body = protowire.AppendBytes(body, s)
	}
	if refused {
		body = protowire.AppendTag(body, 4, protowire.VarintType)
		body = protowire.AppendVarint(body, 1)
	}
	dst = protowire.AppendTag(dst, 1, protowire.BytesType)
	return protowire.AppendBytes(dst, body)
}

// servicesMessage makes a StreamMessage of encoded services.
func servicesMessage(services []byte) []byte {
	out := protowire.AppendTag(nil, 7, protowire.BytesType)
	return protowire.AppendBytes(out, services)
}

// Delivery is what one gateway instance of a network says of a service, decoded.
type Delivery struct {
	Instance record.Instance
	Gateway  string
	Group    string
	Draining bool
	Live     bool
	Export   *record.Export // nil: it offers the service to its own network only
	Health   map[uint16]record.Health

	speaker   *speaker          // whose certificate was verified; nil: none was, or need not be
	proven    bool              // all that it says here is the word of speaker
	sequences map[string]uint64 // by encoded key
	changed   time.Time         // when this stream has said something else of it before

	// said is since when the instance has said what it says of a port; nil until [Known]
	// holds it, and not changed from then on.
	said map[uint16]time.Time
}

// Said is since when, by this clock, the instance has said what it says of port; zero: it
// says nothing. That streams begin and end, and news of other ports, are no news of it.
func (d *Delivery) Said(port uint16) time.Time { return d.said[port] }

// Proven says whether its network's key vouches for it: d is what the instance itself
// has signed, and not what a gateway of the own network makes of it.
func (d *Delivery) Proven() bool { return d.proven && !d.speaker.ended.Load() }

// certified says whether its network's key vouches for the instance at least.
func (d *Delivery) certified() bool { return d.speaker != nil && !d.speaker.ended.Load() }

// decodeShare reads a ShareState. Entries that cannot be used, or are of another
// service, are left out and counted, and so are those that are shown not to be the word
// of the instance; unproven is told of each entry that v cannot prove.
func decodeShare(service string, m *pb.ShareState, v *verified, unproven func(network string, id record.Instance, key string, why Unproven)) (out []Delivery, odd int, err error) {
	if m.GetNetwork() == "" || len(m.GetNetwork()) > record.MaxName {
		return nil, 0, malformed("a share must name its network in 1 to %d bytes", record.MaxName)
	}
	if len(m.GetInstances()) > maxInstances {
		return nil, 0, malformed("share of %d instances: want at most %d", len(m.GetInstances()), maxInstances)
	}
	for _, i := range m.GetInstances() {
		d := Delivery{Gateway: i.GetGateway(), Group: i.GetGroup(), Draining: i.GetDraining(), Live: i.GetLive(), Health: map[uint16]record.Health{}, sequences: map[string]uint64{}}
		if copy(d.Instance[:], i.GetInstance()); len(i.GetInstance()) != len(d.Instance) {
			return nil, 0, malformed("instance of %d bytes: want %d", len(i.GetInstance()), len(d.Instance))
		}
		d.proven = true
		for _, e := range record.FromWire(i.GetEntries()) {
			if e.Check() != nil {
				odd++
				continue
			}
			s, why := v.record(m.GetNetwork(), d.Instance, e)
			if why != "" {
				unproven(m.GetNetwork(), d.Instance, e.Key, why)
			}
			if why != "" && why != Unsigned && why != Uncertified {
				continue
			}
			if d.proven = d.proven && s != nil && why == ""; !d.take(service, e) {
				odd++
			}
		}
		d.speaker = v.certified(m.GetNetwork(), d.Instance)
		d.proven = d.proven && d.speaker != nil && len(d.sequences) > 0
		out = append(out, d)
	}
	slices.SortFunc(out, byInstance)
	return slices.CompactFunc(out, func(a, b Delivery) bool { return a.Instance == b.Instance }), odd, nil
}

func byInstance(a, b Delivery) int { return bytes.Compare(a.Instance[:], b.Instance[:]) }

func (d *Delivery) take(service string, e record.Entry) bool {
	r, err := e.Decode()
	if err != nil || r.Key.Service != service {
		return false
	}
	switch {
	case r.Export != nil:
		d.Export = r.Export
	case r.Health != nil:
		d.Health[r.Key.Port] = *r.Health
	}
	d.sequences[e.Key] = e.Sequence
	return true
}

// date notes since when a stream has said what it says now, and not what it said before.
// What it says of an instance at first may be old, as when it is attached again: where
// others speak of that instance it is no news, unless it is newer by its numbers.
func date(now, before []Delivery, others [][]Delivery, at time.Time) {
	for i := range now {
		d := &now[i]
		d.changed = at
		if j, ok := slices.BinarySearchFunc(before, *d, byInstance); ok {
			if before[j].Live == d.Live && before[j].Draining == d.Draining && maps.Equal(before[j].sequences, d.sequences) {
				d.changed = before[j].changed
			}
			continue
		}
		for _, o := range others {
			j, ok := slices.BinarySearchFunc(o, *d, byInstance)
			if ok && o[j].Live == d.Live && !d.ahead(o[j]) && !d.changed.Before(o[j].changed) {
				d.changed = o[j].changed.Add(-1)
			}
		}
	}
}

// ahead says whether a has a newer record than b of what both speak of, or one that is
// newer than all of b's.
func (a Delivery) ahead(b Delivery) bool {
	newest := uint64(0)
	for _, s := range b.sequences {
		newest = max(newest, s)
	}
	for k, s := range a.sequences {
		if t, both := b.sequences[k]; both && s > t || !both && s > newest {
			return true
		}
	}
	return false
}

// behind is how long a gateway may be behind its sibling with what an instance says.
const behind = 2 * time.Second

// newer says whether a's word is newer than b's, of the same instance by way of another
// gateway: rather that of one who hears it. Of two who do, the word that has changed
// last counts, since every gateway hears of every change, and what is withdrawn leaves no
// number behind; unless it has come soon after the other, and is older by its numbers.
// No gateway can prove these here: one that says the greatest of all is not believed for
// longer.
func newer(a, b Delivery) bool {
	if a.Live != b.Live {
		return a.Live
	}
	if later := a.changed.Sub(b.changed); max(later, -later) <= behind {
		if old := a.older(b); old != b.older(a) {
			return !old
		}
	}
	return a.changed.After(b.changed)
}

// older says whether a has an older record than b of what both speak of, and no newer
// one.
func (a Delivery) older(b Delivery) (older bool) {
	for k, s := range a.sequences {
		switch t, both := b.sequences[k]; {
		case both && s > t:
			return false
		case both && s < t:
			older = true
		}
	}
	return older
}

func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}

// BestOfGateways returns of each gateway the instance that counts for a port: during
// a hand-over a gateway has two, perhaps of different groups.
func BestOfGateways(deliveries []Delivery, port uint16) (out []Delivery) {
	for _, d := range deliveries {
		h, speaks := d.Health[port]
		if !speaks {
			continue
		}
		i := slices.IndexFunc(out, func(o Delivery) bool { return o.Gateway == d.Gateway })
		switch {
		case i < 0:
			out = append(out, d)
		case better(d, h, out[i], out[i].Health[port]):
			out[i] = d
		}
	}
	return out
}

// HealthOf adds up what the instances of a share say of a port, as gateways do; not
// ok means unknown: treat it as usable.
func HealthOf(deliveries []Delivery, port uint16) (ledger.Health, bool) {
	var speak []ledger.Delivery
	for _, d := range deliveries {
		if h, ok := d.Health[port]; ok {
			speak = append(speak, ledger.Delivery{Instance: d.Instance, Gateway: d.Gateway, Group: d.Group, Draining: d.Draining, Live: d.Live, Health: h})
		}
	}
	return ledger.Merge(speak), len(speak) > 0
}

// better says whether a is to be preferred: live before silent, what drains gives
// way, then more that is healthy wins, and of equals the one with the greater name.
func better(a Delivery, ha record.Health, b Delivery, hb record.Health) bool {
	return cmp.Or(
		cmp.Compare(truth(a.Live), truth(b.Live)),
		cmp.Compare(truth(b.Draining), truth(a.Draining)),
		cmp.Compare(ha.HealthyCapacity, hb.HealthyCapacity),
		cmp.Compare(ha.ReadyCapacity, hb.ReadyCapacity),
		byInstance(a, b)) > 0
}
