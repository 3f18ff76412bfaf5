package gateway

import (
	"crypto/rand"
	mathrand "math/rand/v2"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/antientropy"
	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

// publishWithin makes b publish as a federation does that has room for so much.
func (b *believer) publishWithin(t *testing.T, records, bytes int) *antientropy.Publisher {
	t.Helper()
	key, err := networkkey.NewInstance(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	network, err := networkkey.Generate(rand.Reader)
	if err == nil {
		err = network.Certify(key, "west", "gw-1", time.Now(), networkkey.MaxLifetime)
	}
	if err != nil {
		t.Fatal(err)
	}
	p := antientropy.NewPublisher(key, records, bytes)
	p.Certified(time.Now())
	n := antientropy.NewNode(antientropy.Config{Publisher: p, Ledger: ledger.New(networkkey.Known{"west": {network.Public()}}, ledger.DefaultLimits), Random: mathrand.Uint64}, time.Now())
	b.deliveries.publish = func(records []record.Record, withdrawn ...record.Key) {
		for _, r := range records {
			p.Put(r, time.Now()) // an error is in Unsaid
		}
		for _, k := range withdrawn {
			p.Withdraw(k, time.Now())
		}
		if _, _, err := n.Tick(time.Now()); err != nil {
			t.Error(err)
		}
	}
	b.deliveries.ports, b.deliveries.exports = map[string]map[uint16]*delivery{}, map[string]exported{}
	return p
}

// beside is a mesh with hello and, for a while, the service aaa beside it, both of one
// pod.
func beside(t *testing.T, revision uint64, more bool) func(*believer) {
	t.Helper()
	c := discovery.DefaultConfig()
	c.Networks = []discovery.Network{{Name: "west"}}
	names := []string{"hello"}
	if more {
		names = append(names, "aaa")
	}
	w := discovery.Workload{UID: "hello-1", Network: "west", Node: "west-1", Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.49")}}
	for _, name := range names {
		c.Services = append(c.Services, discovery.Service{Name: name, Global: true, Ports: []discovery.ServicePort{{Name: "a", Port: 80, TargetPort: 8080}}})
		w.Services = append(w.Services, name+".default.svc.cluster.local")
	}
	c.Workloads = []discovery.Workload{w}
	snap, problems := discovery.Build(revision, c)
	if problems != nil {
		t.Fatal(problems)
	}
	return func(b *believer) { b.store.Swap(snap) }
}

// What other networks could not be told for the lack of room they are told when there
// is some again, although nothing changes in it: a service, and that a pod is out.
func TestWhatFoundNoRoomIsPublishedWhenThereIsRoom(t *testing.T) {
	healthOf := func(p *antientropy.Publisher) *record.Health {
		e, ok := p.Set().Get(record.EncodeKey(record.Key{Kind: record.KindHealth, Service: "hello.default.svc.cluster.local", Port: 80}))
		if !ok {
			return nil
		}
		r, err := e.Decode()
		if err != nil {
			t.Fatal(err)
		}
		return r.Health
	}
	synctest.Test(t, func(t *testing.T) {
		whole := newBeliever(t)
		beside(t, 2, true)(whole)
		all := whole.publishWithin(t, 100, 1<<20)
		whole.deliveries.start(time.Now())
		size := all.Set().Bytes()
		for name, limits := range map[string][2]int{"records": {3, 1 << 20}, "bytes": {100, size + size/15 + 1}} { // a sixteenth is kept for what a gateway says of itself
			b := newBeliever(t)
			beside(t, 2, true)(b)
			p := b.publishWithin(t, limits[0], limits[1])
			b.deliveries.start(time.Now())
			b.pod = b.store.Current().Workload("hello-1")
			time.Sleep(time.Minute)
			b.witnessed(federation.Ejected, true)
			if len(p.Unsaid()) == 0 {
				t.Fatalf("%s: all of %d bytes found room", name, size)
			}
			time.Sleep(time.Minute)
			beside(t, 3, false)(b) // aaa is gone: there is room
			b.deliveries.revised(discovery.Everything(), time.Now())
			for range 3 {
				time.Sleep(time.Minute)
				b.deliveries.touched(time.Now(), b.pod)
				b.deliveries.publish(nil)
			}
			if h := healthOf(p); h == nil || h.Healthy != 0 || h.Ready != 1 || p.Set().Len() != 2 || len(p.Unsaid()) > 0 {
				t.Errorf("%s: minutes later other networks are told %+v, in %d records, and %d have no room; want 0 of 1 healthy, the export, and none", name, h, p.Set().Len(), len(p.Unsaid()))
			}
		}
	})
}
