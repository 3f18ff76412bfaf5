package health

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	pb "github.com/isthmus-mesh/isthmus/control/health/healthpb"
	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/mesh"
	"google.golang.org/protobuf/proto"
)

// three is a service on three networks of one gateway each, everything well.
func three() (h ServiceHealth) {
	for i, name := range []string{"ap-1", "eu-1", "us-1"} {
		c := Counts{2, 2, 2, 2}
		h.Networks = append(h.Networks, Network{Name: name, Counts: c, Gateways: []Gateway{{Name: "gw-1", Instance: 0x0123456789abcdef + uint64(i), Counts: c}}})
	}
	return h
}

// TestServiceHealthSizes holds the sizes that the prototype had.
func TestServiceHealthSizes(t *testing.T) {
	one := three()
	one.Networks[1].Healthy, one.Networks[1].HealthyCapacity = 1, 1
	one.Networks[1].Gateways[0].Counts = one.Networks[1].Counts
	one.Networks[1].Ejected = []Ejected{{0x0123456789abcdef, record.Witness, record.Detail{Reason: "connect_refused", Witness: "node-17", Since: 1_790_000_000}}}
	twenty := three()
	n := &twenty.Networks[1]
	n.Counts = Counts{30, 10, 30, 10}
	n.Gateways[0].Counts = n.Counts
	for i := range 20 {
		n.Ejected = append(n.Ejected, Ejected{mesh.EndpointID(0x0123456789abcdef + i), record.Witness, record.Detail{Since: 1_790_000_000}})
	}
	for _, x := range []struct {
		what string
		h    ServiceHealth
		most int
	}{{"all well", three(), 98}, {"one ejected", one, 153}, {"twenty ejected", twenty, 519}} {
		b, err := Encode(x.h)
		if err != nil || len(b) > x.most {
			t.Errorf("%s: %d bytes (%v), want at most %d", x.what, len(b), err, x.most)
		}
		t.Logf("%s: %d bytes", x.what, len(b))
	}
	up, err := EncodeRequest(Request{Sequence: 7, Ports: []PortHealth{{Target: Target{0x0123456789abcdef, 8080}, State: EjectedPort, Reason: "connect_refused", Age: time.Second}}})
	if err != nil || len(up) > 60 {
		t.Errorf("one transition: %d bytes (%v), want at most 60", len(up), err)
	}
}

func name(t *rapid.T) string { return rapid.StringMatching(`[a-z][a-z0-9-]{0,20}`).Draw(t, "name") }

func drawCounts(t *rapid.T) Counts {
	ready := rapid.Uint32Range(0, 100).Draw(t, "ready")
	healthy := rapid.Uint32Range(0, ready).Draw(t, "healthy")
	extra := rapid.Uint32Range(0, 3).Draw(t, "extra")
	return Counts{ready, healthy, ready + extra, healthy + min(extra, 1)}
}

func drawIDs(t *rapid.T) (out []mesh.EndpointID) {
	for _, id := range rapid.SliceOfN(rapid.Uint64Range(1, 200), 0, 6).Draw(t, "ids") {
		out = append(out, mesh.EndpointID(id))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// TestServiceHealthSurvivesTheWire: Decode returns what Encode was given, and equal health is equal bytes.
func TestServiceHealthSurvivesTheWire(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h ServiceHealth
		names := rapid.SliceOfNDistinct(rapid.Custom(name), 0, 4, rapid.ID[string]).Draw(t, "networks")
		slices.Sort(names)
		for _, n := range names {
			x := Network{Name: n, State: State(rapid.IntRange(0, 2).Draw(t, "state")), Counts: drawCounts(t), Further: rapid.Uint32Range(0, 9).Draw(t, "further"), MaxWeight: rapid.Uint32().Draw(t, "weight")}
			gateways := rapid.SliceOfNDistinct(rapid.Custom(name), 0, 3, rapid.ID[string]).Draw(t, "gateways")
			slices.Sort(gateways)
			for _, g := range gateways {
				y := Gateway{Name: g, Instance: rapid.Uint64().Draw(t, "instance"), Group: rapid.SampledFrom([]string{"", "g"}).Draw(t, "group"), Counts: x.Counts, Draining: rapid.Bool().Draw(t, "draining"), Stale: rapid.Bool().Draw(t, "stale"), Unknown: rapid.Bool().Draw(t, "unknown"), Unreachable: drawIDs(t)}
				if rapid.Bool().Draw(t, "other") {
					y.Counts = drawCounts(t)
				}
				x.Gateways = append(x.Gateways, y)
			}
			for _, id := range drawIDs(t) {
				e := Ejected{Endpoint: id, Cause: record.Cause(rapid.IntRange(0, 9).Draw(t, "cause"))}
				if rapid.Bool().Draw(t, "detail") {
					e.Detail = record.Detail{Reason: "refused", Witness: name(t), Since: 5}
				}
				x.Ejected = append(x.Ejected, e)
			}
			h.Networks = append(h.Networks, x)
		}
		b, err := Encode(h)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Decode(b)
		if err != nil || !reflect.DeepEqual(got, h) {
			t.Fatalf("got %+v (%v)\nwant %+v", got, err, h)
		}
		if again, _ := Encode(got); !bytes.Equal(again, b) {
			t.Fatalf("other bytes for equal health: %x, then %x", b, again)
		}
	})
}

// TestBadHealthNamesField: each broken rule is an error at its field.
func TestBadHealthNamesField(t *testing.T) {
	spoil := func(change func(*Network)) ServiceHealth {
		h := three()
		h.Networks[1].Ejected = []Ejected{{1, record.Witness, record.Detail{}}, {2, record.Hop, record.Detail{}}}
		change(&h.Networks[1])
		return h
	}
	for field, h := range map[string]ServiceHealth{
		"networks":                            {Networks: make([]Network, MaxNetworks+1)},
		"networks[1].name":                    spoil(func(n *Network) { n.Name = "ap-1" }),
		"networks[1].gateways":                spoil(func(n *Network) { n.Gateways = make([]Gateway, MaxGateways+1) }),
		"networks[1].ejected":                 spoil(func(n *Network) { n.Ejected = make([]Ejected, MaxEjected+1) }),
		"networks[1].further":                 spoil(func(n *Network) { n.Further = record.MaxEndpoints + 1 }),
		"networks[1].ready":                   spoil(func(n *Network) { n.Ready = 1 << 31 }),
		"networks[1].healthy":                 spoil(func(n *Network) { n.Healthy = 3 }),
		"networks[1].ready_capacity":          spoil(func(n *Network) { n.ReadyCapacity = 1 }),
		"networks[1].healthy_capacity":        spoil(func(n *Network) { n.HealthyCapacity = 9 }),
		"networks[1].gateways[0].name":        spoil(func(n *Network) { n.Gateways[0].Name = "a b" }),
		"networks[1].gateways[1].name":        spoil(func(n *Network) { n.Gateways = append(n.Gateways, n.Gateways[0]) }),
		"networks[1].gateways[0].group":       spoil(func(n *Network) { n.Gateways[0].Group = "\n" }),
		"networks[1].gateways[0].unreachable": spoil(func(n *Network) { n.Gateways[0].Unreachable = []mesh.EndpointID{2, 1} }),
		"networks[1].gateways[0].healthy":     spoil(func(n *Network) { n.Gateways[0].Healthy = 3 }),
		"networks[1].ejected[0].endpoint":     spoil(func(n *Network) { n.Ejected[0].Endpoint = 0 }),
		"networks[1].ejected[1].endpoint":     spoil(func(n *Network) { n.Ejected[1].Endpoint = 1 }),
		"networks[1].ejected[0].reason":       spoil(func(n *Network) { n.Ejected[0].Reason = strings.Repeat("x", 65) }),
		"networks[1].ejected[0].witness":      spoil(func(n *Network) { n.Ejected[0].Witness = "a b" }),
		"networks[1].ejected[1].since":        spoil(func(n *Network) { n.Ejected[1].Since = -1 }),
	} {
		_, err := Encode(h)
		if e := (*Error)(nil); !errors.As(err, &e) || e.Field != field || e.Remedy == "" {
			t.Errorf("%s: %v", field, err)
		}
	}
	for what, b := range map[string][]byte{"not protobuf": {0xff}, "too large": make([]byte, MaxBody+1)} {
		if _, err := Decode(b); err == nil {
			t.Errorf("%s is accepted", what)
		}
	}
}

func TestNames(t *testing.T) {
	n := Name{"demo", "web.demo.svc.cluster.local", 80}
	if got, err := ParseName(n.String()); err != nil || got != n {
		t.Errorf("%v, %v", got, err)
	}
	for _, s := range []string{"", "a/b", "a/b/0", "a/b/65536", "a/b/080", "/b/80", "a//80", "a/b/80/c"} {
		if n, err := ParseName(s); err == nil {
			t.Errorf("%q is read as %v", s, n)
		}
	}
}

// drawDeliveries draws the reports of a network's gateway instances.
func drawDeliveries(t *rapid.T) (out []ledger.Delivery) {
	for i := range rapid.IntRange(0, 4).Draw(t, "instances") {
		c := drawCounts(t)
		d := ledger.Delivery{Instance: record.Instance{7: byte(i + 1)}, Gateway: rapid.SampledFrom([]string{"gw-1", "gw-2"}).Draw(t, "gateway"), Group: rapid.SampledFrom([]string{"", "g"}).Draw(t, "group"), Draining: rapid.Bool().Draw(t, "draining"), Live: rapid.Bool().Draw(t, "live"),
			Health: record.Health{Ready: c.Ready, Healthy: c.Healthy, ReadyCapacity: c.ReadyCapacity, HealthyCapacity: c.HealthyCapacity, Unnamed: rapid.Uint32Range(0, 2).Draw(t, "unnamed")}}
		for _, id := range drawIDs(t) {
			d.Health.Exceptions = append(d.Health.Exceptions, record.Exception{Endpoint: id, Cause: record.Cause(rapid.IntRange(1, 5).Draw(t, "cause"))})
		}
		out = append(out, d)
	}
	return out
}

// TestFromMergeIsEncodable: whatever instances report, the result is valid, keeps the sums of Merge, and names
// the endpoints that Merge ejects.
func TestFromMergeIsEncodable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		deliveries := drawDeliveries(t)
		m := ledger.Merge(slices.Clone(deliveries))
		n := FromMerge("b", m, []Gateway{{Name: "gw-3"}}, 5)
		if _, err := Encode(ServiceHealth{[]Network{n}}); err != nil {
			t.Fatalf("%+v: %v", n, err)
		}
		if n.Ready != m.Ready || n.Healthy != m.Healthy || n.ReadyCapacity != m.ReadyCapacity || n.HealthyCapacity != m.HealthyCapacity || n.Further != m.Unnamed {
			t.Fatalf("got %+v, want the sums of %+v", n, m)
		}
		for _, x := range m.Exceptions {
			if !slices.ContainsFunc(n.Ejected, func(e Ejected) bool { return e.Endpoint == x.Endpoint }) {
				t.Fatalf("endpoint %s is missing in %+v", x.Endpoint, n.Ejected)
			}
		}
		live := slices.ContainsFunc(deliveries, func(d ledger.Delivery) bool { return d.Live })
		if want := map[bool]State{true: Current, false: Stale}[live]; len(deliveries) > 0 && n.State != want || len(deliveries) == 0 && n.State != Unknown {
			t.Fatalf("state %v of %+v", n.State, deliveries)
		}
		slices.Reverse(m.Deliveries)
		slices.Reverse(m.Exceptions)
		if other := FromMerge("b", m, []Gateway{{Name: "gw-3"}}, 5); !reflect.DeepEqual(other, n) {
			t.Fatalf("the order of the merged reports matters: %+v, then %+v", n, other)
		}
	})
}

// TestFaultsAreNamedFirst: endpoints that are merely absent are the ones without a name.
func TestFaultsAreNamedFirst(t *testing.T) {
	var h record.Health
	for i := range 60 {
		h.Exceptions = append(h.Exceptions, record.Exception{Endpoint: mesh.EndpointID(i + 1), Cause: record.NotReady}, record.Exception{Endpoint: mesh.EndpointID(1000 + i), Cause: record.Witness})
	}
	n := FromMerge("b", ledger.Merge([]ledger.Delivery{{Live: true, Gateway: "gw", Health: h}}), nil, 0)
	faults := 0
	for _, e := range n.Ejected {
		faults += fault(e)
	}
	if len(n.Ejected) != MaxEjected || faults != 60 || n.Further != 120-MaxEjected {
		t.Errorf("%d named, %d of them faults, %d further", len(n.Ejected), faults, n.Further)
	}
}

// TestRequestsSurviveTheWire: and so do responses.
func TestRequestsSurviveTheWire(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := Request{Sequence: rapid.Uint64().Draw(t, "sequence"), Complete: rapid.Bool().Draw(t, "complete"), Draining: rapid.Bool().Draw(t, "draining")}
		if rapid.Bool().Draw(t, "hello") {
			r.Hello = &Hello{Node: name(t), Network: name(t), Instance: Instance{1, 2, 3}}
		}
		for _, id := range drawIDs(t) {
			target := Target{id, uint16(rapid.IntRange(1, 65535).Draw(t, "port"))}
			r.Ports = append(r.Ports, PortHealth{Target: target, State: PortState(rapid.IntRange(0, 2).Draw(t, "state")), Reason: rapid.SampledFrom([]string{"", "refused"}).Draw(t, "reason"), Score: 0.5, Age: time.Duration(rapid.IntRange(0, 1000).Draw(t, "age")) * time.Millisecond})
			r.Forgotten = append(r.Forgotten, target)
		}
		b, err := EncodeRequest(r)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := DecodeRequest(b); err != nil || !reflect.DeepEqual(got, r) {
			t.Fatalf("got %+v (%v), want %+v", got, err, r)
		}
		answer := Response{Welcome: &Welcome{Gateway: name(t), Resumed: r.Complete, Spread: 3 * time.Second}, Ask: r.Forgotten}
		if b, err = EncodeResponse(answer); err != nil {
			t.Fatal(err)
		}
		if got, err := DecodeResponse(b); err != nil || !reflect.DeepEqual(got, answer) {
			t.Fatalf("got %+v (%v), want %+v", got, err, answer)
		}
	})
}

// TestBadReportNamesField: each broken rule of a message is an error at its field.
func TestBadReportNamesField(t *testing.T) {
	ok := &pb.PortHealth{Endpoint: 1, Port: 80, State: pb.PortState_PORT_STATE_HEALTHY}
	with := func(change func(*pb.PortHealth)) *pb.ReportRequest {
		p := proto.CloneOf(ok)
		change(p)
		return &pb.ReportRequest{Ports: []*pb.PortHealth{ok, p}}
	}
	many, targets := make([]*pb.PortHealth, MaxPorts+1), make([]*pb.Target, MaxPorts+1)
	for field, m := range map[string]*pb.ReportRequest{
		"hello.instance":  {Hello: &pb.Hello{Node: "n", Network: "a", Instance: []byte{1}}},
		"hello.node":      {Hello: &pb.Hello{Network: "a", Instance: bytes.Repeat([]byte{1}, 16)}},
		"hello.network":   {Hello: &pb.Hello{Node: "n", Network: "a b", Instance: bytes.Repeat([]byte{1}, 16)}},
		"ports":           {Ports: many},
		"forgotten":       {Forgotten: targets},
		"forgotten[0]":    {Forgotten: []*pb.Target{{Endpoint: 1, Port: 65536}}},
		"ports[1]":        with(func(p *pb.PortHealth) { p.Endpoint = 0 }),
		"ports[1].state":  with(func(p *pb.PortHealth) { p.State = 0 }),
		"ports[1].reason": with(func(p *pb.PortHealth) { p.Reason = "\x1b[2J" }),
		"ports[1].score":  with(func(p *pb.PortHealth) { p.Score = 2 }),
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		_, err = DecodeRequest(b)
		if e := (*Error)(nil); !errors.As(err, &e) || e.Field != field || e.Remedy == "" {
			t.Errorf("%s: %v", field, err)
		}
	}
	for field, m := range map[string]*pb.ReportResponse{"ask": {Ask: targets}, "ask[0]": {Ask: []*pb.Target{{Port: 80}}}, "welcome.gateway": {Welcome: &pb.Welcome{}}} {
		b, _ := proto.Marshal(m)
		_, err := DecodeResponse(b)
		if e := (*Error)(nil); !errors.As(err, &e) || e.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	later, err := proto.Marshal(with(func(p *pb.PortHealth) { p.State = 9 }))
	if r, failed := DecodeRequest(later); cmp.Or(err, failed) != nil || r.Ports[1].State != EjectedPort {
		t.Errorf("a state of a later version is %+v (%v)", r, failed)
	}
}

// TestStreamHoldsOrder: hello first, then the full state, then transitions without a gap.
func TestStreamHoldsOrder(t *testing.T) {
	hello := &Hello{Node: "n", Network: "a", Instance: Instance{1}}
	for _, x := range []struct {
		requests []Request
		field    string
	}{
		{[]Request{{Hello: hello, Complete: true}, {Sequence: 1}, {Sequence: 2}}, ""},
		{[]Request{{Hello: hello}, {}, {Complete: true, Draining: true}, {Sequence: 1}}, ""},
		{[]Request{{}}, "hello"},
		{[]Request{{Hello: hello}, {Hello: hello}}, "hello"},
		{[]Request{{Hello: hello, Sequence: 1}}, "sequence"},
		{[]Request{{Hello: hello, Complete: true}, {Sequence: 2}}, "sequence"},
		{[]Request{{Hello: hello, Complete: true}, {Sequence: 1}, {Sequence: 1}}, "sequence"},
		{[]Request{{Hello: hello, Complete: true}, {Complete: true, Sequence: 1}}, "complete"},
	} {
		var s Stream
		field := ""
		for i, r := range x.requests {
			_, err := s.Accept(r)
			if e := (*Error)(nil); errors.As(err, &e) {
				if field = e.Field; i != len(x.requests)-1 {
					t.Errorf("%+v: request %d is refused: %v", x.requests, i, err)
				}
			}
		}
		if field != x.field {
			t.Errorf("%+v: refused for %q, want %q", x.requests, field, x.field)
		}
	}
	var s Stream
	var ports []PortHealth
	for i := range MaxPorts {
		ports = append(ports, PortHealth{Target: Target{mesh.EndpointID(i + 1), 80}})
	}
	more := PortHealth{Target: Target{9999, 80}}
	for i, x := range []struct {
		r    Request
		full int
	}{{Request{Hello: hello, Ports: ports, Complete: true}, 0}, {Request{Sequence: 1, Ports: []PortHealth{ports[0], more}}, 1}, {Request{Sequence: 2, Forgotten: []Target{ports[5].Target}, Ports: []PortHealth{more}}, 0}} {
		if full, err := s.Accept(x.r); err != nil || len(full) != x.full {
			t.Errorf("request %d: %d ports too many (%v), want %d", i, len(full), err, x.full)
		}
	}
}

func FuzzDecode(f *testing.F) {
	b, _ := Encode(three())
	f.Add(b)
	r, _ := EncodeRequest(Request{Hello: &Hello{"n", "a", Instance{1}}, Ports: []PortHealth{{Target: Target{1, 80}}}})
	f.Add(r)
	a, _ := EncodeResponse(Response{Welcome: &Welcome{Gateway: "gw"}, Ask: []Target{{1, 80}}})
	f.Add(a)
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := Decode(b); err == nil {
			if again, err := Encode(h); err != nil {
				t.Fatalf("%+v: %v", h, err)
			} else if got, err := Decode(again); err != nil || !reflect.DeepEqual(got, h) {
				t.Fatalf("got %+v (%v), want %+v", got, err, h)
			}
		}
		if r, err := DecodeRequest(b); err == nil {
			if _, err := EncodeRequest(r); err != nil {
				t.Fatalf("%+v: %v", r, err)
			}
		}
		if r, err := DecodeResponse(b); err == nil {
			if _, err := EncodeResponse(r); err != nil {
				t.Fatalf("%+v: %v", r, err)
			}
		}
		_, _ = ParseName(fmt.Sprint(b))
	})
}
