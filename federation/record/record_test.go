package record

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/mesh"
)

const hello = "hello.shop.svc.cluster.local"

func sampleNetwork() Network {
	return Network{
		Gateway: "gw-1", Addresses: []Address{{"192.0.2.1", 15008}, {"gw.example.com", 15008}}, QUIC: []Address{{"192.0.2.2", 15008}}, Locality: mesh.Locality{Region: "eu", Zone: "a"},
		Keys: [][]byte{make([]byte, 32)}, Bundles: []Bundle{{"cluster.local", [][]byte{{1, 2, 3}}}}, Group: "blue",
	}
}

func sampleExport() Export {
	return Export{
		Name: "hello", Namespace: "shop", Aliases: []string{"hello.shop"}, Ports: []Port{{"http", 80}, {"", 9090}}, Scope: ScopeGlobal,
		Distribution: mesh.PreferNetwork, Identities: []spiffeid.ID{spiffeid.RequireFromString("spiffe://cluster.local/ns/shop/sa/hello")}, Created: 1, Capacity: 10,
		Affinity: mesh.ClientIP, Headless: true,
	}
}

func drawHealth(t *rapid.T) Health {
	h := Health{Ready: rapid.Uint32Range(0, MaxEndpoints).Draw(t, "ready"), ReadyCapacity: rapid.Uint32Range(0, MaxCapacity).Draw(t, "capacity"), Unnamed: rapid.Uint32Range(0, 9).Draw(t, "unnamed")}
	h.Healthy = rapid.Uint32Range(0, h.Ready).Draw(t, "healthy")
	h.HealthyCapacity = rapid.Uint32Range(0, h.ReadyCapacity).Draw(t, "healthy capacity")
	for range rapid.IntRange(0, 5).Draw(t, "exceptions") {
		h.Exceptions = append(h.Exceptions, Exception{Endpoint: mesh.EndpointID(rapid.Uint64Min(1).Draw(t, "id")), Cause: Cause(rapid.IntRange(0, 7).Draw(t, "cause"))})
	}
	return h
}

func TestRecordsSurviveTheWire(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		for _, want := range []Record{
			NetworkRecord(sampleNetwork()),
			ExportRecord(hello, sampleExport()),
			HealthRecord(hello, rapid.Uint16Min(1).Draw(t, "port"), drawHealth(t)),
		} {
			e, err := Encode(want)
			if err != nil {
				t.Fatal(err)
			}
			got, err := e.Decode()
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Fatalf("got %+v, %v\nwant %+v", got, err, want)
			}
		}
	})
}

func TestInvalidRecordsNameFieldValueAndRemedy(t *testing.T) {
	change := func(f func(*Export)) Record { e := sampleExport(); f(&e); return ExportRecord(hello, e) }
	health := func(h Health) Record { return HealthRecord(hello, 80, h) }
	for _, c := range []struct {
		in   Record
		want string
	}{
		{Record{Key: Key{Kind: 9}}, "kind 9: want network"},
		{ExportRecord("", sampleExport()), `service ""`},
		{ExportRecord("a b", sampleExport()), `service "a b"`},
		{HealthRecord(hello, 0, Health{}), "port 0"},
		{Record{Key: Key{Kind: KindHealth, Service: hello, Port: 80}, Export: new(Export)}, "want the body of the key's kind"},
		{Record{Key: Key{Kind: KindNetwork}}, "body 0: want exactly one"},
		{NetworkRecord(Network{}), `gateway ""`},
		{NetworkRecord(Network{Gateway: "gw-1", QUIC: []Address{{"192.0.2.2", 0}}}), `address "192.0.2.2:0": want`},
		{NetworkRecord(Network{Gateway: "gw-1", QUIC: make([]Address, MaxAddresses+1)}), "addresses 17: want at most 16"},
		{change(func(e *Export) { e.Ports = nil }), "ports 0: want 1 to 256"},
		{change(func(e *Export) { e.Ports = append(e.Ports, e.Ports[0]) }), "port 80: want 1 to 65535, each once"},
		{change(func(e *Export) { e.Scope = 0 }), "scope 0: want segment"},
		{change(func(e *Export) { e.Capacity = 4_000_000_000 }), "capacity 4000000000: want at most"},
		{change(func(e *Export) { e.Identities = append(e.Identities, e.Identities[0]) }), `identity "spiffe://`},
		{change(func(e *Export) { e.Aliases = make([]string, MaxAliases+1) }), "aliases 65: want at most 64"},
		{health(Health{Ready: 1, Healthy: 2}), "healthy 2: must not exceed ready 1"},
		{health(Health{Ready: MaxEndpoints + 1}), "ready 1000001: want at most 1000000"},
		{health(Health{ReadyCapacity: 1 << 31}), "ready capacity 2147483648: want at most"},
		{health(Health{Exceptions: make([]Exception, 65)}), "exceptions 65: want at most 64"},
		{health(Health{Exceptions: make([]Exception, 1)}), "exception 0: zero means unknown"},
	} {
		var invalid *InvalidError
		if _, err := Encode(c.in); !errors.As(err, &invalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: got %v, want an InvalidError with %q", c.in.Key, err, c.want)
		}
	}
}

// A version that says neither whether a service is headless nor its affinity reads one that does, and
// the other way round; a word for an affinity that is not known is none.
func TestVersionsThatDifferReadEachOthersExports(t *testing.T) {
	e, err := Encode(ExportRecord(hello, sampleExport()))
	if err != nil {
		t.Fatal(err)
	}
	const affinity, headless = 12, 16
	var before []byte // as versions write it that do not know the two
	for b := e.Body; len(b) > 0; {
		n, _, size := protowire.ConsumeField(b)
		if n != affinity && n != headless {
			before = append(before, b[:size]...)
		}
		b = b[size:]
	}
	if len(before) == len(e.Body) {
		t.Fatal("the fields have other numbers")
	}
	want := sampleExport()
	want.Affinity, want.Headless = "", false
	for what, body := range map[string][]byte{
		"of the version before": before,
		"with another word":     protowire.AppendString(protowire.AppendTag(before, affinity, protowire.BytesType), "ClientCookie"),
	} {
		got, err := Entry{Key: e.Key, Sequence: 1, Body: body}.Decode()
		if err != nil || !reflect.DeepEqual(*got.Export, want) {
			t.Errorf("%s: %+v, %v", what, got.Export, err)
		}
	}
}

// What a newer version says is kept as it came, and hashed as it came.
func TestUnknownFieldsSurviveRelaying(t *testing.T) {
	future := protowire.AppendString(protowire.AppendTag(nil, 999, protowire.BytesType), "from the future")
	e, err := Encode(ExportRecord(hello, sampleExport()))
	if err != nil {
		t.Fatal(err)
	}
	e.Sequence = 1
	e.Body = append(e.Body, future...)
	newerKey := Entry{Key: EncodeKey(Key{Kind: KindExport, Service: hello}) + string(future), Sequence: 2}
	newerKind := Entry{Key: "\x08\x07", Sequence: 3, Body: []byte("anything")}
	s := &Statement{Instance: Instance{1}, Count: 1, Watermark: 3, Changes: []Entry{e, newerKey, newerKind}}
	b, err := s.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeStatement(b)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got.Changes, s.Changes) {
		t.Errorf("got %+v\nwant %+v", got.Changes, s.Changes)
	}
	if r, err := got.Changes[0].Decode(); err != nil || r.Export.Name != "hello" {
		t.Errorf("a field of a newer version hides the rest: %+v, %v", r, err)
	}
	for _, e := range got.Changes[1:] {
		if _, err := e.Decode(); !errors.Is(err, ErrNewer) {
			t.Errorf("%q: got %v, want ErrNewer", e.Key, err)
		}
		if err := e.Check(); err != nil {
			t.Errorf("%q is not kept: %v", e.Key, err)
		}
	}
}

func TestAKeyHasOneEncoding(t *testing.T) {
	b := protowire.AppendString(protowire.AppendTag(nil, 2, protowire.BytesType), hello)
	b = protowire.AppendVarint(protowire.AppendTag(b, 1, protowire.VarintType), uint64(KindExport))
	if k, err := DecodeKey(string(b)); err == nil {
		t.Errorf("got %v for fields in another order; want an error", k)
	}
	if k, err := DecodeKey(EncodeKey(Key{Kind: KindExport, Service: hello})); err != nil || k.Service != hello {
		t.Errorf("got %v, %v", k, err)
	}
}

func TestStatementsAreBounded(t *testing.T) {
	entry := Entry{Key: "k", Sequence: 5, Body: []byte("b")}
	for _, c := range []struct {
		change func(*Statement)
		want   string
	}{
		{func(s *Statement) { s.Count = 0 }, "count 0"},
		{func(s *Statement) { s.Since = 6 }, "since 6: must not exceed the watermark 5"},
		{func(s *Statement) { s.Since = 5 }, "sequence 5: want above 5"},
		{func(s *Statement) { s.Changes[0].Sequence = 6 }, "sequence 6"},
		{func(s *Statement) { s.Changes[0].Key = strings.Repeat("k", MaxKey+1) }, "key 301"},
		{func(s *Statement) { s.Removals = []Removal{{"k", 9}} }, "removal 9"},
		{func(s *Statement) { s.Answers = make([]uint64, MaxAnswers+1) }, "answers 2049: want at most 2048"},
	} {
		s := &Statement{Count: 1, Watermark: 5, Changes: []Entry{entry}}
		c.change(s)
		b, err := s.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := DecodeStatement(b); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want an error with %q", err, c.want)
		}
	}
	large := &Statement{Count: 1, Watermark: 5, Changes: []Entry{{"k", 5, make([]byte, MaxStatement)}}}
	if _, err := large.Encode(); !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v, want ErrTooLarge", err)
	}
	if _, err := DecodeStatement(make([]byte, MaxStatement+1)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v, want ErrTooLarge", err)
	}
	short, _ := proto.Marshal(&pb.Statement{Instance: make([]byte, 15), Root: make([]byte, 32), Count: 1})
	if _, err := DecodeStatement(short); err == nil || !strings.Contains(err.Error(), "instance 15: want 16 bytes") {
		t.Errorf("got %v", err)
	}
}

func FuzzEntry(f *testing.F) {
	for _, r := range []Record{NetworkRecord(sampleNetwork()), ExportRecord(hello, sampleExport()), HealthRecord(hello, 80, Health{Ready: 2, Healthy: 1})} {
		e, err := Encode(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(e.Key, e.Body)
	}
	f.Fuzz(func(t *testing.T, key string, body []byte) {
		r, err := Entry{Key: key, Sequence: 1, Body: body}.Decode()
		if err != nil {
			return
		}
		e, err := Encode(r)
		if err != nil {
			t.Fatalf("decoded, but does not encode: %v", err)
		}
		again, err := e.Decode()
		if err != nil || !reflect.DeepEqual(again, r) {
			t.Fatalf("got %+v, %v\nwant %+v", again, err, r)
		}
	})
}

func FuzzStatement(f *testing.F) {
	s := &Statement{Count: 1, Watermark: 5, Changes: []Entry{{"k", 5, []byte("b")}}, Removals: []Removal{{"r", 4}}, Answers: []uint64{7}, Number: 9}
	b, err := s.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, in []byte) {
		s, err := DecodeStatement(in)
		if err != nil {
			return
		}
		if got := StatementOf(in); got != s.Instance {
			t.Fatalf("at a glance it is of instance %s, by its content of %s", got, s.Instance)
		}
		b, err := s.Encode()
		if errors.Is(err, ErrTooLarge) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		again, err := DecodeStatement(b)
		if err != nil {
			t.Fatal(err)
		}
		if c, _ := again.Encode(); string(c) != string(b) {
			t.Fatalf("got %x, want %x", c, b)
		}
	})
}
