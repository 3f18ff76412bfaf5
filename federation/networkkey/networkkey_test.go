package networkkey

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/record"
)

var epoch = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// drawn is a source of keys that tests can repeat.
func drawn(seed string) io.Reader {
	return rand.NewChaCha8(sha256.Sum256([]byte(seed)))
}

func generate(t *testing.T, seed string) Private {
	t.Helper()
	k, err := Generate(drawn(seed))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func instance(t *testing.T, seed string, by Private, network string, now time.Time) *Instance {
	t.Helper()
	i, err := NewInstance(drawn(seed))
	if err == nil {
		err = by.Certify(i, network, "gw-1", now, MaxLifetime)
	}
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func reasonOf(err error) Reason {
	var refused *RefusedError
	if errors.As(err, &refused) {
		return refused.Reason
	}
	return ""
}

func TestAnInstanceSpeaksForItsNetworkOnly(t *testing.T) {
	west, east := generate(t, "west"), generate(t, "east")
	known := Known{"west": {west.Public()}, "east": {east.Public()}}
	i := instance(t, "i", west, "west", epoch)
	c, err := known.Verify(i.Certificate(), epoch)
	if err != nil || c.Network != "west" || c.Gateway != "gw-1" || c.Instance != i.ID() {
		t.Fatalf("got %+v, %v", c, err)
	}
	statement := []byte("statement")
	if !c.Verify(statement, i.Sign(statement)) {
		t.Error("its own signature is not believed")
	}
	other := instance(t, "j", west, "west", epoch)
	if c.Verify(statement, other.Sign(statement)) || c.Verify([]byte("another"), i.Sign(statement)) {
		t.Error("the signature of another instance, or over something else, is believed")
	}
	if other.ID() == i.ID() {
		t.Error("two keys have one name")
	}
	forged := instance(t, "i", east, "west", epoch) // east's key says: west
	if _, err := known.Verify(forged.Certificate(), epoch); reasonOf(err) != WrongKey {
		t.Errorf("got %v, want %s", err, WrongKey)
	}
	north := instance(t, "i", east, "north", epoch)
	if _, err := known.Verify(north.Certificate(), epoch); reasonOf(err) != UnknownNetwork {
		t.Errorf("got %v, want %s", err, UnknownNetwork)
	}
	for n := range i.Certificate() {
		bent := slices.Clone(i.Certificate())
		bent[n] ^= 1
		if c, err := known.Verify(bent, epoch); err == nil {
			t.Errorf("byte %d changed: believed as %+v", n, c)
		}
	}
}

// Whoever has the public key of an instance, or even its secret key, can certify it as
// another network's: as another instance, by whose name the first has signed nothing.
func TestTheNameOfAnInstanceSaysItsNetworkAndGateway(t *testing.T) {
	west, east := generate(t, "west"), generate(t, "east")
	known := Known{"west": {west.Public()}, "east": {east.Public()}}
	i, taken := instance(t, "i", west, "west", epoch), instance(t, "i", east, "east", epoch)
	c, err := known.Verify(taken.Certificate(), epoch)
	if err != nil || c.Instance != taken.ID() {
		t.Fatalf("got %+v, %v", c, err)
	}
	if err := c.Is(taken.ID()); err != nil {
		t.Error(err)
	}
	if err := c.Is(i.ID()); reasonOf(err) != Malformed || !strings.Contains(err.Error(), i.ID().String()) {
		t.Errorf("one key with two certificates is one instance of two networks: %v", err)
	}
	e := i.SignRecord(record.Entry{Key: "key", Sequence: 1, Body: []byte("body")})
	if c.Says(e) {
		t.Error("a record of west is east's word")
	}
	if i.key.Equal(taken.key) && (InstanceOf("ab", "c", taken.key.Public().(ed25519.PublicKey)) == InstanceOf("a", "bc", taken.key.Public().(ed25519.PublicKey))) {
		t.Error("two gateways of two networks have one name")
	}
	was := sha256.Sum256(c.key)
	if err := c.Is(record.Instance(was[:16])); err == nil || !strings.Contains(err.Error(), "update that gateway") {
		t.Errorf("the name that older versions give: %v", err)
	}
	for network, gateway := range map[string]string{"east": "gw-1", "west": "gw-2"} {
		if err := west.Certify(i, network, gateway, epoch, MaxLifetime); err == nil {
			t.Errorf("it is certified anew as gateway %s of network %s", gateway, network)
		}
	}
}

func TestTwoKeysAreAcceptedWhileOneIsRotated(t *testing.T) {
	before, after := generate(t, "before"), generate(t, "after")
	a, b := instance(t, "a", before, "west", epoch), instance(t, "b", after, "west", epoch)
	for _, c := range []struct {
		known       Known
		old, recent bool
	}{
		{Known{"west": {before.Public()}}, true, false},
		{Known{"west": {before.Public(), after.Public()}}, true, true},
		{Known{"west": {after.Public()}}, false, true},
	} {
		_, errA := c.known.Verify(a.Certificate(), epoch)
		_, errB := c.known.Verify(b.Certificate(), epoch)
		if (errA == nil) != c.old || (errB == nil) != c.recent {
			t.Errorf("%v: got %v, %v", c, errA, errB)
		}
	}
}

func TestClocksEndCertificatesAndNothingElse(t *testing.T) {
	west := generate(t, "west")
	known := Known{"west": {west.Public()}}
	i := instance(t, "i", west, "west", epoch)
	for offset, ok := range map[time.Duration]bool{
		-365 * 24 * time.Hour:               true, // the reader's clock is a year behind
		0:                                   true,
		MaxLifetime + Tolerance:             true,
		MaxLifetime + Tolerance + 1:         false,
		365 * 24 * time.Hour:                false,
		MaxLifetime + Tolerance - time.Hour: true,
	} {
		_, err := known.Verify(i.Certificate(), epoch.Add(offset))
		if (err == nil) != ok || err != nil && (reasonOf(err) != Expired || !strings.Contains(err.Error(), "compare the clocks")) {
			t.Errorf("reader's clock %v away: %v; want believed %v", offset, err, ok)
		}
	}
	if err := west.Certify(i, "west", "gw-1", epoch, MaxLifetime+time.Second); err == nil {
		t.Error("certified for more than a day")
	}
}

func TestACertificateIsDueAtHalfOfItsLifeAndBeforeItBegins(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	i := instance(t, "due", generate(t, "east"), "east", now)
	for after, want := range map[time.Duration]bool{
		-2 * time.Second: true, 0: false, MaxLifetime/2 - time.Second: false, MaxLifetime / 2: true, 2 * MaxLifetime: true,
	} {
		if got := i.Due(now.Add(after)); got != want {
			t.Errorf("%v after it was issued the certificate is due: %v, want %v", after, got, want)
		}
	}
}

func TestKnownNetworksThatCannotBe(t *testing.T) {
	a, b, c := generate(t, "a").Public(), generate(t, "b").Public(), generate(t, "c").Public()
	for _, k := range []struct {
		known Known
		want  string
	}{
		{Known{"west": nil}, "has 0 keys"},
		{Known{"west": {a, b, c}}, "has 3 keys: want one, or two while it is rotated"},
		{Known{"west": {a, a}}, "listed twice"},
		{Known{"west": {a}, "east": {a}}, `is that of network "east" too`},
		{Known{"": {a}}, `network ""`},
		{Known{"we st": {a}}, `network "we st"`},
	} {
		if err := k.known.Validate(); err == nil || !strings.Contains(err.Error(), k.want) {
			t.Errorf("%v: got %v, want an error with %q", k.known, err, k.want)
		}
	}
	if err := (Known{"west": {a, b}, "east": {c}}).Validate(); err != nil {
		t.Error(err)
	}
}

func TestPublicKeysSurviveTheirText(t *testing.T) {
	want := generate(t, "a").Public()
	if got, err := ParsePublic(want.String()); err != nil || got != want {
		t.Errorf("got %v, %v", got, err)
	}
	for _, s := range []string{"", "ed25519:", "rsa:" + want.String()[8:], want.String()[:30], want.String() + "A"} {
		if k, err := ParsePublic(s); err == nil {
			t.Errorf("%q: got %v, want an error", s, k)
		}
	}
}

func FuzzVerify(f *testing.F) {
	west, _ := Generate(drawn("west"))
	i, _ := NewInstance(drawn("i"))
	if err := west.Certify(i, "west", "gw-1", epoch, time.Hour); err != nil {
		f.Fatal(err)
	}
	known := Known{"west": {west.Public()}}
	f.Add(i.Certificate())
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := known.Verify(b, epoch); err == nil && (c.Network != "west" || c.Instance != i.ID()) {
			t.Fatalf("believed %+v of %x", c, bytes.Clone(b))
		}
	})
}

func BenchmarkVerifyStatement(b *testing.B) {
	west, _ := Generate(drawn("west"))
	i, _ := NewInstance(drawn("i"))
	_ = west.Certify(i, "west", "gw-1", epoch, time.Hour)
	c, err := Known{"west": {west.Public()}}.Verify(i.Certificate(), epoch)
	if err != nil {
		b.Fatal(err)
	}
	statement := make([]byte, 200)
	signature := i.Sign(statement)
	for b.Loop() {
		if !c.Verify(statement, signature) {
			b.Fatal("not believed")
		}
	}
}

// A record that its instance has signed is its word wherever it was, and nobody else's:
// no relay, no other network's key, and not one of its own siblings can have written it.
func TestARecordIsTheWordOfItsInstanceAlone(t *testing.T) {
	west, east := generate(t, "west"), generate(t, "east")
	known := Known{"west": {west.Public()}, "east": {east.Public()}}
	i, sibling, foreign := instance(t, "i", west, "west", epoch), instance(t, "j", west, "west", epoch), instance(t, "i", east, "east", epoch)
	c, err := known.Verify(i.Certificate(), epoch)
	if err != nil {
		t.Fatal(err)
	}
	e, err := record.Encode(record.ExportRecord("shop", record.Export{Name: "shop", Namespace: "default", Ports: []record.Port{{Port: 80}}, Scope: record.ScopeGlobal}))
	if err != nil {
		t.Fatal(err)
	}
	e.Sequence = 7
	good := i.SignRecord(e)
	if !c.Says(good) {
		t.Fatal("its own word is not believed")
	}
	for what, bad := range map[string]record.Entry{
		"unsigned":                     e,
		"of a sibling":                 sibling.SignRecord(e),
		"of its key at other networks": foreign.SignRecord(e),
	} {
		if c.Says(bad) {
			t.Errorf("%s: believed", what)
		}
	}
	for n := range good.Body {
		bent := good
		bent.Body = slices.Clone(good.Body)
		bent.Body[n] ^= 1
		if c.Says(bent) {
			t.Errorf("byte %d changed: believed", n)
		}
	}
	later := good
	later.Sequence++
	if c.Says(later) {
		t.Error("under another sequence: believed")
	}
	if statement, signature, _ := good.Signed("west", i.ID()); c.Verify(statement, signature) || c.VerifyIntroduction(statement, signature) {
		t.Error("a signature over a record is one over something else")
	}
}

func BenchmarkSignRecord(b *testing.B) {
	west, _ := Generate(drawn("west"))
	i, _ := NewInstance(drawn("i"))
	if err := west.Certify(i, "west", "gw-1", epoch, time.Hour); err != nil {
		b.Fatal(err)
	}
	c, err := Known{"west": {west.Public()}}.Verify(i.Certificate(), epoch)
	if err != nil {
		b.Fatal(err)
	}
	e, err := record.Encode(record.ExportRecord("shop.default.svc.cluster.local", record.Export{Name: "shop", Namespace: "default", Ports: []record.Port{{Port: 80}}, Scope: record.ScopeGlobal}))
	if err != nil {
		b.Fatal(err)
	}
	e.Sequence = 7
	signed := i.SignRecord(e)
	b.Run("sign", func(b *testing.B) {
		for b.Loop() {
			i.SignRecord(e)
		}
	})
	b.Run("check", func(b *testing.B) {
		for b.Loop() {
			if !c.Says(signed) {
				b.Fatal("not believed")
			}
		}
	})
}
