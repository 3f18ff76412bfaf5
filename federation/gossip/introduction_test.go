package gossip

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/internal/link"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// oneIdentity makes networks of one gateway each, all with one SPIFFE ID, as by the
// default of discovery, and starts the first two.
func (w *world) oneIdentity(networks ...string) (east, west *site) {
	w.t.Helper()
	for _, n := range networks {
		w.add(n, "gw-1").Identity = workload("gateway")
	}
	relays, gateways := w.relays(), w.all()
	east, west = w.start(gateways[0], relays[gateways[0]]), w.start(gateways[1], relays[gateways[1]])
	eventually(w.t, "east and west believe each other", func() bool { return len(east.federation.Members()) == 2 && len(west.federation.Members()) == 2 })
	return east, west
}

// answered says whether an introduction was taken, and answered.
func answered(raw *tls.Conn) bool {
	raw.SetReadDeadline(time.Now().Add(5 * time.Second))
	_, err := link.ReadFrame(raw, maxIntroduction, nil)
	return err == nil
}

// Where all gateways have one SPIFFE ID, a gateway of north that introduces itself as
// many instances of west's takes no place from west's own, which restarts.
func TestAGatewayCannotPartTwoOthersByIntroducingItselfAsOneOfThem(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		east, west := w.oneIdentity("east", "west", "north")
		west.kill()
		time.Sleep(4 * time.Second) // its connections are given up
		for range maxInstances {
			raw := w.raw(east, "gateway")
			i := w.certified(w.keys["north"], "north", "gw-1")
			id := i.ID()
			raw.Write(introduction("west", "gw-1", id[:]))
			answered(raw)
			w.wg.Go(func() { // stays for as long as it may
				defer raw.Close()
				for range 60 {
					if _, err := raw.Write(link.AppendFrame(nil, nil)); err != nil {
						return
					}
					time.Sleep(time.Second)
				}
			})
		}
		west = w.start(west.Gateway, west.restart())
		west.publish(3)
		took := eventually(t, "east believes west's gateway, which has restarted", func() bool { return east.believes("west", 3) })
		if took > 10*time.Second {
			t.Errorf("east believed west's gateway %v after its restart; %d connections were refused as full", took, rejected(east.metrics, "full"))
		}
	})
}

// Nobody is taken for an instance whose key it does not hold, whatever it has seen of
// it on other connections.
func TestAnIntroductionIsWorthNothingWithoutTheKeyOfItsInstance(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		east, west := w.oneIdentity("east", "west", "north")
		id := west.federation.Instance()
		own := east.federation.Instance()
		ack, err := proto.Marshal(&federationpb.Message{Message: &federationpb.Message_Ack{Ack: &federationpb.Ack{Instance: own[:], Count: 1 << 40}}})
		if err != nil {
			t.Fatal(err)
		}
		thief := w.certified(w.keys["north"], "north", "gw-1")
		stranger, err := networkkey.Generate(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		recorded := make(chan *federationpb.Introduction, 1)
		for _, c := range []struct {
			name, reason string
			forge        func(raw *tls.Conn) *federationpb.Introduction
		}{
			{"no proof", "identity", func(*tls.Conn) *federationpb.Introduction {
				return &federationpb.Introduction{Network: "west", Gateway: "gw-1", Instance: id[:]}
			}},
			{"what west has said to north, played to east", "identity", func(*tls.Conn) *federationpb.Introduction {
				raw := w.raw(west, "gateway")
				defer raw.Close()
				raw.Write(introduce(proof(raw, "north", "gw-1", thief)))
				b, err := link.ReadFrame(raw, maxIntroduction, nil)
				var m federationpb.Introduction
				if err != nil || proto.Unmarshal(b, &m) != nil || len(m.GetCertificate()) == 0 {
					t.Fatalf("west does not introduce itself: %v", err)
				}
				recorded <- &m
				return &m
			}},
			{"west's certificate and a signature of north's", "identity", func(raw *tls.Conn) *federationpb.Introduction {
				m := proof(raw, "west", "gw-1", thief)
				m.Instance, m.Certificate = id[:], (<-recorded).GetCertificate()
				return m
			}},
			{"the certificate of another gateway", "identity", func(raw *tls.Conn) *federationpb.Introduction { return proof(raw, "west", "gw-1", thief) }},
			{"a certificate by nobody's key", "network_wrong_key", func(raw *tls.Conn) *federationpb.Introduction {
				return proof(raw, "west", "gw-1", w.certified(stranger, "west", "gw-1"))
			}},
			{"the signature of the other end", "identity", func(raw *tls.Conn) *federationpb.Introduction {
				i := w.certified(w.keys["west"], "west", "gw-1")
				m := proof(raw, "west", "gw-1", i)
				binding, err := (&conn{Conn: raw}).binding(false)
				if err != nil {
					t.Fatal(err)
				}
				m.Signature = i.SignIntroduction(binding)
				return m
			}},
		} {
			before := rejected(east.metrics, c.reason)
			raw := w.raw(east, "gateway")
			m := c.forge(raw)
			raw.Write(append(introduce(m), said(record.Instance(m.GetInstance()), ack)...))
			if answered(raw) {
				t.Errorf("%s: a gateway of north was taken for one of west", c.name)
			}
			if rejected(east.metrics, c.reason) == before {
				t.Errorf("%s is not counted as %s", c.name, c.reason)
			}
			raw.Close()
		}
		raw := w.raw(east, "gateway")
		raw.Write(introduce(proof(raw, "north", "gw-1", thief)))
		if !answered(raw) {
			t.Error("under its own name north's gateway is refused")
		}
		raw.Close()
	})
}

// A gateway of before says so little that the reason for its refusal must be clear.
func TestAnIntroductionWithoutProofNamesTheRemedy(t *testing.T) {
	err := new(conn).proven(&federationpb.Introduction{Network: "west", Gateway: "gw-1"}, nil, time.Now())
	if err == nil || !strings.Contains(err.Error(), "update it") || reasonOf(err) != "identity" {
		t.Errorf("got %v (%s), want what to do, as identity", err, reasonOf(err))
	}
}

// A gateway that discovery, or the list of keys, has dropped is not told any more
// what happens, whoever has dialed.
func TestAGatewayThatIsNotListedAnyMoreIsSentAway(t *testing.T) {
	for _, by := range []string{"discovery", "keys"} {
		t.Run(by, func(t *testing.T) {
			simulated(t, func(t *testing.T, w *world) {
				w.add("east", "gw-1")
				w.add("west", "gw-1")
				relays, gateways := w.relays(), w.all()
				var removed atomic.Bool
				east := w.start(gateways[0], relays[gateways[0]], func(c *Config) {
					peers := c.Peers
					c.Peers = func() []*mesh.Gateway {
						if removed.Load() {
							return nil
						}
						return peers()
					}
				})
				west := w.start(gateways[1], relays[gateways[1]])
				eventually(t, "they believe each other", func() bool { return len(east.federation.Members()) == 2 && len(west.federation.Members()) == 2 })
				reason := "identity"
				if by == "discovery" {
					removed.Store(true)
				} else {
					reason = "network_unknown_network"
					w.unlink("west")
				}
				eventually(t, "it is sent away, and that is counted", func() bool {
					return !east.federation.transport.has(west.federation.Instance().String()) && rejected(east.metrics, reason) > 0
				})
				eventually(t, "it is no peer", func() bool {
					east.federation.mu.Lock()
					defer east.federation.mu.Unlock()
					return !east.federation.peers[west.federation.Instance()]
				})
				east.publish(7)
				time.Sleep(15 * time.Second)
				west.federation.Read(func(l *ledger.Ledger) {
					for e := range l.Entries(east.federation.Instance()) {
						if r, err := e.Decode(); err == nil && r.Health != nil && r.Health.Healthy == 7 {
							t.Error("it is told what east's pods do")
						}
					}
				})
			})
		})
	}
}

// The certificate that a peer has shown ends: it must prove itself anew. Whoever has
// dialed does so before that, while the connection the other way goes on.
func TestConnectionsEndWithTheCertificatesThatMadeThem(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		w.lasting(anHour)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		w.wg.Go(func() { w.identity.Run(ctx) }) // and are renewed before
		w.add("east", "gw-1")
		w.add("west", "gw-1")
		relays, gateways := w.relays(), w.all()
		east, west := w.start(gateways[0], relays[gateways[0]]), w.start(gateways[1], relays[gateways[1]])
		eventually(t, "they believe each other", func() bool { return len(east.federation.Members()) == 2 && len(west.federation.Members()) == 2 })
		conns := func() (out []*conn) {
			tr := east.federation.transport
			tr.mu.Lock()
			defer tr.mu.Unlock()
			for c := range tr.conns() {
				if c.kind == kindPacket {
					out = append(out, c)
				}
			}
			return out
		}
		eventually(t, "each has dialed", func() bool { return len(conns()) == 2 })
		first := conns()
		for _, c := range first {
			if left := time.Until(c.expiry); left <= 0 || left > anHour {
				t.Errorf("a connection is good for %v, and the SVID that made it for %v", left, anHour)
			}
		}
		peerless := 0
		for range int(anHour * 5 / 4 / time.Second) {
			time.Sleep(time.Second)
			if !east.federation.transport.has(west.federation.Instance().String()) {
				peerless++
			}
		}
		for _, c := range conns() {
			for _, old := range first {
				if c == old {
					t.Errorf("after %v a connection goes on that was made with an SVID of %v", anHour*5/4, anHour)
				}
			}
		}
		if peerless > 0 {
			t.Errorf("for %d s east and west were not connected", peerless)
		}
		west.publish(4)
		eventually(t, "they go on", func() bool { return east.believes("west", 4) })
	})
}
