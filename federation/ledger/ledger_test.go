package ledger

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/protobuf/proto"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/mesh"
)

const hello = "hello.shop.svc.cluster.local"

var epoch = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func drawnFrom(seed string) io.Reader { return rand.NewChaCha8(sha256.Sum256([]byte(seed))) }

func networkKey(name string) networkkey.Private {
	k, err := networkkey.Generate(drawnFrom("network " + name))
	if err != nil {
		panic(err)
	}
	return k
}

// known is the networks of these tests.
func known() networkkey.Known {
	return networkkey.Known{"west": {networkKey("west").Public()}, "east": {networkKey("east").Public()}}
}

// speaker is an instance that says what a test wants.
type speaker struct {
	t            testing.TB
	key          *networkkey.Instance
	set          *record.Set
	count        uint64
	watermark    uint64
	synchronised bool
	answers      []uint64
}

func newSpeaker(t testing.TB, network, name string) *speaker {
	return newProcess(t, network, name, 0)
}

// newProcess is one process after another of a gateway.
func newProcess(t testing.TB, network, gateway string, n int) *speaker {
	seed := network + gateway
	if n > 0 {
		seed += fmt.Sprint("/", n)
	}
	key, err := networkkey.NewInstance(drawnFrom(seed))
	if err == nil {
		err = networkKey(network).Certify(key, network, gateway, epoch, networkkey.MaxLifetime)
	}
	if err != nil {
		t.Fatal(err)
	}
	return &speaker{t: t, key: key, set: record.NewSet(key.ID(), 0, 0), synchronised: true, answers: []uint64{number}}
}

// number is what the ledgers of these tests have drawn.
const number = 4711

// say returns a statement with these changes.
func (s *speaker) say(records ...record.Record) *pb.SignedStatement {
	since := s.watermark
	var entries []record.Entry
	for _, r := range records {
		e, err := record.Encode(r)
		if err != nil {
			s.t.Fatal(err)
		}
		entries = append(entries, s.put(e))
	}
	return s.sign(since, entries, nil)
}

func (s *speaker) put(e record.Entry) record.Entry {
	s.watermark++
	e.Sequence = s.watermark
	if err := s.set.Put(e); err != nil {
		s.t.Fatal(err)
	}
	return e
}

func (s *speaker) withdraw(k record.Key) *pb.SignedStatement {
	since := s.watermark
	s.set.Remove(record.EncodeKey(k))
	s.watermark++
	return s.sign(since, nil, []record.Removal{{Key: record.EncodeKey(k), Sequence: s.watermark}})
}

func (s *speaker) sign(since uint64, changes []record.Entry, removals []record.Removal) *pb.SignedStatement {
	s.count++
	b, err := (&record.Statement{
		Instance: s.key.ID(), Count: s.count, Watermark: s.watermark, Root: s.set.Root(), Since: since,
		Changes: changes, Removals: removals, Answers: s.answers, Synchronised: s.synchronised,
	}).Encode()
	if err != nil {
		s.t.Fatal(err)
	}
	return &pb.SignedStatement{Statement: b, Signature: s.key.Sign(b), Certificate: s.key.Certificate()}
}

func newLedger(now time.Time) *Ledger {
	l := New(known(), DefaultLimits)
	l.Draw(number, now)
	return l
}

func offer(t *testing.T, l *Ledger, m *pb.SignedStatement, now time.Time) Outcome {
	t.Helper()
	o, err := l.Offer(m, now)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func export(ports ...uint16) record.Record {
	e := record.Export{Name: "hello", Namespace: "shop", Scope: record.ScopeGlobal, Capacity: 10, Identities: []spiffeid.ID{spiffeid.RequireFromString("spiffe://cluster.local/ns/shop/sa/hello")}}
	for _, p := range ports {
		e.Ports = append(e.Ports, record.Port{Port: p})
	}
	return record.ExportRecord(hello, e)
}

func health(ready, healthy uint32) record.Record {
	return record.HealthRecord(hello, 80, record.Health{Ready: ready, Healthy: healthy, ReadyCapacity: ready, HealthyCapacity: healthy})
}

func phase(l *Ledger, s *speaker) Phase {
	for _, st := range l.Status() {
		if st.Instance == s.key.ID() {
			return st.Phase
		}
	}
	return 255
}

func TestAnExportHoldsWhileOneInstanceSaysSo(t *testing.T) {
	l := newLedger(epoch)
	a, b := newSpeaker(t, "west", "gw-1"), newSpeaker(t, "west", "gw-2")
	offer(t, l, a.say(export(80, 81)), epoch)
	offer(t, l, b.say(), epoch)
	if s, ok := l.Export("west", hello); !ok || len(s.Export.Ports) != 2 || s.Problem != "" {
		t.Errorf("one says so: got %+v, %v", s, ok)
	}
	o := offer(t, l, b.say(export(81, 82)), epoch)
	if want := (Change{Network: "west", Key: export(1).Key}); !slices.Contains(o.Changes, want) {
		t.Errorf("got changes %v, want %v", o.Changes, want)
	}
	s, _ := l.Export("west", hello)
	if !slices.Equal(s.Export.Ports, export(80, 81, 82).Export.Ports) || !strings.Contains(s.Problem, "differ in the ports") || len(s.Gateways) != 2 {
		t.Errorf("two differ: got %+v", s)
	}
	offer(t, l, a.withdraw(export(1).Key), epoch)
	if s, ok := l.Export("west", hello); !ok || len(s.Export.Ports) != 2 || s.Problem != "" {
		t.Errorf("one withdraws: got %+v, %v", s, ok)
	}
	offer(t, l, b.withdraw(export(1).Key), epoch)
	if s, ok := l.Export("west", hello); ok {
		t.Errorf("both have withdrawn: got %+v", s)
	}
	if _, ok := l.Export("east", hello); ok {
		t.Error("east never said so")
	}
}

// One gateway cannot reach the pods, its sibling can: the network keeps its
// full weight, and a client sees through whom.
// An instance of a version that says nothing of it takes no property away.
func TestWhatOneInstanceSaysOfAHeadlessServiceHolds(t *testing.T) {
	old := record.Export{Name: "web", Namespace: "demo", Ports: []record.Port{{Name: "http", Port: 80}}}
	young := old
	young.Headless, young.Affinity = true, mesh.ClientIP
	for _, exports := range [][]*record.Export{{&old, &young}, {&young, &old}} {
		if got, differ := MergeExports("west", "web", exports); !got.Headless || got.Affinity != mesh.ClientIP || differ != "" {
			t.Errorf("merged: headless %v, affinity %q, %q", got.Headless, got.Affinity, differ)
		}
	}
}

func TestHealthIsPerGatewayAndTheBestOfAGroupCounts(t *testing.T) {
	l := newLedger(epoch)
	a, b, c := newSpeaker(t, "west", "gw-1"), newSpeaker(t, "west", "gw-2"), newSpeaker(t, "west", "gw-3")
	offer(t, l, b.say(health(10, 10)), epoch)
	offer(t, l, a.say(health(10, 0)), epoch) // the youngest
	h, ok := l.Health("west", hello, 80)
	if !ok || h.Ready != 10 || h.HealthyCapacity != 10 || len(h.Deliveries) != 2 {
		t.Errorf("got %+v, %v; want the full weight of gw-2", h, ok)
	}
	offer(t, l, c.say(record.NetworkRecord(record.Network{Gateway: "gw-3", Group: "blue"}), health(5, 4)), epoch)
	if h, _ = l.Health("west", hello, 80); h.Ready != 15 || h.HealthyCapacity != 14 {
		t.Errorf("got %+v; want the sum of two groups", h)
	}
	offer(t, l, b.say(record.NetworkRecord(record.Network{Gateway: "gw-2", Draining: true})), epoch)
	if h, _ = l.Health("west", hello, 80); h.HealthyCapacity != 4 {
		t.Errorf("got %+v; what drains gives way", h)
	}
	if _, ok := l.Health("west", hello, 81); ok {
		t.Error("a port that nobody speaks of is known")
	}
}

func TestSilenceBesideALiveSiblingIsIgnoredAfterSixSeconds(t *testing.T) {
	l := newLedger(epoch)
	a, b := newSpeaker(t, "west", "gw-1"), newSpeaker(t, "west", "gw-2")
	offer(t, l, a.say(export(80), health(10, 10)), epoch)
	for s := 0; s <= 6; s += 2 {
		offer(t, l, b.say(health(10, 3)), epoch.Add(time.Duration(s)*time.Second))
	}
	if got := phase(l, a); got != Live {
		t.Errorf("after 6 s: %v", got)
	}
	next := l.Next()
	if want := epoch.Add(Silence + 1); !next.Equal(want) {
		t.Errorf("next event at %v, want %v", next.Sub(epoch), want.Sub(epoch))
	}
	if c := l.Advance(next); len(c) != 1 || !c[0].All || c[0].Network != "west" {
		t.Errorf("expiry is no event: got %v", c)
	}
	if h, _ := l.Health("west", hello, 80); h.HealthyCapacity != 3 {
		t.Errorf("got %+v, want what the live one says", h)
	}
	if _, ok := l.Export("west", hello); ok {
		t.Error("an export that only the silent one named, beside a synchronised sibling, still holds")
	}
	offer(t, l, a.say(), next.Add(time.Second))
	if got := phase(l, a); got != Live {
		t.Errorf("it speaks again: %v", got)
	}
}

func TestWhenAllAreSilentHealthCountsForAMinuteAndExportsStay(t *testing.T) {
	l := newLedger(epoch)
	a, b := newSpeaker(t, "west", "gw-1"), newSpeaker(t, "west", "gw-2")
	offer(t, l, a.say(export(80), health(10, 10)), epoch)
	offer(t, l, b.say(export(80), health(10, 9)), epoch.Add(1900*time.Millisecond)) // their last beats were apart
	for _, c := range []struct {
		after time.Duration
		want  Phase
		known bool
	}{{6 * time.Second, Live, true}, {7 * time.Second, Silent, true}, {59 * time.Second, Silent, true}, {62 * time.Second, Lapsed, false}, {24 * time.Hour, Lapsed, false}} {
		l.Advance(epoch.Add(c.after))
		_, known := l.Health("west", hello, 80)
		_, exported := l.Export("west", hello)
		if got := phase(l, a); got != c.want || known != c.known || !exported {
			t.Errorf("after %v: %v, health known %v, exported %v; want %v, %v, true", c.after, got, known, exported, c.want, c.known)
		}
	}
}

func TestWhoIsNotSynchronisedDisplacesNobody(t *testing.T) {
	l := newLedger(epoch)
	a, b := newSpeaker(t, "west", "gw-1"), newSpeaker(t, "west", "gw-2")
	offer(t, l, a.say(export(80)), epoch)
	b.synchronised = false
	now := epoch
	for range 20 {
		now = now.Add(2 * time.Second)
		offer(t, l, b.say(), now)
	}
	if _, ok := l.Export("west", hello); !ok || l.Synchronised("west") {
		t.Errorf("exported %v, synchronised %v; want true, false", ok, l.Synchronised("west"))
	}
	b.synchronised = true
	offer(t, l, b.say(), now)
	if _, ok := l.Export("west", hello); ok || !l.Synchronised("west") {
		t.Errorf("exported %v, synchronised %v; want false, true", ok, l.Synchronised("west"))
	}
}

// What was recorded is worth nothing to a reader that has started anew, and to
// one that has not, what it withheld is worth less than a minute.
func TestReplayedStatementsAreWorthLessThanAMinute(t *testing.T) {
	a := newSpeaker(t, "west", "gw-1")
	var recorded []*pb.SignedStatement
	for range 100 {
		recorded = append(recorded, a.say(health(10, 10)))
	}
	fresh := New(known(), DefaultLimits)
	fresh.Draw(number+1, epoch)
	for n, m := range recorded {
		if o := offer(t, fresh, m, epoch.Add(time.Duration(n)*2*time.Second)); !o.News {
			t.Fatalf("statement %d is not even looked at", n)
		}
		if _, ok := fresh.Health("west", hello, 80); ok {
			t.Fatalf("statement %d, which answers no number of this reader, is believed", n)
		}
	}
	l := newLedger(epoch) // drew the number that all of them answer
	lived := time.Duration(0)
	for n, m := range recorded {
		now := epoch.Add(time.Duration(n) * 2 * time.Second)
		l.Draw(uint64(n), now)
		offer(t, l, m, now)
		if phase(l, a) == Live {
			lived = now.Sub(epoch)
		}
	}
	if lived > Fresh+Silence {
		t.Errorf("believed to live %v after the number was drawn, want at most %v", lived, Fresh+Silence)
	}
	before := phase(l, a)
	if o := offer(t, l, recorded[3], epoch.Add(time.Hour)); o.News || phase(l, a) != before {
		t.Errorf("an old statement is news: %+v", o)
	}
}

// A relay that lets heartbeats through and holds changes back achieves silence.
func TestWithheldChangesAreSilence(t *testing.T) {
	l := newLedger(epoch)
	a := newSpeaker(t, "west", "gw-1")
	offer(t, l, a.say(health(10, 10)), epoch)
	a.say(health(10, 0)) // withheld
	for s := 2; s <= 8; s += 2 {
		if o := offer(t, l, a.say(), epoch.Add(time.Duration(s)*time.Second)); o.Complete {
			t.Fatal("what is missing is not noticed")
		}
	}
	if got := phase(l, a); got != Silent {
		t.Errorf("got %v, want silent", got)
	}
	// A chunk of anybody who has it mends that.
	honest := newLedger(epoch)
	if _, err := honest.OfferChunk(chunkOf(a), epoch.Add(8*time.Second)); err != nil {
		t.Fatal(err)
	}
	have := record.Hashes{}
	if h := l.Hashes(a.key.ID()); h != nil {
		p, _ := record.ParseHashes(h)
		have = *p
	}
	if o, err := l.OfferChunk(honest.Chunk(a.key.ID(), &have), epoch.Add(8*time.Second)); err != nil || !o.Complete {
		t.Fatalf("got %+v, %v", o, err)
	}
	if got := phase(l, a); got != Live {
		t.Errorf("got %v, want live", got)
	}
}

// chunkOf is all that s says.
func chunkOf(s *speaker) *pb.Chunk {
	h := s.set.Hashes()
	c := &pb.Chunk{Statement: s.say(), Hashes: h.Bytes()}
	for b := range h {
		if e := s.set.Bucket(b); len(e) > 0 {
			c.Buckets = append(c.Buckets, &pb.Bucket{Index: uint32(b), Entries: record.ToWire(e)})
		}
	}
	return c
}

func TestWhatOneNetworkSendsIsBounded(t *testing.T) {
	limits := Limits{Records: 10, Bytes: 2000, Instances: 3, NetworkBytes: 2500}
	l := New(known(), limits)
	l.Draw(number, epoch)
	many := func(s *speaker, n, size int) *pb.SignedStatement {
		since := s.watermark
		var entries []record.Entry
		for k := range n {
			entries = append(entries, s.put(record.Entry{Key: fmt.Sprintf("\x08\x07%04d", k), Body: make([]byte, size)}))
		}
		return s.sign(since, entries, nil)
	}
	a, b, c := newSpeaker(t, "west", "a"), newSpeaker(t, "west", "b"), newSpeaker(t, "west", "c")
	for s, m := range map[*speaker]*pb.SignedStatement{a: many(a, 11, 1), b: many(b, 3, 900)} {
		if o := offer(t, l, m, epoch); o.Complete || phase(l, s) != Pending {
			t.Errorf("beyond the limits: %+v, %v", o, phase(l, s))
		}
	}
	offer(t, l, c.say(), epoch)
	if o, err := l.OfferChunk(chunkOf(a), epoch); err == nil || o.Complete {
		t.Errorf("a chunk beyond the limits: %+v, %v", o, err)
	}
	sum := 0
	for _, st := range l.Status() {
		sum += st.Bytes
		if st.Records > limits.Records || st.Bytes > limits.Bytes {
			t.Errorf("held: %+v", st)
		}
		if st.Gateway == "a" && st.Refused == nil {
			t.Error("the limit is not shown")
		}
	}
	if sum > limits.NetworkBytes {
		t.Errorf("%d bytes of one network", sum)
	}
	// More instances: whoever counts least goes, never one that is live.
	for n := range 20 {
		_, _ = l.Offer(newSpeaker(t, "west", fmt.Sprint("more", n)).say(), epoch)
	}
	if got := len(l.Status()); got > limits.Instances || phase(l, c) != Live {
		t.Errorf("%d instances, the live one is %v", got, phase(l, c))
	}
	if _, err := l.Offer(newSpeaker(t, "west", "last").say(), epoch); !errors.Is(err, ErrFull) {
		t.Errorf("got %v, want ErrFull", err)
	}
	offer(t, l, newSpeaker(t, "east", "gw-1").say(), epoch) // another network is not touched
}

func TestAnOddRecordSpoilsNoOther(t *testing.T) {
	l := newLedger(epoch)
	a := newSpeaker(t, "west", "gw-1")
	since := a.watermark
	good, _ := record.Encode(health(10, 10))
	odd := record.Entry{Key: record.EncodeKey(record.Key{Kind: record.KindHealth, Service: "odd", Port: 80})}
	odd.Body, _ = proto.Marshal(&pb.HealthBody{Ready: 1, ReadyCapacity: 4_000_000_000})
	offer(t, l, a.sign(since, []record.Entry{a.put(good), a.put(odd)}, nil), epoch)
	if _, ok := l.Health("west", hello, 80); !ok {
		t.Error("the good one is not believed")
	}
	if h, ok := l.Health("west", "odd", 80); ok {
		t.Errorf("the odd one is believed: %+v", h)
	}
	st := l.Status()[0]
	if len(st.Problems) != 1 || !strings.Contains(fmt.Sprint(st.Problems), "ready capacity 4000000000") {
		t.Errorf("got problems %v", st.Problems)
	}
	offer(t, l, a.withdraw(record.Key{Kind: record.KindHealth, Service: "odd", Port: 80}), epoch)
	if st := l.Status()[0]; len(st.Problems) != 0 {
		t.Errorf("a problem outlives its record: %v", st.Problems)
	}
}

func TestForgedStatementsAreRefused(t *testing.T) {
	l := newLedger(epoch)
	a := newSpeaker(t, "west", "gw-1")
	offer(t, l, a.say(health(10, 10)), epoch)
	evil := newSpeaker(t, "east", "gw-1")
	m := a.say(health(10, 0))
	m.Signature = evil.key.Sign(m.GetStatement())
	if _, err := l.Offer(m, epoch); !errors.Is(err, ErrSignature) {
		t.Errorf("signed by another: got %v", err)
	}
	m = a.say(health(10, 0))
	m.Certificate = evil.key.Certificate()
	m.Signature = evil.key.Sign(m.GetStatement())
	if _, err := l.Offer(m, epoch); err == nil {
		t.Error("another's certificate under this instance's name was taken")
	}
	stolen := newSpeaker(t, "west", "gw-8") // a name that nobody holds anything of yet
	m = stolen.say(health(10, 0))
	m.Certificate, m.Signature = evil.key.Certificate(), evil.key.Sign(m.GetStatement())
	if o, err := l.Offer(m, epoch); err == nil {
		t.Errorf("east speaks under the name of an instance of west: %+v", o)
	}
	forged, _ := networkkey.NewInstance(drawnFrom("forged"))
	_ = networkKey("east").Certify(forged, "west", "gw-1", epoch, time.Hour)
	s := &speaker{t: t, key: forged, set: record.NewSet(forged.ID(), 0, 0), synchronised: true}
	var refused *networkkey.RefusedError
	if _, err := l.Offer(s.say(health(10, 0)), epoch); !errors.As(err, &refused) || refused.Reason != networkkey.WrongKey {
		t.Errorf("east certifies for west: got %v", err)
	}
	if _, err := l.Offer(newSpeaker(t, "west", "gw-9").say(), epoch.Add(48*time.Hour)); !errors.As(err, &refused) || refused.Reason != networkkey.Expired {
		t.Errorf("an ended certificate: got %v", err)
	}
	if h, _ := l.Health("west", hello, 80); h.HealthyCapacity != 10 {
		t.Errorf("believed: %+v", h)
	}
}

// Chunks that fit together and that nobody has signed.
func TestForgedChunksAreRefused(t *testing.T) {
	l := newLedger(epoch)
	a := newSpeaker(t, "west", "gw-1")
	offer(t, l, a.say(export(80), health(10, 10)), epoch)
	twin := newSpeaker(t, "west", "gw-1") // says something else under the same name
	twin.say(export(80), health(10, 0))
	twin.count = 100
	unsigned := chunkOf(twin)
	unsigned.Statement.Signature = make([]byte, 64)
	if _, err := l.OfferChunk(unsigned, epoch); !errors.Is(err, ErrSignature) {
		t.Errorf("nobody has signed it: got %v", err)
	}
	other := chunkOf(twin)
	other.Statement = a.say() // truly signed, over other records
	var invalid *record.InvalidError
	if _, err := l.OfferChunk(other, epoch); !errors.As(err, &invalid) || invalid.Field != "hashes" {
		t.Errorf("hashes of something else: got %v", err)
	}
	if h, _ := l.Health("west", hello, 80); h.HealthyCapacity != 10 {
		t.Errorf("believed: %+v", h)
	}
}

// A statement that was overtaken brings nothing back that was removed since,
// and no record back to what it was.
func TestWhatWasOvertakenBringsNothingBack(t *testing.T) {
	l := newLedger(epoch)
	a := newSpeaker(t, "west", "gw-1")
	offer(t, l, a.say(record.NetworkRecord(record.Network{Gateway: "gw-1"})), epoch)
	added, worse := a.say(export(80)), a.say(health(10, 5))
	a.say(record.HealthRecord(hello, 81, record.Health{Ready: 1})) // lost: something is missing all the time
	removed, better := a.withdraw(export(80).Key), a.say(health(10, 9))
	offer(t, l, better, epoch)
	if o := offer(t, l, worse, epoch); o.News || o.Complete {
		t.Errorf("got %+v", o)
	}
	if h, _ := l.Health("west", hello, 80); h.Healthy != 9 {
		t.Errorf("an overtaken statement took health back to %d", h.Healthy)
	}
	offer(t, l, removed, epoch)
	offer(t, l, added, epoch)
	if _, ok := l.Export("west", hello); ok {
		t.Error("an overtaken statement brought a withdrawn export back")
	}
}

func TestUnlinkedNetworksAreForgottenAtOnce(t *testing.T) {
	l := newLedger(epoch)
	offer(t, l, newSpeaker(t, "west", "gw-1").say(export(80)), epoch)
	offer(t, l, newSpeaker(t, "east", "gw-1").say(export(80)), epoch)
	k := known()
	delete(k, "west")
	if c := l.SetKnown(k, epoch); len(c) != 1 || c[0] != (Change{Network: "west", All: true}) {
		t.Errorf("got %v", c)
	}
	if got := l.Networks(); !slices.Equal(got, []string{"east"}) {
		t.Errorf("got %v", got)
	}
}

func FuzzOffer(f *testing.F) {
	s := newSpeaker(f, "west", "gw-1")
	m, _ := proto.Marshal(s.say(export(80), health(10, 9)))
	c, _ := proto.Marshal(chunkOf(s))
	f.Add(m, false)
	f.Add(c, true)
	f.Fuzz(func(t *testing.T, b []byte, chunk bool) {
		l := newLedger(epoch)
		if chunk {
			var m pb.Chunk
			if proto.Unmarshal(b, &m) == nil {
				_, _ = l.OfferChunk(&m, epoch)
			}
		} else {
			var m pb.SignedStatement
			if proto.Unmarshal(b, &m) == nil {
				_, _ = l.Offer(&m, epoch)
			}
		}
		for _, st := range l.Status() {
			if st.Instance != s.key.ID() {
				t.Fatalf("holds %+v", st)
			}
		}
		if h, ok := l.Health("west", hello, 80); ok && h.Healthy != 9 {
			t.Fatalf("believes %+v", h)
		}
	})
}

// A gateway that crashes every three seconds, before it knows everything, leaves
// instances behind that speak for the network for a minute. The next one is believed
// all the same, and a sibling that is silent for a moment is not forgotten for them.
func TestACrashLoopDoesNotKeepTheNextProcessOut(t *testing.T) {
	l := newLedger(epoch)
	now := epoch
	sibling := newSpeaker(t, "west", "gw-2")
	sibling.synchronised = false // it does not speak for the others
	offer(t, l, sibling.say(health(10, 7)), now)
	for n := range 100 {
		now = now.Add(3 * time.Second)
		l.Draw(number, now)
		if n%18 == 0 { // every 54 s: silent in between
			offer(t, l, sibling.say(), now)
		}
		p := newProcess(t, "west", "gw-1", n+1)
		p.synchronised = false
		o, err := l.Offer(p.say(health(10, 10)), now)
		if err != nil {
			t.Fatalf("process %d, %v after the first: %v", n, now.Sub(epoch), err)
		}
		if got := phase(l, p); got != Live || !o.Complete {
			t.Fatalf("process %d is %v", n, got)
		}
		if got := phase(l, sibling); got != Live && got != Silent {
			t.Fatalf("after %d processes of its sibling gw-2 is %v", n, got)
		}
		if held := len(l.networks["west"]); held > DefaultLimits.Instances {
			t.Fatalf("%d instances are held", held)
		}
		l.Advance(now)
	}
}

// What is forgotten to make room was believed until then: whoever follows it is told.
func TestForgettingToMakeRoomIsAChange(t *testing.T) {
	for name, after := range map[Phase]time.Duration{Silent: 10 * time.Second, Lapsed: 2 * time.Minute} {
		limits := DefaultLimits
		limits.Instances = 1
		l := New(known(), limits)
		l.Draw(number, epoch)
		old, next := newProcess(t, "west", "gw-1", 1), newProcess(t, "west", "gw-1", 2)
		offer(t, l, old.say(export(80), health(10, 7)), epoch)
		l.Advance(epoch.Add(after))
		if got := phase(l, old); got != name {
			t.Fatalf("after %v it is %v, want %v", after, got, name)
		}
		next.answers = nil // nothing of it counts yet
		if o := offer(t, l, next.say(), epoch.Add(after)); !slices.Contains(o.Changes, Change{Network: "west", All: true}) {
			t.Errorf("a %v instance was forgotten, and what changed is %v", name, o.Changes)
		}
	}
}

// A later certificate of an instance is news of how it is introduced: whoever passes it on
// is told, once, and has it with what the instance says.
func TestALaterCertificateIsPassedOn(t *testing.T) {
	l := newLedger(epoch)
	s := newSpeaker(t, "west", "gw-1")
	said := record.NetworkRecord(record.Network{Gateway: "gw-1"})
	offer(t, l, s.say(said, health(10, 10)), epoch)
	word := func() Word {
		words := l.Words(hello)
		if len(words) != 1 {
			t.Fatalf("%d words", len(words))
		}
		return words[0]
	}
	if w := word(); string(w.Certificate) != string(s.key.Certificate()) || w.Introduction.Key != record.EncodeKey(said.Key) {
		t.Errorf("introduced by %x, %x", w.Certificate, w.Introduction.Key)
	}
	later := epoch.Add(time.Hour)
	if err := networkKey("west").Certify(s.key, "west", "gw-1", later, networkkey.MaxLifetime); err != nil {
		t.Fatal(err)
	}
	introduced := func(o Outcome) bool {
		return slices.Contains(o.Changes, Change{Network: "west", Key: said.Key}) || slices.Contains(o.Changes, Change{Network: "west", All: true})
	}
	l.Draw(number, later)
	offer(t, l, s.say(), later.Add(-30*time.Second)) // live again
	if o := offer(t, l, s.say(), later); introduced(o) {
		t.Error("the same certificate is news")
	}
	if err := networkKey("west").Certify(s.key, "west", "gw-1", later.Add(time.Minute), networkkey.MaxLifetime); err != nil {
		t.Fatal(err)
	}
	if o := offer(t, l, s.say(), later); !introduced(o) || string(word().Certificate) != string(s.key.Certificate()) {
		t.Errorf("a later certificate changes %+v", o.Changes)
	}
	if o := offer(t, l, s.say(), later); introduced(o) {
		t.Error("it is news twice")
	}
}
