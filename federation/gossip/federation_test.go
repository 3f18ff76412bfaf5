package gossip

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/isthmus-mesh/isthmus/federation"
)

func TestGatewaysConverge(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		_, sites := startAll(w, "east", "west", "north")
		for i, s := range sites {
			s.publishAged(uint32(i), time.Duration(len(sites)-i)*time.Minute)
		}
		// Of two gateways of one network, the second has the younger evidence.
		want := map[string]uint32{"east": 1, "west": 3, "north": 5}
		eventually(t, "everybody believes the same", func() bool {
			for _, s := range sites {
				for network, healthy := range want {
					if !s.believes(network, healthy) {
						return false
					}
				}
			}
			return true
		})
		for _, s := range sites {
			<-s.federation.Synced()
			eventually(t, "every record is everywhere", func() bool { return s.ledger.Len() == len(sites) })
		}
	})
}

func TestEdgeReachesAllAtOnce(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		_, sites := startAll(w, "east", "west", "north")
		var took []time.Duration
		for i := range uint32(20) {
			sites[0].publish(i % 10)
			took = append(took, eventually(t, "the edge is everywhere", func() bool {
				return !slices.ContainsFunc(sites, func(s *site) bool { return !s.believes("east", i%10) })
			}))
		}
		slices.Sort(took)
		t.Logf("edge to all of %d gateways: median %v, worst %v", len(sites), took[len(took)/2], took[len(took)-1])
	})
}

func TestStateOutlivesTheEdge(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		w.add("east", "gw-1")
		w.add("west", "gw-1")
		late := w.add("north", "gw-1")
		relays := w.relays()
		gateways := w.all()
		east := w.start(gateways[0], relays[gateways[0]], 1, nil)
		west := w.start(gateways[1], relays[gateways[1]], 1, nil)
		east.publishAged(4, time.Minute)
		eventually(t, "west has the edge", func() bool { return west.believes("east", 4) })
		age := func(s *site) time.Duration {
			_, age, _ := s.ledger.Summary("east", service, 80)
			return age
		}
		north := w.start(late, relays[late], 1, nil)
		<-north.federation.Synced()
		eventually(t, "north has the state", func() bool { return north.believes("east", 4) })
		// Only the time on the wire may be missing.
		if n, e := age(north), age(east); n+time.Second < e {
			t.Errorf("evidence got younger on the way: north %v, east %v", n, e)
		}
		// East falls silent: what west relays is east's own signed word.
		east.kill()
		fresh := w.start(gateways[1], west.relayAfterKill(t), 2, nil)
		eventually(t, "a fresh gateway learns of the dead one by relay", func() bool { return fresh.believes("east", 4) })
	})
}

// relayAfterKill ends s and returns its relay, open again.
func (s *site) relayAfterKill(t *testing.T) *relay {
	t.Helper()
	s.kill()
	s.relay.set(pass)
	return s.relay
}

func TestHealsAfterBlackHole(t *testing.T) {
	for _, mode := range []relayMode{stall, swallow} {
		t.Run(fmt.Sprint(mode), func(t *testing.T) {
			simulated(t, func(t *testing.T, w *world) {
				_, sites := startAll(w, "east", "west", "north")
				for _, s := range sites {
					s.relay.set(mode)
				}
				sites[0].publish(3)
				eventually(t, "everybody is alone", func() bool {
					return !slices.ContainsFunc(sites, func(s *site) bool { return len(s.federation.Members()) != 1 })
				})
				if slices.ContainsFunc(sites[1:], func(s *site) bool { return s.believes("east", 3) }) {
					t.Fatal("the cut did not take effect")
				}
				for _, s := range sites {
					s.relay.set(pass)
				}
				news := eventually(t, "what was published during the cut is everywhere", func() bool {
					return !slices.ContainsFunc(sites, func(s *site) bool { return !s.believes("east", 3) })
				})
				t.Logf("news after the heal: %v; all members again: %v", news, news+eventuallyMembers(t, sites))
			})
		})
	}
}

func TestShortCutLosesNoEdge(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		_, sites := startAll(w, "east", "west")
		for _, s := range sites {
			s.relay.set(swallow)
		}
		sites[0].publish(2)
		eventually(t, "a lane has noticed", func() bool { return sites[0].lanesDown() })
		for _, s := range sites {
			s.relay.set(pass)
		}
		took := eventually(t, "the edge is everywhere", func() bool {
			return !slices.ContainsFunc(sites, func(s *site) bool { return !s.believes("east", 2) })
		})
		t.Logf("edge after a short cut: %v", took)
	})
}

// lanesDown says whether packets have been waiting for a connection.
func (s *site) lanesDown() bool {
	s.federation.transport.mu.Lock()
	defer s.federation.transport.mu.Unlock()
	for _, l := range s.federation.transport.lanes {
		if len(l.queue) > 0 {
			return true
		}
	}
	return false
}

func TestRestartedGatewayReplacesWhatItSaid(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		_, sites := startAll(w, "east", "west")
		dead := sites[0]
		dead.publish(1)
		eventually(t, "the first life is heard", func() bool { return sites[3].believes("east", 1) })
		dead.kill()
		dead.relay.set(pass)
		alive := w.start(dead.Gateway, dead.relay, 2, nil)
		alive.federation.Publish(federation.Record{Summary: &federation.SummaryFact{Service: "other", Port: 80, Ready: 1, Healthy: 1}})
		sites[0] = alive
		eventually(t, "the second life replaces the first", func() bool {
			return !slices.ContainsFunc(sites, func(s *site) bool {
				_, _, old := s.ledger.Summary("east", service, 80)
				_, _, fresh := s.ledger.Summary("east", "other", 80)
				return old || !fresh
			})
		})
		eventuallyMembers(t, sites)
	})
}

func TestRestartWithLowerIncarnationIsOutlived(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		_, sites := startAll(w, "east", "west")
		dead := sites[0]
		dead.kill()
		dead.relay.set(pass)
		first := w.start(dead.Gateway, dead.relay, 1000, nil)
		first.publish(1)
		eventually(t, "the first life is heard", func() bool { return sites[3].believes("east", 1) })
		first.kill()
		first.relay.set(pass)
		// The clock went back: the new life starts with a lower incarnation.
		second := w.start(dead.Gateway, dead.relay, 900, nil)
		second.publish(7)
		eventually(t, "the second life is believed", func() bool { return sites[3].believes("east", 7) })
	})
}

func TestRefreshKeepsAgeAndForestallsDecay(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		w.add("east", "gw-1")
		w.add("west", "gw-1")
		relays, gateways := w.relays(), w.all()
		quick := func(c *Config) { c.RefreshInterval = 50 * time.Millisecond }
		east := w.start(gateways[0], relays[gateways[0]], 1, quick)
		west := w.start(gateways[1], relays[gateways[1]], 1, quick)
		start := time.Now()
		east.publish(9)
		eventually(t, "several refreshes have arrived", func() bool {
			r := west.ledger.Subject(federation.SummarySubject("east", service, 80))
			return len(r) == 1 && r[0].Sequence > 5
		})
		r := west.ledger.Subject(federation.SummarySubject("east", service, 80))[0]
		if atLeast := time.Since(start) - 200*time.Millisecond; r.Age < atLeast {
			t.Errorf("evidence is %v old, want about %v: a refresh made it younger", r.Age, atLeast)
		}
		if r.Silence >= r.Age {
			t.Errorf("silence %v, age %v: the refresh did not vouch", r.Silence, r.Age)
		}
	})
}

func TestForgedAndForeignEnvelopesAreRefused(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		_, sites := startAll(w, "east", "west")
		attacker, victim := sites[0], sites[2]
		svid := func(name string) *identitySVID { return getSVID(t, w, name) }
		about := func(network, origin string, incarnation, sequence uint64, healthy uint32) []federation.Record {
			return []federation.Record{{
				Network: network, Origin: federation.Origin{Name: origin, Incarnation: incarnation}, Sequence: sequence,
				Summary: &federation.SummaryFact{Service: service, Port: 80, Ready: 10, Healthy: healthy},
			}}
		}
		send := func(id *identitySVID, records []federation.Record, spoil func(*envelope)) {
			t.Helper()
			e, err := seal(id, records)
			if err != nil {
				t.Fatal(err)
			}
			if spoil != nil {
				spoil(e)
			}
			b, err := marshalEnvelopes(e)
			if err != nil {
				t.Fatal(err)
			}
			attacker.sendRaw(t, victim, b)
		}
		for _, c := range []struct {
			name, reason string
			signer       string
			records      []federation.Record
			spoil        func(*envelope)
		}{
			{"another network's record", "foreign", "gateway-east", about("north", "east/gw-1", 5, 1, 0), nil},
			{"the victim's own network", "foreign", "gateway-east", about("west", "west/gw-2", 5, 1, 0), nil},
			{"signed by a node proxy", "foreign", "nodeproxy", about("east", "east/gw-1", 5, 1, 0), nil},
			{"payload changed on the way", "signature", "gateway-east", about("east", "east/gw-1", 5, 1, 0), func(e *envelope) { e.Payload[len(e.Payload)-1] ^= 1 }},
			{"no chain", "signature", "gateway-east", about("east", "east/gw-1", 5, 1, 0), func(e *envelope) { e.Chain = nil }},
			{"chain of somebody else", "signature", "gateway-east", about("east", "east/gw-1", 5, 1, 0), func(e *envelope) { e.Chain = [][]byte{svid("gateway-west").Certificates[0].Raw} }},
		} {
			before := rejected(victim.metrics, c.reason)
			send(svid(c.signer), c.records, c.spoil)
			eventually(t, c.name+" is counted as "+c.reason, func() bool { return rejected(victim.metrics, c.reason) > before })
		}
		before := rejected(victim.metrics, "malformed")
		attacker.sendRaw(t, victim, []byte("\xff\xff not an envelope"))
		eventually(t, "garbage is counted", func() bool { return rejected(victim.metrics, "malformed") > before })
		if got := victim.ledger.Records(); len(got) != 0 {
			t.Fatalf("the victim believed %v", got)
		}

		// The attacker's own word is heard; replayed out of order it changes nothing.
		send(svid("gateway-east"), about("east", "east/gw-1", 5, 2, 6), nil)
		eventually(t, "the rightful record is believed", func() bool { return victim.believes("east", 6) })
		older := counter(victim.metrics, federation.Older)
		send(svid("gateway-east"), about("east", "east/gw-1", 5, 1, 0), nil)
		send(svid("gateway-east"), about("east", "east/gw-1", 4, 99, 0), nil)
		eventually(t, "both replays are counted as older", func() bool { return counter(victim.metrics, federation.Older) >= older+2 })
		if !victim.believes("east", 6) {
			t.Error("a replay changed the belief")
		}
	})
}

// sendRaw sends b as gossip from s.
func (s *site) sendRaw(t *testing.T, to *site, b []byte) {
	t.Helper()
	a := memberlist.Address{Name: federation.OriginName(to.Network, to.Name), Addr: to.Federation.String()}
	if err := s.federation.list.Load().SendToAddress(a, b); err != nil {
		t.Fatal(err)
	}
}

func TestLeavingIsHeard(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		_, sites := startAll(w, "east", "west")
		sites[0].stop()
		took := eventually(t, "the others know", func() bool {
			return !slices.ContainsFunc(sites[1:], func(s *site) bool { return len(s.federation.Members()) != 3 })
		})
		t.Logf("farewell heard after %v", took)
	})
}

func TestNewNamesWhatIsMissing(t *testing.T) {
	if _, err := New(Config{Name: "gw-1"}); err == nil {
		t.Error("got no error")
	}
}
