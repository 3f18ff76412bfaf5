package antientropy

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/record"
)

// newPublisher is one of a network of its own, which may say so much.
func newPublisher(t *testing.T, records, bytes int) *Publisher {
	t.Helper()
	w := newWorld(t, t.Name(), 1, 1)
	w.limits.Records, w.limits.Bytes = records, bytes
	w.start(w.sites[0])
	return w.sites[0].node.Publisher()
}

// What there was no room for is said when there is, and is a problem until then.
func TestWhatThereWasNoRoomForIsSaidLater(t *testing.T) {
	for name, limits := range map[string][2]int{"records": {10, 1 << 20}, "bytes": {1000, 10 * (190 + record.SignatureBytes)}} {
		t.Run(name, func(t *testing.T) {
			p := newPublisher(t, limits[0], limits[1])
			now := epoch
			said := map[int]bool{}
			for n := range 20 {
				if err := p.Put(export(n), now); err == nil {
					said[n] = true
				} else if !errors.Is(err, record.ErrTooLarge) {
					t.Fatal(err)
				}
			}
			if len(said) < 5 || len(said) > 12 || p.UnsaidLen() != 20-len(said) {
				t.Fatalf("%d of 20 were said and %d are problems", len(said), p.UnsaidLen())
			}
			for _, u := range p.Unsaid() {
				if !errors.Is(u.Err, record.ErrTooLarge) || u.Key.Service == "" {
					t.Errorf("problem %+v; want the service and why", u)
				}
			}
			if at := p.Next(); !at.IsZero() {
				t.Errorf("something is due at %v although nothing has made room", at)
			}
			if err := p.Put(record.NetworkRecord(record.Network{Gateway: "gw", Draining: true}), now); err != nil {
				t.Errorf("that it drains: %v; want room for it", err)
			}
			for n := range said {
				p.Withdraw(export(n).Key, now)
			}
			now = now.Add(retryEvery)
			if at := p.Next(); at.IsZero() || at.After(now) {
				t.Errorf("the next attempt is due at %v, now is %v", at, now)
			}
			if err := p.ripen(now); err != nil {
				t.Error(err)
			}
			for n := range 20 {
				if _, ok := p.Set().Get(record.EncodeKey(export(n).Key)); ok == said[n] && p.UnsaidLen() == 0 {
					t.Errorf("service %d: said %v, after the others have gone", n, ok)
				}
			}
			if got := p.Set().Len() - 1 + p.UnsaidLen(); got != 20-len(said) || p.Set().Len()-1 < min(20-len(said), len(said)) {
				t.Errorf("%d said and %d problems; want %d together and the room used", p.Set().Len()-1, p.UnsaidLen(), 20-len(said))
			}
		})
	}
}

// Health that there is no room for leaves no older word behind, which would be vouched
// for; what cannot be a record at all is shown until it is one or is withdrawn.
func TestWhatCannotBeSaidLeavesNoUntruth(t *testing.T) {
	one, err := record.Encode(healthy(0, 10))
	if err != nil {
		t.Fatal(err)
	}
	p := newPublisher(t, 100, 12*(one.Size()+record.SignatureBytes)*16/15+16) // room for twelve, and hardly more
	now := epoch
	for n := range 8 {
		if err := p.Put(healthy(n, 10), now); err != nil {
			t.Fatal(err)
		}
	}
	for n := 8; p.Put(healthy(n, 10), now) == nil; n++ {
	}
	unsaid := p.UnsaidLen()
	if err := p.Put(healthy(0, 0), now); !errors.Is(err, record.ErrTooLarge) {
		t.Fatalf("ten exceptions more: %v; want no room", err)
	}
	key := record.EncodeKey(healthy(0, 0).Key)
	if e, ok := p.Set().Get(key); ok {
		t.Errorf("the older word still stands: %v", e)
	}
	if p.UnsaidLen() != unsaid+1 {
		t.Errorf("%d problems; want %d", p.UnsaidLen(), unsaid+1)
	}
	if err := p.Put(healthy(0, 10), now.Add(time.Minute)); err != nil {
		t.Errorf("the small word again: %v", err)
	}
	bad := export(50)
	bad.Export.Ports = nil
	var invalid *record.InvalidError
	if err := p.Put(bad, now); !errors.As(err, &invalid) || p.UnsaidLen() != unsaid+1 {
		t.Errorf("%v, %d problems; want one more", err, p.UnsaidLen())
	}
	p.Withdraw(bad.Key, now)
	if p.UnsaidLen() != unsaid {
		t.Errorf("%d problems after the withdrawal; want %d", p.UnsaidLen(), unsaid)
	}
}

// Whatever comes and goes: what is said is within the limits and is the latest word, and
// what is not said is a problem, and has no room.
func TestSaidAndUnsaidAreAllThereIs(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		p := newPublisher(t, 20, 4000)
		want := map[string]string{} // key → body
		now := epoch
		for step := range 400 {
			n := rng.IntN(40)
			r := healthy(n, uint32(rng.IntN(11)))
			if rng.IntN(3) == 0 {
				r = export(n)
			}
			key := record.EncodeKey(r.Key)
			if rng.IntN(3) == 0 {
				p.Withdraw(r.Key, now)
				delete(want, key)
			} else {
				e, err := record.Encode(r)
				if err != nil {
					t.Fatal(err)
				}
				want[key] = string(e.Body)
				if err := p.Put(r, now); err != nil && !errors.Is(err, record.ErrTooLarge) {
					t.Fatal(err)
				}
			}
			if rng.IntN(4) > 0 {
				continue
			}
			now = now.Add(5 * time.Second)
			p.ripen(now) // what has no room is in Unsaid
			now = now.Add(5 * time.Second)
			p.ripen(now)
			if err := account(p, want); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
		}
	}
}

// account says in what p differs from what it is to say.
func account(p *Publisher, want map[string]string) error {
	unsaid := map[string]bool{}
	for _, u := range p.Unsaid() {
		unsaid[record.EncodeKey(u.Key)] = true
	}
	if p.Set().Len() > 20 || p.Set().Bytes() > 4000 {
		return fmt.Errorf("%d records, %d bytes: beyond the limits", p.Set().Len(), p.Set().Bytes())
	}
	smallest := 1 << 20
	for key, body := range want {
		e, said := p.Set().Get(key)
		switch {
		case said && e.Says(record.Entry{Body: []byte(body)}) && !unsaid[key]:
		case unsaid[key] && (!said || e.Size() < len(key)+len(body)+64+record.SignatureBytes): // an export of an older form
			if !said {
				smallest = min(smallest, record.Entry{Key: key, Body: []byte(body)}.Size()+record.SignatureBytes)
			}
		default:
			return fmt.Errorf("%x: said %v, a problem %v", key, said, unsaid[key])
		}
	}
	if room := 4000 - 4000/16 - p.Set().Bytes(); smallest <= room && p.Set().Len() < 19 && !p.room {
		return fmt.Errorf("%d bytes are free, and a record of %d waits", room, smallest)
	}
	for e := range p.Set().All() {
		if _, ok := want[e.Key]; !ok {
			return fmt.Errorf("%x was withdrawn and is said", e.Key)
		}
	}
	return nil
}
