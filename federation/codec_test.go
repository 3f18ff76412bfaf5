package federation

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/mesh"
)

func TestCodecRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfN(rapid.Custom(drawRecord), 0, 30).Draw(t, "records")
		for _, r := range want {
			if r.Endpoint != nil {
				r.Endpoint.Health = float64(float32(r.Endpoint.Health)) // what the wire can hold
			}
		}
		b, err := Encode(want)
		if err != nil {
			t.Fatal(err)
		}
		got, skipped, err := Decode(b)
		if err != nil || skipped != 0 {
			t.Fatalf("skipped %d, error %v", skipped, err)
		}
		if len(want) > 0 && !reflect.DeepEqual(got, want) {
			t.Fatalf("got %v\nwant %v", got, want)
		}
	})
}

func TestUnknownFieldsAreKept(t *testing.T) {
	unknown := protowire.AppendString(protowire.AppendTag(nil, 999, protowire.BytesType), "from the future")
	w := &federationpb.Batches{Batches: []*federationpb.Batch{{
		Network: "west", Origin: "west/gw-1", Incarnation: 1,
		Records: []*federationpb.Record{toWire(summary("west/gw-1", 1, 1, 8, 0))},
	}}}
	w.Batches[0].Records[0].ProtoReflect().SetUnknown(unknown)
	w.Batches[0].Records[0].GetSummary().ProtoReflect().SetUnknown(unknown)
	want, err := proto.Marshal(w)
	if err != nil {
		t.Fatal(err)
	}
	records, _, err := Decode(want)
	if err != nil {
		t.Fatal(err)
	}
	table := merged(epoch, records)
	got, err := Encode(table.Records(epoch))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("relayed:\n got %x\nwant %x", got, want)
	}
}

func TestNewerKindsAndStatesAreSkippedNotFatal(t *testing.T) {
	w, err := ToBatches([]Record{
		summary("west/gw-1", 1, 1, 8, 0),
		{Network: "west", Origin: Origin{"west/gw-1", 1}, Sequence: 2, Endpoint: &EndpointFact{Endpoint: 7, Port: 80}},
		{Network: "west", Origin: Origin{"west/gw-1", 1}, Sequence: 3, Endpoint: &EndpointFact{Endpoint: 8, Port: 80}},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.Batches[0].Records[1].GetEndpoint().State = 42
	w.Batches[0].Records[2].Fact = nil
	b, _ := proto.Marshal(w)
	records, skipped, err := Decode(b)
	if err != nil || len(records) != 1 || skipped != 2 {
		t.Errorf("got %d records, %d skipped, error %v; want 1, 2, none", len(records), skipped, err)
	}
}

func TestDecodeNamesWhatIsWrong(t *testing.T) {
	with := func(change func(*federationpb.Batch)) []byte {
		m := &federationpb.Batches{Batches: []*federationpb.Batch{{
			Network: "west", Origin: "west/gw-1", Incarnation: 1,
			Records: []*federationpb.Record{toWire(summary("west/gw-1", 1, 1, 8, 0))},
		}}}
		change(m.Batches[0])
		b, _ := proto.Marshal(m)
		return b
	}
	endpoint := func(e *federationpb.EndpointFact) func(*federationpb.Batch) {
		return func(b *federationpb.Batch) { b.Records[0].Fact = &federationpb.Record_Endpoint{Endpoint: e} }
	}
	for _, c := range []struct {
		name string
		in   []byte
		want string
	}{
		{"garbage", []byte{0xff, 0xff, 0xff}, "decode federation records"},
		{"no network", with(func(b *federationpb.Batch) { b.Network = "" }), `network ""`},
		{"long origin", with(func(b *federationpb.Batch) { b.Origin = strings.Repeat("x", 600) }), "origin"},
		{"sequence 0", with(func(b *federationpb.Batch) { b.Records[0].Sequence = 0 }), "sequence 0: sequences start at 1"},
		{"healthy above ready", with(func(b *federationpb.Batch) { b.Records[0].GetSummary().Healthy = 11 }), "healthy 11: must not exceed ready 10"},
		{"port out of range", with(func(b *federationpb.Batch) { b.Records[0].GetSummary().Port = 65536 }), "port"},
		{"no service", with(func(b *federationpb.Batch) { b.Records[0].GetSummary().Service = "" }), "service"},
		{"too many exceptions", with(func(b *federationpb.Batch) {
			b.Records[0].GetSummary().Exceptions = make([]uint64, MaxExceptions+1)
		}), "exceptions 4097: want at most 4096"},
		{"endpoint 0", with(endpoint(&federationpb.EndpointFact{Port: 80, State: 1})), "endpoint 0"},
		{"health above 1", with(endpoint(&federationpb.EndpointFact{Endpoint: 1, Port: 80, State: 1, Health: 2})), "health 2"},
		{"too many records", with(func(b *federationpb.Batch) {
			b.Records = make([]*federationpb.Record, MaxRecords+1)
			for i := range b.Records {
				b.Records[i] = &federationpb.Record{}
			}
		}), "limit 50000"},
		{"too large", make([]byte, MaxMessage+1), "limit 8388608"},
	} {
		if _, _, err := Decode(c.in); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", c.name, err, c.want)
		}
	}
}

func TestHugeAgesSaturate(t *testing.T) {
	b, err := Encode([]Record{summary("west/gw-1", 1, 1, 8, 1<<62)})
	if err != nil {
		t.Fatal(err)
	}
	records, _, err := Decode(b)
	if err != nil || records[0].Age != MaxAge {
		t.Errorf("got %v, %v; want age %v", records, err, MaxAge)
	}
}

func TestEncodeRefusesWhatDecodeWould(t *testing.T) {
	var invalid *InvalidError
	if _, err := Encode([]Record{{Network: "west"}}); !errors.As(err, &invalid) {
		t.Errorf("got %v, want an InvalidError", err)
	}
	if _, err := Encode(make([]Record, MaxRecords+1)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v, want ErrTooLarge", err)
	}
}

// A full state of 2 000 services on each of 10 networks has to stay small.
func TestFullStateIsSmall(t *testing.T) {
	var records []Record
	for network := range 10 {
		for service := range 2000 {
			r := summary(fmt.Sprintf("network-%d/gw-1", network), uint64(time.Now().UnixNano()), 1<<20, 8, 30*time.Second)
			r.Network = fmt.Sprintf("network-%d", network)
			r.Summary = &SummaryFact{
				Service: fmt.Sprintf("service-%d.namespace-%d.svc.cluster.local", service, service%40), Port: 8080,
				Ready: 10, Healthy: 9, ReadyCapacity: 1000, HealthyCapacity: 900, Exceptions: []mesh.EndpointID{1 << 60},
			}
			records = append(records, r)
		}
	}
	b, err := Encode(records)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("20 000 summaries: %d bytes, %d each", len(b), len(b)/len(records))
	if len(b) > 5<<20/2 {
		t.Errorf("got %d bytes, want at most half of 5 MB, before compression", len(b))
	}
}

func FuzzDecode(f *testing.F) {
	for _, records := range [][]Record{
		nil,
		{summary("west/gw-1", 1, 1, 8, time.Second)},
		{{Network: "west", Origin: Origin{"west/n", 9}, Sequence: 1, Endpoint: &EndpointFact{Endpoint: 1, Port: 80, State: Ejected, Reason: "refused", Health: 0.5}}},
	} {
		b, err := Encode(records)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte{0x0a, 0x02, 0x22, 0x00})
	f.Fuzz(func(t *testing.T, in []byte) {
		records, _, err := Decode(in)
		if err != nil {
			return
		}
		table := merged(epoch, records)
		b, err := Encode(records)
		if err != nil {
			t.Fatalf("decoded, but does not encode: %v", err)
		}
		again, _, err := Decode(b)
		if err != nil {
			t.Fatalf("encoded, but does not decode: %v", err)
		}
		if got, want := merged(epoch, again).Records(epoch), table.Records(epoch); !reflect.DeepEqual(got, want) {
			t.Fatalf("got %v\nwant %v", got, want)
		}
	})
}
