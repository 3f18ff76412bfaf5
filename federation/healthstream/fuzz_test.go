package healthstream

import (
	"bytes"
	"encoding/hex"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/isthmus-mesh/isthmus/federation"
	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// fixtures are messages as the version of November 2026 has written them. They are
// never written anew: a reader of today must take them, and the messages of newer
// versions, which have fields that it does not know. Once they were, when instances got
// other names and those of earlier versions ceased to be believed.
func fixtures(t testing.TB) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob("testdata/v2/*.hex")
	if err != nil || len(files) < 10 {
		t.Fatalf("fixtures: %v, %v", files, err)
	}
	out := map[string][]byte{}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		b, err := hex.DecodeString(strings.Join(strings.Fields(string(data)), ""))
		if err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		out[strings.TrimSuffix(filepath.Base(f), ".hex")] = b
	}
	return out
}

// today is what the fixtures say.
func today(t testing.TB) map[string]*pb.StreamMessage {
	export, err := record.Encode(record.ExportRecord(service, record.Export{Name: "shop", Namespace: "default", Ports: []record.Port{{Name: "http", Port: 80}}, Scope: record.ScopeGlobal, Capacity: 10}))
	if err != nil {
		panic(err)
	}
	export.Sequence = 4
	v := voice(record.Instance{7}, 9, service, record.Health{Ready: 10, Healthy: 9, ReadyCapacity: 10, HealthyCapacity: 9, Exceptions: []record.Exception{{Endpoint: 12, Cause: record.Witness}}})
	v.Entries = append(v.Entries, export)
	services, err := decode(servicesMessage(appendService(nil, service, true, false, [][]byte{encodeShare(Share{Network: "east", Instances: []Voice{v}})})))
	if err != nil {
		panic(err)
	}
	messages := map[string]*pb.StreamMessage{
		"attach":  {Message: &pb.StreamMessage_Attach{Attach: &pb.Attach{Node: "node-1", Network: "west", Instance: bytes.Repeat([]byte{1}, 16), Token: []byte("token")}}},
		"welcome": {Message: &pb.StreamMessage_Welcome{Welcome: &pb.Welcome{Gateway: "gw-1", Out: targetsToWire([]Target{{7, 80}}), Resumed: true, SpreadMs: 30}}},
		"report": report(&pb.Report{Whole: true, Draining: true, Ports: []*pb.PortHealth{
			factToWire(Fact{EndpointFact: federation.EndpointFact{Endpoint: 7, Port: 80, State: federation.Ejected, Reason: "refused", Health: 0.5}, Age: 1500 * time.Millisecond}),
		}}),
		"ask":       ask([]Target{{7, 80}, {8, 81}}),
		"beat":      beat(),
		"subscribe": {Message: &pb.StreamMessage_Subscribe{Subscribe: &pb.Subscribe{Add: []string{service}, Remove: []string{"cart.default.svc.cluster.local"}}}},
		"services":  services,
	}
	maps.Copy(messages, signedToday(t))
	return messages
}

func TestMessagesOfNovember2026AreUnderstood(t *testing.T) {
	want := today(t)
	got := fixtures(t)
	for name, m := range want {
		b, ok := got[name]
		if !ok {
			t.Errorf("there is no fixture of %s", name)
			continue
		}
		old, err := decode(b)
		if err != nil || !proto.Equal(old, m) {
			t.Errorf("%s: read %v, %v; want %v", name, old, err, m)
		}
	}
}

// A newer version adds fields to messages, to entries, and messages of its own.
func TestUnknownFieldsHarmNobody(t *testing.T) {
	extra := protowire.AppendString(protowire.AppendTag(nil, 1000, protowire.BytesType), "of a newer version")
	m := today(t)["services"]
	share := m.GetServices().GetServices()[0].GetShares()[0]
	for _, x := range []proto.Message{m, share, share.GetInstances()[0], share.GetInstances()[0].GetEntries()[0]} {
		x.ProtoReflect().SetUnknown(extra)
	}
	health := share.GetInstances()[0].GetEntries()[1]
	health.Body = append(health.Body, extra...) // it is never encoded anew on the way
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	back, err := decode(b)
	if err != nil {
		t.Fatal(err)
	}
	d, odd, err := decodeShare(service, back.GetServices().GetServices()[0].GetShares()[0], newVerified("west", nil), nil)
	if err != nil || odd != 0 || len(d) != 1 || d[0].Health[80].Healthy != 9 || d[0].Export == nil {
		t.Errorf("got %+v, %d odd, %v", d, odd, err)
	}
	newer, err := decode(protowire.AppendString(protowire.AppendTag(nil, 900, protowire.BytesType), "a message of a newer version"))
	if err != nil || newer.GetMessage() != nil {
		t.Errorf("a message of a newer version: %v, %v", newer, err)
	}
	// A record that cannot be used spoils no other.
	share.GetInstances()[0].GetEntries()[0].Body = []byte{0xff}
	if d, odd, err := decodeShare(service, share, newVerified("west", nil), nil); err != nil || odd != 1 || len(d) != 1 {
		t.Errorf("with an odd record: %+v, %d odd, %v", d, odd, err)
	}
	fact, err := factFromWire(&pb.PortHealth{Endpoint: 7, Port: 80, State: 77})
	if err != nil || fact.State == federation.Healthy {
		t.Errorf("a state of a newer version: %+v, %v; want what is not healthy", fact, err)
	}
}

// FuzzMessages reads whatever an end may send, as both ends do.
func FuzzMessages(f *testing.F) {
	for _, b := range fixtures(f) {
		f.Add(b)
	}
	key := keyOf(f, "east")
	east := newSpeaks(f, "east", "gw-e", "", key)
	east.say(exportOf(shopID))
	east.say(healthOf(9))
	proofs := appendProof(nil, encodeProof(east.voice()))
	f.Add(proofsMessage(proofs))
	f.Add(append(proofsMessage(proofs), servicesMessage(appendService(nil, service, true, false, [][]byte{encodeShare(shareFrom(east.voice()))}))...))
	f.Add(servicesMessage(appendService(nil, service, true, false, [][]byte{encodeShare(shareFrom(east.voice()))})))
	f.Add(holdingsMessage([]string{"east", "north"}))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decode(b)
		if err != nil {
			return
		}
		bk := newBook(func(id mesh.EndpointID) (string, bool) { return "a", id%2 == 0 })
		l, _, _ := bk.attach("a", Instance{}, time.Unix(0, 0))
		if facts, err := factsFromWire(m.GetReport().GetPorts()); err == nil {
			bk.report(l, facts, m.GetReport().GetWhole(), time.Unix(0, 0))
			if len(l.facts) > MaxFacts || len(bk.believed) > len(l.facts) {
				t.Fatalf("%d facts, %d believed", len(l.facts), len(bk.believed))
			}
		}
		if targets, err := targetsFromWire(m.GetWelcome().GetOut()); err == nil && len(targets) > MaxFacts {
			t.Fatalf("%d targets", len(targets))
		}
		s := newServices(10, newVerified("west", networkkey.Known{"east": {key.Public()}}))
		s.use(service, false)
		up := newUplink("gw", nil)
		s.attach(up)
		if n := len(b); n%2 == 0 { // half of them to one who has heard of east
			s.introduce(up, &pb.Proofs{Proofs: []*pb.Proof{{Certificate: east.key.Certificate()}}}, time.Now())
		}
		s.introduce(up, m.GetProofs(), time.Now())
		s.hold(up, m.GetHoldings())
		s.take(up, m.GetServices())
		for _, c := range s.changes() {
			k, _ := s.get(c.Network, c.Service)
			if k.Offer != nil && (c.Network != "east" || !slices.Equal(k.Offer.Identities, []spiffeid.ID{shopID})) {
				t.Fatalf("proven of %v: %+v", c, k.Offer)
			}
			for port := range k.Summaries {
				if h, ok := HealthOf(k.Deliveries, port); !ok || len(k.Deliveries) > maxInstances {
					t.Fatalf("port %d of %v: %+v", port, c, h)
				}
			}
		}
	})
}
