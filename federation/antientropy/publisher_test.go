package antientropy

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

// Whatever an instance says it has signed by itself, under the sequence that it has: so
// those who are told by others can check it. What stays the same is not signed again.
func TestEveryRecordIsSignedByItsInstance(t *testing.T) {
	network, err := networkkey.Generate(rand.NewChaCha8([32]byte{1}))
	if err != nil {
		t.Fatal(err)
	}
	key, err := networkkey.NewInstance(rand.NewChaCha8([32]byte{2}))
	if err == nil {
		err = network.Certify(key, "west", "gw", epoch, time.Hour)
	}
	if err != nil {
		t.Fatal(err)
	}
	c, err := networkkey.Known{"west": {network.Public()}}.Verify(key.Certificate(), epoch)
	if err != nil {
		t.Fatal(err)
	}
	p := NewPublisher(key, 100, 1<<20)
	now := epoch
	put := func(r record.Record) record.Entry {
		t.Helper()
		if err := p.Put(r, now); err != nil {
			t.Fatal(err)
		}
		e, ok := p.Set().Get(record.EncodeKey(r.Key))
		if !ok || !c.Says(e) {
			t.Fatalf("%v: said %v, by its instance %v", r.Key, ok, c.Says(e))
		}
		return e
	}
	put(record.NetworkRecord(record.Network{Gateway: "gw"}))
	put(export(1))
	first := put(healthy(1, 10))
	if again := put(healthy(1, 10)); again.Sequence != first.Sequence || p.watermark != 3 {
		t.Errorf("said again under sequence %d, watermark %d", again.Sequence, p.watermark)
	}
	if other := put(healthy(1, 9)); other.Sequence <= first.Sequence {
		t.Errorf("something else has sequence %d, after %d", other.Sequence, first.Sequence)
	}
	for n := range uint32(2 * Burst) { // until it is paced
		p.Put(healthy(1, n%5), now)
	}
	now = now.Add(Burst * Pace)
	if err := p.ripen(now); err != nil {
		t.Fatal(err)
	}
	put(healthy(1, (2*Burst-1)%5))
}
