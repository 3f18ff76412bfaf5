package healthstream

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

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

	sequences map[string]uint64 // by encoded key
}

// decodeShare reads a ShareState. Entries that cannot be used, or are of another
// service, are left out and counted.
func decodeShare(service string, m *pb.ShareState) (out []Delivery, odd int, err error) {
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
		for _, e := range record.FromWire(i.GetEntries()) {
			if e.Check() != nil || !d.take(service, e) {
				odd++
			}
		}
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

// newest says whether a's word is newer than b's, of the same instance: its
// sequences grow with all that it says.
func newer(a, b Delivery) bool {
	var x, y uint64
	for _, s := range a.sequences {
		x = max(x, s)
	}
	for _, s := range b.sequences {
		y = max(y, s)
	}
	return cmp.Or(cmp.Compare(x, y), cmp.Compare(truth(a.Live), truth(b.Live))) > 0
}

func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}

// BestOfGateways returns of each gateway the instance that counts for a port: during
// a hand-over a gateway has two.
func BestOfGateways(deliveries []Delivery, port uint16) (out []Delivery) {
	for _, d := range deliveries {
		h, speaks := d.Health[port]
		if !speaks {
			continue
		}
		i := slices.IndexFunc(out, func(o Delivery) bool { return o.Gateway == d.Gateway && o.Group == d.Group })
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
