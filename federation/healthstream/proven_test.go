package healthstream

import (
	"crypto/sha256"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

func keyOf(t testing.TB, network string) networkkey.Private {
	t.Helper()
	k, err := networkkey.Generate(rand.NewChaCha8(sha256.Sum256([]byte("network " + network))))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// speaks is a gateway instance of another network that signs what it says, as its
// publisher does.
type speaks struct {
	t       testing.TB
	network string
	gateway string
	key     *networkkey.Instance
	said    map[string]record.Entry
	count   uint64
	gone    bool // it has fallen silent
}

func (w *world) speaker(network, gateway, seed string, by networkkey.Private) *speaks {
	w.t.Helper()
	return newSpeaks(w.t, network, gateway, seed, by)
}

func newSpeaks(t testing.TB, network, gateway, seed string, by networkkey.Private) *speaks {
	t.Helper()
	return newSpeaksSince(t, network, gateway, seed, by, time.Now())
}

func newSpeaksSince(t testing.TB, network, gateway, seed string, by networkkey.Private, certified time.Time) *speaks {
	t.Helper()
	key, err := networkkey.NewInstance(rand.NewChaCha8(sha256.Sum256([]byte(network + gateway + seed))))
	if err == nil {
		err = by.Certify(key, network, gateway, certified, networkkey.MaxLifetime)
	}
	if err != nil {
		t.Fatal(err)
	}
	s := &speaks{t: t, network: network, gateway: gateway, key: key, said: map[string]record.Entry{}}
	s.say(record.NetworkRecord(record.Network{Gateway: gateway, Addresses: []record.Address{{Host: "10.9.0.1", Port: 15008}}}))
	return s
}

// say signs r as the newest word and returns it.
func (s *speaks) say(r record.Record) record.Entry {
	s.t.Helper()
	e, err := record.Encode(r)
	if err != nil {
		s.t.Fatal(err)
	}
	s.count++
	e.Sequence = s.count
	e = s.key.SignRecord(e)
	s.said[e.Key] = e
	return e
}

// withdraw says nothing of what r was about any more.
func (s *speaks) withdraw(r record.Record) {
	s.count++
	delete(s.said, record.EncodeKey(r.Key))
}

// voice is what a gateway that has heard s passes on of the service.
func (s *speaks) voice() Voice {
	v := Voice{Instance: s.key.ID(), Gateway: s.gateway, Live: !s.gone, Certificate: s.key.Certificate()}
	for _, key := range slices.Sorted(func(yield func(string) bool) {
		for k := range s.said {
			if !yield(k) {
				return
			}
		}
	}) {
		k, err := record.DecodeKey(key)
		if err != nil {
			s.t.Fatal(err)
		}
		if k.Kind == record.KindNetwork {
			v.Introduction = s.said[key]
		} else {
			v.Entries = append(v.Entries, s.said[key])
		}
	}
	return v
}

func shareFrom(voices ...Voice) Share { return Share{Network: "east", Instances: voices} }

var shopID = spiffeid.RequireFromString("spiffe://cluster.local/ns/default/sa/shop")

func exportOf(ids ...spiffeid.ID) record.Record {
	return record.ExportRecord(service, record.Export{Name: "shop", Namespace: "default", Ports: []record.Port{{Port: 80}}, Scope: record.ScopeGlobal, Identities: ids, Capacity: 10})
}

func healthOf(healthy uint32) record.Record {
	return record.HealthRecord(service, 80, record.Health{Ready: 10, Healthy: healthy, ReadyCapacity: 10, HealthyCapacity: healthy})
}

// linked is a node proxy that knows east by its key.
func (w *world) linked(name string, known networkkey.Known) (*node, *peer.Metrics) {
	m := peer.NewMetrics(nil)
	n := w.node(name, func(c *ClientConfig) { c.Known, c.Metrics = known, m })
	n.Pin(service)
	return n, m
}

// offers fails unless n holds for proven that east offers the service to these, nobody:
// that it does not.
func (n *node) offers(when string, ids ...spiffeid.ID) {
	n.world.t.Helper()
	settle()
	n.services.countsVoices(n.world.t)
	k, _ := n.Known("east", service)
	switch {
	case k.Offer == nil && len(ids) > 0:
		n.world.t.Errorf("%s: nothing is proven; want an export to %v. Not proven: %q", when, ids, n.Unproven())
	case k.Offer != nil && !slices.Equal(k.Offer.Identities, ids):
		n.world.t.Errorf("%s: the export names %v; want %v", when, k.Offer.Identities, ids)
	}
}

// healthy fails unless n holds so many for healthy in east.
func (n *node) healthy(when string, want uint32) {
	n.world.t.Helper()
	n.knows(when, "east", want)
}

func unprovenOf(m *peer.Metrics, why Unproven) int {
	return int(counter(m.Unproven.WithLabelValues(string(why))))
}

// What another network's gateway has signed reaches a node proxy as its word, with who it
// is and where; a change, at once; a withdrawal ends it.
func TestAnExportReachesNodeProxiesAsTheWordOfItsNetwork(t *testing.T) {
	inBubble(t, func(w *world) {
		key := keyOf(t, "east")
		gw := w.gateway("gw-1", func(c *ServerConfig) { c.Holds = func() []string { return []string{"east"} } })
		east := w.speaker("east", "gw-e", "", key)
		n, m := w.linked("node-1", networkkey.Known{"east": {key.Public()}})
		n.attached(1)
		n.offers("before there is one")
		east.say(exportOf(shopID))
		east.say(healthOf(9))
		gw.say(service, shareFrom(east.voice()))
		n.offers("when it is said", shopID)
		n.healthy("when it is said", 9)
		if g := n.Gateways("east"); len(g) != 1 || g[0].Name != "gw-e" || g[0].Body.Addresses[0].Host != "10.9.0.1" || g[0].Body.Draining {
			t.Errorf("gateways of east: %+v", g)
		}
		east.say(record.NetworkRecord(record.Network{Gateway: "gw-e", Addresses: []record.Address{{Host: "10.9.0.2", Port: 15008}}, Draining: true}))
		gw.say(service, shareFrom(east.voice()))
		settle()
		if g := n.Gateways("east"); len(g) != 1 || g[0].Body.Addresses[0].Host != "10.9.0.2" || !g[0].Body.Draining {
			t.Errorf("gateways of east when one has moved and drains: %+v", g)
		}
		time.Sleep(2 * time.Second) // the gateway says what it holds
		n.offers("as long as it is said", shopID)
		east.withdraw(exportOf())
		gw.say(service, shareFrom(east.voice()))
		n.offers("when it is withdrawn")
		n.healthy("when it is withdrawn", 9)
		east.say(exportOf(shopID))
		gw.say(service, shareFrom(east.voice()))
		n.offers("when it is said again", shopID)
		gw.say(service)
		n.offers("when nothing of that network is left")
		if len(n.Gateways("east")) != 0 {
			t.Errorf("gateways of east that offer nothing: %+v", n.Gateways("east"))
		}
		for _, why := range Unprovens {
			if unprovenOf(m, why) != 0 {
				t.Errorf("%d records were not proven: %s", unprovenOf(m, why), why)
			}
		}
	})
}

// A compromised gateway of the own network changes, invents and repeats what gateways of
// another network have said. None of it is proven.
func TestWhatTheOwnGatewayMakesUpIsNotProven(t *testing.T) {
	evil := spiffeid.RequireFromString("spiffe://cluster.local/ns/default/sa/evil")
	for name, c := range map[string]struct {
		forge   func(w *world, east *speaks) Voice
		why     Unproven
		healthy uint32
	}{
		"another export under the signature": {func(_ *world, east *speaks) Voice {
			v := east.voice()
			forged, _ := record.Encode(exportOf(evil))
			forged.Sequence = 99
			forged.Body = append(forged.Body, v.Entries[0].Body[len(v.Entries[0].Body)-record.SignatureBytes:]...)
			v.Entries[0] = forged
			return v
		}, Forged, 9},
		"an export without a signature": {func(_ *world, east *speaks) Voice {
			v := east.voice()
			forged, _ := record.Encode(exportOf(evil))
			forged.Sequence = 99
			v.Entries[0] = forged
			return v
		}, Stripped, 9},
		"health without a signature": {func(_ *world, east *speaks) Voice {
			v := east.voice()
			forged, _ := record.Encode(healthOf(0))
			forged.Sequence = 99
			v.Entries[1] = forged
			return v
		}, Stripped, 9},
		"an instance that its own key has certified for east": {func(w *world, _ *speaks) Voice {
			own := w.speaker("east", "gw-e", "own", keyOf(w.t, "west"))
			own.say(exportOf(evil))
			own.say(healthOf(10)) // more than there is
			return own.voice()
		}, Certificate, 9},
		"an instance of its own network": {func(w *world, _ *speaks) Voice {
			own := w.speaker("west", "gw-1", "own", keyOf(w.t, "west"))
			own.say(exportOf(evil))
			own.say(healthOf(10)) // more than there is
			return own.voice()
		}, Uncertified, 9},
		"an instance of a third network": {func(w *world, _ *speaks) Voice {
			own := w.speaker("north", "gw-n", "", keyOf(w.t, "north"))
			own.say(exportOf(evil))
			own.say(healthOf(10)) // more than there is
			return own.voice()
		}, Uncertified, 9},
		"what that instance has said of another service": {func(_ *world, east *speaks) Voice {
			v := east.voice()
			other := east.say(record.ExportRecord("cart.default.svc.cluster.local", record.Export{Name: "cart", Namespace: "default", Ports: []record.Port{{Port: 80}}, Scope: record.ScopeGlobal, Identities: []spiffeid.ID{evil}}))
			other.Key = v.Entries[0].Key
			v.Entries[0] = other
			return v
		}, Forged, 9},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				key := keyOf(t, "east")
				known := networkkey.Known{"east": {key.Public()}, "north": {keyOf(t, "north").Public()}, "west": {keyOf(t, "west").Public()}}
				rogue, honest := w.gateway("gw-1", nil), w.gateway("gw-2", nil)
				east := w.speaker("east", "gw-e", "", key)
				east.say(exportOf(shopID))
				east.say(healthOf(9))
				n, m := w.linked("node-1", known)
				n.attached(2)
				rogue.say(service, shareFrom(c.forge(w, east)))
				settle()
				if k, _ := n.Known("east", service); k.Offer != nil && slices.Contains(k.Offer.Identities, evil) {
					t.Errorf("with the rogue one alone: %v may answer", k.Offer.Identities)
				}
				honest.say(service, shareFrom(east.voice()))
				n.offers("beside an honest one", shopID)
				n.healthy("beside an honest one", c.healthy)
				rogue.say(service, shareFrom(c.forge(w, east)))
				n.offers("again", shopID)
				n.healthy("again", c.healthy)
				if unprovenOf(m, c.why) == 0 || len(n.Unproven()) == 0 {
					t.Errorf("%d counted as %s, and shown: %q", unprovenOf(m, c.why), c.why, n.Unproven())
				}
			})
		})
	}
}

// No older word is taken as long as the process runs, whoever brings it: also not over a
// stream that begins anew, or when the service was forgotten meanwhile.
func TestAnOlderWordIsWorthNothingToWhoHasHeardANewerOne(t *testing.T) {
	inBubble(t, func(w *world) {
		key := keyOf(t, "east")
		gw := w.gateway("gw-1", nil)
		east := w.speaker("east", "gw-e", "", key)
		east.say(exportOf(shopID, spiffeid.RequireFromString("spiffe://cluster.local/ns/default/sa/shop-old")))
		east.say(healthOf(10))
		old := east.voice()
		n, m := w.linked("node-1", networkkey.Known{"east": {key.Public()}})
		n.attached(1)
		east.say(exportOf(shopID))
		east.say(healthOf(3))
		gw.say(service, shareFrom(east.voice()))
		n.offers("the new word", shopID)
		gw.say(service, shareFrom(old))
		settle()
		if k, _ := n.Known("east", service); k.Offer != nil && len(k.Offer.Identities) > 1 {
			t.Errorf("the old word brings back %v", k.Offer.Identities)
		}
		w.cut("node-1")
		time.Sleep(time.Second)
		n.attached(1)
		n.Pin()
		time.Sleep(n.cfg.Idle + n.cfg.Idle/5)
		if len(n.Followed()) != 0 {
			t.Fatalf("follows %v", n.Followed())
		}
		n.Pin(service)
		settle()
		if k, _ := n.Known("east", service); k.Offer != nil || k.Summaries[80].Healthy == 10 {
			t.Errorf("followed again, the old word counts: %+v, %+v", k.Offer, k.Summaries)
		}
		if unprovenOf(m, Older) == 0 {
			t.Error("nothing was counted as older")
		}
		gw.say(service, shareFrom(east.voice()))
		n.offers("the new word again", shopID)
		n.healthy("the new word again", 3)
	})
}

// To a node proxy that has started since, an old word is worth something until its
// instance's certificate ends, and nothing afterwards.
func TestARecordedWordEndsWithTheCertificateOfItsInstance(t *testing.T) {
	inBubble(t, func(w *world) {
		key := keyOf(t, "east")
		gw := w.gateway("gw-1", nil)
		east := w.speaker("east", "gw-e", "", key)
		east.say(exportOf(shopID))
		gw.say(service, shareFrom(east.voice()))
		time.Sleep(networkkey.MaxLifetime / 2)
		n, m := w.linked("node-1", networkkey.Known{"east": {key.Public()}})
		n.attached(1)
		n.offers("half a day later", shopID)
		time.Sleep(networkkey.MaxLifetime/2 + networkkey.Tolerance + time.Second)
		n.offers("when the certificate has ended")
		if g := n.Gateways("east"); len(g) != 0 {
			t.Errorf("gateways: %+v", g)
		}
		w.cut("node-1")
		time.Sleep(time.Second)
		n.attached(1)
		n.offers("told again")
		if unprovenOf(m, Certificate) == 0 {
			t.Error("nothing was counted as of an ended certificate")
		}
		if err := key.Certify(east.key, "east", "gw-e", time.Now(), networkkey.MaxLifetime); err != nil {
			t.Fatal(err)
		}
		gw.say(service, shareFrom(east.voice()))
		n.offers("certified anew, with the same export", shopID)
	})
}

// A network's key is rotated: both are listed, its instances are certified by the next
// one, the old one is forgotten. Nothing it offers is lost on the way; unlinked, all is.
func TestRotationOfANetworksKeyKeepsItsExports(t *testing.T) {
	inBubble(t, func(w *world) {
		before, after := keyOf(t, "east"), keyOf(t, "east, next")
		gw := w.gateway("gw-1", nil)
		east := w.speaker("east", "gw-e", "", before)
		east.say(exportOf(shopID))
		east.say(healthOf(9))
		n, _ := w.linked("node-1", networkkey.Known{"east": {before.Public()}})
		gw.say(service, shareFrom(east.voice()))
		n.attached(1)
		n.offers("with the first key", shopID)
		n.SetKnown(networkkey.Known{"east": {before.Public(), after.Public()}})
		n.offers("with both", shopID)
		time.Sleep(time.Hour)
		if err := after.Certify(east.key, "east", "gw-e", time.Now(), networkkey.MaxLifetime); err != nil {
			t.Fatal(err)
		}
		gw.say(service, shareFrom(east.voice()))
		n.offers("certified by the next one", shopID)
		n.SetKnown(networkkey.Known{"east": {after.Public()}})
		n.offers("the old one is forgotten", shopID)
		if len(n.Gateways("east")) != 1 {
			t.Errorf("gateways: %+v", n.Gateways("east"))
		}
		n.SetKnown(nil)
		n.offers("unlinked")
		n.healthy("unlinked: as before there were links", 9)
		n.SetKnown(networkkey.Known{"east": {after.Public()}})
		n.offers("linked again", shopID)
	})
}

// A gateway of the own network that has just started, or is cut off from another network,
// does not know what that one offers: that it does not say so withdraws nothing.
func TestWhoDoesNotKnowWithdrawsNothing(t *testing.T) {
	inBubble(t, func(w *world) {
		key := keyOf(t, "east")
		var holds atomic.Pointer[[]string]
		hold := func(networks ...string) { holds.Store(&networks) }
		hold()
		gw := w.gateway("gw-1", func(c *ServerConfig) { c.Holds = func() []string { return *holds.Load() } })
		east := w.speaker("east", "gw-e", "", key)
		east.say(exportOf(shopID))
		n, _ := w.linked("node-1", networkkey.Known{"east": {key.Public()}})
		gw.say(service, shareFrom(east.voice()))
		n.attached(1)
		n.offers("said", shopID)
		gw.say(service)
		n.offers("not said any more by who does not know", shopID)
		w.cut("node-1")
		time.Sleep(time.Second)
		n.attached(1)
		n.offers("nor after a reconnect", shopID)
		hold("north")
		time.Sleep(2 * time.Second)
		n.offers("nor by who knows another network", shopID)
		hold("east", "north")
		time.Sleep(2 * time.Second)
		n.offers("by who knows")
	})
}

// Two gateways of a network export different identities: the offer has both, and a problem.
// A silent gateway does not count beside a current one.
func TestDifferingGatewaysOfferBothExports(t *testing.T) {
	inBubble(t, func(w *world) {
		key := keyOf(t, "east")
		gw := w.gateway("gw-1", nil)
		a, b := w.speaker("east", "gw-a", "", key), w.speaker("east", "gw-b", "", key)
		other := spiffeid.RequireFromString("spiffe://cluster.local/ns/default/sa/a-other")
		a.say(exportOf(other))
		b.say(exportOf(shopID))
		n, _ := w.linked("node-1", networkkey.Known{"east": {key.Public()}})
		gw.say(service, shareFrom(a.voice()))
		n.attached(1)
		n.offers("one", other)
		gw.say(service, shareFrom(a.voice(), b.voice()))
		n.offers("both", other, shopID)
		if k, _ := n.Known("east", service); k.Differ == "" {
			t.Error("that they differ is not shown")
		}
		b.gone = true
		gw.say(service, shareFrom(a.voice(), b.voice()))
		n.offers("the other one is silent", other)
		a.gone = true
		gw.say(service, shareFrom(a.voice(), b.voice()))
		n.offers("both are", other, shopID)
	})
}

// Between versions: a gateway of yesterday passes on no certificates, and an instance of
// yesterday signs nothing. Its health counts as before, and what it offers does not.
func TestOfOlderVersionsHealthAloneIsTaken(t *testing.T) {
	inBubble(t, func(w *world) {
		key := keyOf(t, "east")
		gw := w.gateway("gw-1", nil)
		east := w.speaker("east", "gw-e", "", key)
		east.say(exportOf(shopID))
		east.say(healthOf(9))
		n, m := w.linked("node-1", networkkey.Known{"east": {key.Public()}})
		n.attached(1)
		bare := east.voice() // signed, as a gateway of yesterday passes it on
		bare.Certificate, bare.Introduction = nil, record.Entry{}
		gw.say(service, shareFrom(bare))
		n.offers("without its certificate")
		n.healthy("without its certificate", 9)
		unsigned := east.voice()
		unsigned.Entries = nil
		for _, r := range []record.Record{exportOf(shopID), healthOf(7)} {
			e, _ := record.Encode(r)
			e.Sequence = 1
			unsigned.Entries = append(unsigned.Entries, e)
		}
		unsigned.Introduction, _ = record.Encode(record.NetworkRecord(record.Network{Gateway: "gw-e"}))
		unsigned.Introduction.Sequence = 1
		gw.say(service, shareFrom(unsigned))
		n.offers("of an instance that signs nothing")
		n.healthy("of an instance that signs nothing", 7)
		if unprovenOf(m, Unsigned) < 2 || len(n.Gateways("east")) != 0 {
			t.Errorf("%d records are unsigned, gateways %+v; want 2 and none", unprovenOf(m, Unsigned), n.Gateways("east"))
		}
		gw.say(service, shareFrom(east.voice()))
		n.offers("with it", shopID)
		n.healthy("with it", 9)
	})
}
