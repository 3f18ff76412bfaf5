package record

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
)

func signed(t *testing.T, r Record, sequence uint64) (e Entry, statement []byte) {
	t.Helper()
	e, err := Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	e.Sequence = sequence
	return e.SignWith("west", Instance{1}, func(b []byte) []byte { statement = b; return bytes.Repeat([]byte{7}, 64) }), statement
}

func TestASignatureTravelsInTheBodyAndDecodesAway(t *testing.T) {
	for _, r := range []Record{
		NetworkRecord(Network{Gateway: "gw-1"}),
		ExportRecord("shop.default.svc.cluster.local", Export{Name: "shop", Namespace: "default", Ports: []Port{{Port: 80}}, Scope: ScopeGlobal}),
		HealthRecord("shop.default.svc.cluster.local", 80, Health{Ready: 3, Healthy: 2}),
	} {
		plain, _ := Encode(r)
		plain.Sequence = 5
		e, made := signed(t, r, 5)
		statement, signature, ok := e.Signed("west", Instance{1})
		if !ok || !bytes.Equal(statement, made) || !bytes.Equal(signature, bytes.Repeat([]byte{7}, 64)) || len(e.Body) != len(plain.Body)+SignatureBytes {
			t.Fatalf("%v: %x over %x, %v; want what was signed, %x", r.Key, signature, statement, ok, made)
		}
		if _, _, ok := plain.Signed("west", Instance{1}); ok {
			t.Errorf("%v: a body without a signature has one", r.Key)
		}
		if !e.Says(plain) || !plain.Says(e) {
			t.Errorf("%v: signed it says something else", r.Key)
		}
		if got, err := e.Decode(); err != nil || got.Key != r.Key {
			t.Errorf("%v: read as %+v, %v", r.Key, got, err)
		}
	}
	// The generated code finds the signature where signature.go puts it.
	e, _ := signed(t, HealthRecord("a", 80, Health{Ready: 1}), 1)
	var m pb.HealthBody
	if err := proto.Unmarshal(e.Body, &m); err != nil || !bytes.Equal(m.GetSignature(), bytes.Repeat([]byte{7}, 64)) || m.GetReady() != 1 {
		t.Errorf("read %v, %v", &m, err)
	}
}

// A signature holds for one record of one instance of one network: whatever is different
// makes another statement, also if parts move from one field into the next.
func TestWhatIsSignedIsOneRecordOfOneInstance(t *testing.T) {
	r := ExportRecord("shop", Export{Name: "shop", Namespace: "default", Ports: []Port{{Port: 80}}, Scope: ScopeGlobal})
	e, _ := signed(t, r, 5)
	seen := map[string]string{}
	add := func(what, network string, i Instance, e Entry) {
		s, _, ok := e.Signed(network, i)
		if other, twice := seen[string(s)]; !ok || twice {
			t.Errorf("%s is signed by what %q is signed by, %v", what, other, ok)
		}
		seen[string(s)] = what
	}
	with := func(change func(*Entry)) Entry { x := e; x.Body = bytes.Clone(e.Body); change(&x); return x }
	add("the record", "west", Instance{1}, e)
	add("another network", "wes", Instance{1}, e)
	add("another instance", "west", Instance{2}, e)
	add("another key", "west", Instance{1}, with(func(x *Entry) { x.Key = EncodeKey(Key{Kind: KindExport, Service: "cart"}) }))
	add("another sequence", "west", Instance{1}, with(func(x *Entry) { x.Sequence++ }))
	add("another body", "west", Instance{1}, with(func(x *Entry) { x.Body[0]++ }))
	add("a longer key", "west", Instance{1}, with(func(x *Entry) { x.Key, x.Body = x.Key+string(x.Body[:1]), x.Body[1:] }))
	add("another body behind the signature", "west", Instance{1}, with(func(x *Entry) {
		x.Body = append(protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 1), x.Body...)
	}))
}

func FuzzSigned(f *testing.F) {
	e, _ := Encode(HealthRecord("a", 80, Health{Ready: 1}))
	f.Add(e.Body)
	f.Add(e.SignWith("west", Instance{1}, func([]byte) []byte { return make([]byte, 64) }).Body)
	f.Fuzz(func(t *testing.T, body []byte) {
		e := Entry{Key: e.Key, Sequence: 1, Body: body}
		_, signature, ok := e.Signed("west", Instance{1})
		if ok && len(signature) != 64 {
			t.Errorf("signature of %d bytes", len(signature))
		}
		if !e.Says(e) {
			t.Error("a record does not say what it says")
		}
	})
}
