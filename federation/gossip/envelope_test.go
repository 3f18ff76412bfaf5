package gossip

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/identity"
)

func sealed(t testing.TB, svid *identity.SVID, records ...federation.Record) *federationpb.Envelope {
	t.Helper()
	e, err := seal(svid, records)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func svidOf(t testing.TB, name string) *identity.SVID {
	t.Helper()
	svid, err := newIdentity(t).Get(t.Context(), workload(name))
	if err != nil {
		t.Fatal(err)
	}
	return svid
}

func TestRelayAgesAddUpAndLeaveTheSignatureAlone(t *testing.T) {
	svid := svidOf(t, "gateway-east")
	r := remote(1, service, 8)
	r.Age = 5 * time.Second
	e := sealed(t, svid, r)
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 7)
	e.ProtoReflect().SetUnknown(unknown)
	e = aged(aged(e, 2*time.Second), 3*time.Second)
	var v verifier
	records, by, err := v.open(e, svid.Bundle, time.Now())
	if err != nil || by != svid.ID {
		t.Fatalf("signer %v, error %v", by, err)
	}
	if got := records[0]; got.Age < 10*time.Second || got.Age > 10*time.Second+10*time.Millisecond || got.Silence < 5*time.Second {
		t.Errorf("age %v, silence %v; want 10s and 5s", got.Age, got.Silence)
	}
	if string(e.ProtoReflect().GetUnknown()) != string(unknown) {
		t.Error("a relay lost a field that it did not know")
	}
	if a, b := proto.Size(aged(e, 0)), proto.Size(aged(e, time.Hour)); a != b {
		t.Errorf("size depends on age: %d, %d", a, b)
	}
	e.RelayMs = 1 << 63
	if records, _, err := v.open(e, svid.Bundle, time.Now()); err != nil || records[0].Silence != federation.MaxAge {
		t.Errorf("absurd relay age: got %v, %v; want it to saturate", records, err)
	}
}

func TestOpenRefuses(t *testing.T) {
	svid, stranger := svidOf(t, "gateway-east"), svidOf(t, "gateway-east") // two authorities
	two := remote(1, service, 8)
	two.Network = "north"
	var forged *signatureError
	var malformed *peer.MalformedError
	for _, c := range []struct {
		name string
		e    *federationpb.Envelope
		at   time.Time
		want any
	}{
		{"another authority", sealed(t, stranger, remote(1, service, 8)), time.Now(), &forged},
		{"expired certificate", sealed(t, svid, remote(1, service, 8)), time.Now().Add(2 * time.Hour), &forged},
		{"certificate that is none", &federationpb.Envelope{Chain: [][]byte{{1, 2, 3}}}, time.Now(), &forged},
		{"chain without end", &federationpb.Envelope{Chain: make([][]byte, maxChain+1)}, time.Now(), &forged},
		{"two batches", sealed(t, svid, remote(1, service, 8), two), time.Now(), &malformed},
		{"no batch", sealed(t, svid), time.Now(), &malformed},
	} {
		var v verifier
		_, _, err := v.open(c.e, svid.Bundle, c.at)
		if err == nil || !errors.As(err, c.want) {
			t.Errorf("%s: got %v, want a %T", c.name, err, c.want)
		}
	}
	// A chain that was valid is not believed for longer than it is.
	var v verifier
	e := sealed(t, svid, remote(1, service, 8))
	if _, _, err := v.open(e, svid.Bundle, time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := v.open(e, svid.Bundle, time.Now().Add(2*time.Hour)); err == nil {
		t.Error("an expired chain was believed from memory")
	}
	if _, _, err := v.open(e, stranger.Bundle, time.Now()); err == nil {
		t.Error("a chain was believed under another bundle")
	}
}

func TestArchiveKeepsOnlyWhatIsNewest(t *testing.T) {
	svid, a, now := svidOf(t, "gateway-east"), newArchive(), time.Now()
	table := federation.NewTable(0)
	file := func(records ...federation.Record) {
		e := sealed(t, svid, records...)
		outcomes := make([]federation.Outcome, len(records))
		for i, r := range records {
			outcomes[i] = table.Merge(r, now)
		}
		a.keep(e, digestOf(e), now, records, outcomes)
	}
	held := func() int { return len(a.current(now, time.Minute)) }
	for i := range uint64(10) {
		file(remote(i+1, "a", uint32(i)))
		file(remote(i+1, "b", uint32(i)))
	}
	if got := held(); got != 2 {
		t.Errorf("edges of two subjects: got %d envelopes, want 2", got)
	}
	file(remote(20, "a", 1), remote(20, "b", 1))
	if got := held(); got != 1 {
		t.Errorf("after a full state: got %d envelopes, want 1", got)
	}
	file(remote(19, "a", 9))
	if got := held(); got != 1 {
		t.Errorf("after an older record: got %d envelopes, want 1", got)
	}
	again := remote(1, "c", 1)
	again.Origin.Incarnation = 2
	file(again)
	if got := held(); got != 1 {
		t.Errorf("after a new incarnation: got %d envelopes, want 1", got)
	}
	if got := len(a.current(now.Add(2*time.Minute), time.Minute)); got != 0 {
		t.Errorf("beyond the TTL: got %d envelopes, want none", got)
	}
	for i := range uint64(maxArchived + 50) {
		r := remote(100+i, fmt.Sprint("s", i), 1)
		r.Origin.Incarnation = 2
		file(r)
	}
	if got := held(); got > maxArchived {
		t.Errorf("got %d envelopes, want at most %d", got, maxArchived)
	}
}

func TestJournal(t *testing.T) {
	now := time.Unix(1000, 0)
	j := newJournal("east", federation.Origin{Name: "east/gw-1", Incarnation: 5}, 3)
	sick, well := remote(0, "sick", 5), remote(0, "well", 10)
	if stamped, refused := j.put([]federation.Record{sick, well, {}}, now); len(stamped) != 2 || refused != 1 || stamped[0].Sequence != 1 {
		t.Fatalf("put: got %v, %d refused", stamped, refused)
	}
	if got := j.take(now.Add(time.Second)); len(got) != 2 || got[0].Age != time.Second || len(j.take(now)) != 0 {
		t.Errorf("take: got %v", got)
	}
	if got := j.refresh(now.Add(10 * time.Second)); len(got) != 1 || got[0].Summary.Service != "sick" || got[0].Age != 10*time.Second || got[0].Silence != 0 || got[0].Sequence != 2 {
		t.Errorf("refresh: got %v, want the sick one, 10s old, sequence 2", got)
	}
	if got := j.full(now.Add(20 * time.Second)); len(got) != 2 || got[0].Age != 20*time.Second || j.isChanged() {
		t.Errorf("full: got %v", got)
	}
	if _, refused := j.put([]federation.Record{remote(0, "c", 1), remote(0, "d", 1)}, now); refused != 1 {
		t.Errorf("beyond the limit: got %d refused, want 1", refused)
	}
	j.forget([]federation.Key{federation.SummarySubject("", "c", 80)})
	if got := j.full(now); len(got) != 2 {
		t.Errorf("after forget: got %v", got)
	}
	echo := remote(3, "sick", 5)
	echo.Origin.Incarnation = 5
	if got := j.outlive(echo, now); got != nil {
		t.Errorf("an echo of our own word: got %v", got)
	}
	echo.Origin.Incarnation = 8
	if got := j.outlive(echo, now); len(got) != 2 || got[0].Origin.Incarnation != 9 {
		t.Errorf("someone believes our later life: got %v, want incarnation 9", got)
	}
}

// With 2 000 services on each of 10 networks of two gateways, a full state
// must fit memberlist's limits and be quick to build.
func TestFullStateOfManyGatewaysIsSmall(t *testing.T) {
	var envelopes []*federationpb.Envelope
	var first []federation.Record
	svid := svidOf(t, "gateway")
	for origin := range 20 {
		var records []federation.Record
		for s := range 2000 {
			r := remote(77, fmt.Sprintf("service-%d.namespace-%d.svc.cluster.local", s, s%40), uint32(s%10))
			r.Network = fmt.Sprintf("network-%d", origin/2)
			r.Origin = federation.Origin{Name: fmt.Sprintf("%s/gw-%d", r.Network, origin%2), Incarnation: uint64(time.Now().UnixNano())}
			r.Age = time.Duration(s) * time.Second
			records = append(records, r)
		}
		for _, part := range federation.Split(records, chunkBytes) {
			envelopes = append(envelopes, sealed(t, svid, part...))
		}
		first = records
	}
	start := time.Now()
	b, err := packState(envelopes)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("40 000 records in %d envelopes: %d bytes, packed in %v", len(envelopes), len(b), time.Since(start))
	if len(b) > 5<<20/2 {
		t.Errorf("got %d bytes, want at most half of 5 MB", len(b))
	}
	back, err := unpackState(b)
	if err != nil || len(back) != len(envelopes) {
		t.Fatalf("got %d envelopes, %v", len(back), err)
	}
	if n := len(federation.Split(first, chunkBytes)); n > 3 {
		t.Errorf("one origin's state takes %d envelopes, want a few", n)
	}
}

func TestUnpackStateRefusesBombs(t *testing.T) {
	bomb, err := packState([]*federationpb.Envelope{{Payload: make([]byte, maxState-100)}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unpackState(bomb); err != nil {
		t.Errorf("at the limit: %v", err)
	}
	if _, err := packState([]*federationpb.Envelope{{Payload: make([]byte, maxState+1)}}); !errors.Is(err, federation.ErrTooLarge) {
		t.Errorf("got %v, want ErrTooLarge", err)
	}
	for _, b := range [][]byte{nil, {9}, {stateVersion, 0xff, 0xff}} {
		if _, err := unpackState(b); err == nil {
			t.Errorf("%x: got no error", b)
		}
	}
}

func FuzzEnvelopes(f *testing.F) {
	svid := svidOf(f, "gateway-east")
	good, err := marshalEnvelopes(sealed(f, svid, remote(1, service, 8)))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Add([]byte{0x0a, 0x00})
	f.Fuzz(func(t *testing.T, b []byte) {
		envelopes, err := unmarshalEnvelopes(b)
		if err != nil {
			return
		}
		var v verifier
		for _, e := range envelopes {
			if _, by, err := v.open(e, svid.Bundle, time.Now()); err == nil && by != svid.ID {
				t.Fatalf("believed %v", by)
			}
		}
	})
}

func FuzzState(f *testing.F) {
	good, err := packState([]*federationpb.Envelope{{Payload: []byte("payload"), RelayMs: 7}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte{stateVersion})
	f.Fuzz(func(t *testing.T, b []byte) { unpackState(b) })
}

func BenchmarkSealAndOpen(b *testing.B) {
	svid := svidOf(b, "gateway-east")
	b.Run("seal", func(b *testing.B) {
		for b.Loop() {
			sealed(b, svid, remote(1, service, 8))
		}
	})
	e := sealed(b, svid, remote(1, service, 8))
	b.Run("open", func(b *testing.B) {
		var v verifier
		for b.Loop() {
			if _, _, err := v.open(e, svid.Bundle, time.Now()); err != nil {
				b.Fatal(err)
			}
		}
	})
}
