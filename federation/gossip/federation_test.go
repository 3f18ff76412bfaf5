package gossip

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

func TestGatewaysConverge(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		sites := startAll(w, "east", "west", "north")
		for i, s := range sites {
			s.publish(uint32(i))
		}
		// Of two gateways of one network, the one that can deliver more counts.
		for network, healthy := range map[string]uint32{"east": 1, "west": 3, "north": 5} {
			eventually(t, "everybody believes the same", func() bool {
				return all(sites, func(s *site) bool { return s.believes(network, healthy) })
			})
		}
		for _, s := range sites {
			<-s.federation.Synced()
		}
	})
}

func TestEdgeReachesAllAtOnce(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		sites := startAll(w, "east", "west", "north")
		time.Sleep(2 * time.Second)
		for i := range uint32(10) {
			sites[0].publish(i)
			// The network has 1 ms each way, and virtual time passes on nothing else.
			took := eventually(t, "the edge is everywhere", func() bool { return all(sites, func(s *site) bool { return s.believes("east", i) }) })
			if took > 5*time.Millisecond {
				t.Errorf("edge %d took %v", i, took)
			}
			time.Sleep(time.Second + time.Duration(i)*333*time.Millisecond) // anywhere between two heartbeats
		}
	})
}

func TestWhatOneSaidReachesThoseWhoCannotReachIt(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		w.add("east", "gw-1")
		w.add("west", "gw-1")
		w.add("north", "gw-1")
		relays, gateways := w.relays(), w.all()
		// Neither of east and north lists the other; both list west.
		without := func(network string) func(*Config) {
			return func(c *Config) {
				peers := c.Peers
				c.Peers = func() (out []*meshGateway) {
					return slices.DeleteFunc(peers(), func(g *meshGateway) bool { return g.Network == network })
				}
			}
		}
		east := w.start(gateways[0], relays[gateways[0]], without("north"))
		w.start(gateways[1], relays[gateways[1]])
		north := w.start(gateways[2], relays[gateways[2]], without("east"))
		east.publish(4)
		eventually(t, "north hears of east by west", func() bool { return north.believes("east", 4) })
		took := eventually(t, "and goes on", func() bool { return north.status(east.federation.Instance()).Count > 10 })
		east.publish(3)
		edge := eventually(t, "an edge takes the same way", func() bool { return north.believes("east", 3) })
		if edge > 100*time.Millisecond {
			t.Errorf("an edge by a relay took %v", edge)
		}
		t.Logf("ten heartbeats in %v, an edge by a relay in %v", took, edge)
	})
}

func TestOneDirectionOfDialsIsEnough(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		sites := func() []*site {
			w.add("east", "gw-1")
			w.add("west", "gw-1")
			relays, gateways := w.relays(), w.all()
			east := w.start(gateways[0], relays[gateways[0]])
			east.relay.target.Store("127.0.0.1:1") // nobody
			return []*site{east, w.start(gateways[1], relays[gateways[1]])}
		}()
		eventuallyMembers(t, sites)
		sites[0].publish(3)
		sites[1].publish(4)
		eventually(t, "both hear the other", func() bool { return sites[1].believes("east", 3) && sites[0].believes("west", 4) })
	})
}

func TestHealsAfterBlackHole(t *testing.T) {
	for _, mode := range []relayMode{stall, swallow} {
		t.Run(fmt.Sprint(mode), func(t *testing.T) {
			simulated(t, func(t *testing.T, w *world) {
				sites := startAll(w, "east", "west", "north")
				for _, s := range sites {
					s.relay.set(mode)
				}
				sites[0].publish(3)
				eventually(t, "everybody is alone", func() bool { return all(sites, func(s *site) bool { return len(s.federation.Members()) == 1 }) })
				if slices.ContainsFunc(sites[1:], func(s *site) bool { return s.believes("east", 3) }) {
					t.Fatal("the cut did not take effect")
				}
				for _, s := range sites {
					s.relay.set(pass)
				}
				news := eventually(t, "what was published during the cut is everywhere", func() bool {
					return all(sites, func(s *site) bool { return s.believes("east", 3) })
				})
				members := news + eventuallyMembers(t, sites)
				t.Logf("news after the heal: %v; all members again: %v", news, members)
				if members > 5*time.Second {
					t.Errorf("all members again after %v", members)
				}
			})
		})
	}
}

func TestShortCutLosesNoEdge(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		sites := startAll(w, "east", "west")
		for _, s := range sites {
			s.relay.set(swallow)
		}
		sites[0].publish(2)
		eventually(t, "a connection was given up", func() bool { return !sites[0].federation.transport.has(sites[2].federation.Instance().String()) })
		for _, s := range sites {
			s.relay.set(pass)
		}
		took := eventually(t, "the edge is everywhere", func() bool { return all(sites, func(s *site) bool { return s.believes("east", 2) }) })
		if took > 2*time.Second {
			t.Errorf("the edge came %v after a short cut", took)
		}
	})
}

func TestRestartedGatewayReplacesWhatItSaid(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		w.add("east", "gw-1")
		w.add("west", "gw-1")
		relays, gateways := w.relays(), w.all()
		west := w.start(gateways[1], relays[gateways[1]])
		dead := w.start(gateways[0], relays[gateways[0]])
		dead.publish(9)
		eventually(t, "the first life is heard", func() bool { return west.believes("east", 9) })
		dead.kill()
		dead.relay.set(pass)
		alive := w.start(gateways[0], dead.relay)
		alive.publish(1)
		took := eventually(t, "the second life replaces the first", func() bool { return west.believes("east", 1) })
		if took > ledger.Silence+time.Second {
			t.Errorf("the second life was believed after %v", took)
		}
		eventually(t, "the first is forgotten", func() bool { return west.status(dead.federation.Instance()).Gateway == "" })
	})
}

// Two processes of one gateway on one address, as during a hand-over: both are
// heard, neither takes anything from the other, and nobody asks for more than
// differs.
func TestTwoInstancesOfOneGatewayLiveSideBySide(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		sites := startAll(w, "east", "west", "north")
		old := sites[2]
		old.publish(5)
		eventually(t, "the old one is heard", func() bool { return all(sites, func(s *site) bool { return s.believes("west", 5) }) })
		young := w.start(old.Gateway, old.relay) // new connections lead to it; those to the old one stay
		everybody := append(slices.Clone(sites), young)
		young.publish(5)
		live := func(s *site, of *site) bool {
			return s == of || s.status(of.federation.Instance()).Phase == ledger.Live
		}
		others := slices.DeleteFunc(slices.Clone(everybody), func(s *site) bool { return s == old || s == young })
		eventually(t, "both are believed", func() bool { return all(others, func(s *site) bool { return live(s, old) && live(s, young) }) })
		eventually(t, "both are members", func() bool {
			return all(others, func(s *site) bool {
				return s.holdsAlive(old) && s.holdsAlive(young) && young.holdsAlive(s) && old.holdsAlive(s)
			})
		})
		before := sent(everybody)
		for second := range 30 {
			time.Sleep(time.Second)
			for _, s := range others {
				if !live(s, old) || !live(s, young) {
					t.Fatalf("after %d s %s/%s believes old %v, young %v", second, s.Network, s.Name, s.status(old.federation.Instance()).Phase, s.status(young.federation.Instance()).Phase)
				}
				if !s.holdsAlive(old) || !s.holdsAlive(young) {
					t.Fatalf("after %d s one of both is no member for %s/%s", second, s.Network, s.Name)
				}
				if !live(young, s) {
					t.Fatalf("after %d s the young one does not believe %s/%s", second, s.Network, s.Name)
				}
			}
		}
		// A heartbeat of some 250 bytes every 2 s to each of the others from each of
		// seven, an introduction now and then, digests of 30 bytes for each instance.
		if rate := (sent(everybody) - before) / 30 / float64(len(everybody)); rate > 3000 {
			t.Errorf("each sends %.0f bytes/s with nothing to say: they repeat themselves", rate)
		} else {
			t.Logf("each sends %.0f bytes/s with nothing to say", rate)
		}
		for _, s := range []*site{old, young} {
			for n := range uint32(3) {
				old.publish(n)
				young.publish(n)
				eventually(t, "an edge of both is believed", func() bool { return all(others, func(o *site) bool { return o.believes("west", n) }) })
				time.Sleep(time.Second)
			}
			_ = s
		}
		old.stop()
		young.publish(7)
		took := eventually(t, "the young one alone counts", func() bool {
			return all(others, func(s *site) bool {
				return s.believes("west", 7) && s.status(old.federation.Instance()).Phase != ledger.Live
			})
		})
		if took > ledger.Silence+3*time.Second {
			t.Errorf("the old one counted for %v after its end", took)
		}
	})
}

func sent(sites []*site) (sum float64) {
	for _, s := range sites {
		for _, kind := range []string{"packet", "stream"} {
			sum += counted(s.metrics.Bytes.WithLabelValues(kind))
		}
	}
	return sum
}

// More than fits a packet goes by chunks on a connection of its own.
func TestALargeStateComesByBulk(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		sites := startAll(w, "east", "west")
		var records []record.Record
		for n := range 5000 {
			records = append(records, record.HealthRecord(fmt.Sprintf("service-%d.default.svc.cluster.local", n), 80, record.Health{Ready: 10, Healthy: 9, ReadyCapacity: 10, HealthyCapacity: 9}))
		}
		sites[0].federation.Publish(records)
		took := eventually(t, "all of it is everywhere", func() bool {
			return all(sites[1:], func(s *site) bool {
				st := s.status(sites[0].federation.Instance())
				return st.Complete && st.Records == 5000
			})
		})
		t.Logf("5 000 records after %v", took)
		if counted(sites[0].metrics.Bytes.WithLabelValues("stream")) == 0 {
			t.Error("none of it went by a connection for bulk")
		}
	})
}

func TestOthersAreAskedForWhatTheyHoldOfTheDead(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		sites := startAll(w, "east", "west")
		sites[0].publish(4)
		eventually(t, "everybody knows", func() bool { return all(sites, func(s *site) bool { return s.believes("east", 4) }) })
		sites[0].kill()
		sites[1].kill()
		fresh := w.start(sites[3].Gateway, sites[3].restart())
		// Nobody vouches for east towards a reader that has just started: unknown, which is usable.
		eventually(t, "it knows of the instance", func() bool { return fresh.status(sites[0].federation.Instance()).Complete })
		if _, known := fresh.health("east"); known {
			t.Error("a reader believes an instance that it has never heard answer")
		}
	})
}

func (s *site) restart() *relay {
	s.kill()
	s.relay.set(pass)
	return s.relay
}

func TestUnlinkedNetworkIsForgotten(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		sites := startAll(w, "east", "west")
		sites[0].publish(4)
		eventually(t, "everybody knows", func() bool { return all(sites, func(s *site) bool { return s.believes("east", 4) }) })
		w.unlink("east")
		eventually(t, "west knows nothing of it", func() bool {
			_, known := sites[2].health("east")
			return !known && len(sites[2].federation.Members()) == 2
		})
		if rejected(sites[2].metrics, "network_unknown_network") == 0 {
			eventually(t, "what it goes on to say is refused and counted", func() bool { return rejected(sites[2].metrics, "network_unknown_network") > 0 })
		}
	})
}

// A key is replaced while everything goes on: the others know both, the network
// changes the one that signs, the others forget the old one.
func TestRotatedKeyCertifiesRunningGateways(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		sites := startAll(w, "east", "west")
		sites[0].publish(4)
		eventually(t, "everybody knows", func() bool { return all(sites, func(s *site) bool { return s.believes("east", 4) }) })
		next := w.link("east")
		time.Sleep(15 * time.Second)
		w.mu.Lock()
		w.keys["east"] = next
		w.mu.Unlock()
		time.Sleep(15 * time.Second)
		w.unlink("east")
		w.mu.Lock()
		w.known["east"] = []publicKey{next.Public()}
		w.mu.Unlock()
		for range 60 {
			time.Sleep(time.Second)
			if !sites[2].believes("east", 4) || len(sites[2].federation.Members()) != 4 {
				t.Fatalf("west believes east no more: members %v", sites[2].federation.Members())
			}
		}
	})
}

func TestCertificateIsRenewed(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		w.add("east", "gw-1")
		w.add("west", "gw-1")
		relays := w.relays()
		var sites []*site
		for _, g := range w.all() {
			sites = append(sites, w.start(g, relays[g], func(c *Config) {
				c.timing = defaultTiming
				c.timing.lifetime = 4 * time.Minute
			}))
		}
		sites[0].publish(4)
		eventually(t, "it is heard", func() bool { return sites[1].believes("east", 4) })
		for range 15 { // a certificate, and the tolerance for clocks, end in 9
			time.Sleep(time.Minute)
			if !sites[1].believes("east", 4) {
				t.Fatal("no longer believed")
			}
		}
	})
}

func TestNewNamesWhatIsMissing(t *testing.T) {
	if _, err := New(Config{Name: "gw-1"}); err == nil || !strings.Contains(err.Error(), `network ""`) {
		t.Errorf("got %v", err)
	}
}
