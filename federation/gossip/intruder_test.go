package gossip

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"net"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/isthmus-mesh/isthmus/federation/antientropy"
	"github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/internal/link"
)

// raw attaches to s without a gateway of its own.
func (w *world) raw(s *site, as string) *tls.Conn {
	w.t.Helper()
	conn, err := link.Dial(w.dial).TLS(context.Background(), w.identity, workload(as), s.Identity, s.listener.Addr().String(), ALPN, 5*time.Second)
	if err != nil {
		w.t.Fatal(err)
	}
	return conn
}

// introduction begins a connection for packets in the name of an instance, proving
// nothing.
func introduction(network, gateway string, instance []byte) []byte {
	return introduce(&federationpb.Introduction{Network: network, Gateway: gateway, Instance: instance})
}

func introduce(m *federationpb.Introduction) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return link.AppendFrame([]byte{kindPacket}, b)
}

// certified draws an instance that key vouches for.
func (w *world) certified(key networkkey.Private, network, gateway string) *networkkey.Instance {
	w.t.Helper()
	i, err := networkkey.NewInstance(rand.Reader)
	if err == nil {
		err = key.Certify(i, network, gateway, time.Now(), time.Hour)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return i
}

// proof is the introduction of an instance on raw, as its gateway makes it.
func proof(raw *tls.Conn, network, gateway string, i *networkkey.Instance) *federationpb.Introduction {
	binding, err := (&conn{Conn: raw}).binding(true)
	if err != nil {
		panic(err)
	}
	id := i.ID()
	return &federationpb.Introduction{Network: network, Gateway: gateway, Instance: id[:], Certificate: i.Certificate(), Signature: i.SignIntroduction(binding)}
}

// hello introduces a new instance on raw that its network has certified.
func (w *world) hello(raw *tls.Conn, network, gateway string) (record.Instance, []byte) {
	w.t.Helper()
	i := w.certified(w.keys[network], network, gateway)
	return i.ID(), introduce(proof(raw, network, gateway, i))
}

// said is message as memberlist carries it, in a packet of an instance.
func said(by record.Instance, message []byte) []byte {
	return link.AppendFrame(nil, append(append([]byte{typeUser}, by[:]...), message...))
}

func closed(conn net.Conn) bool {
	conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	_, err := conn.Read(make([]byte, 1))
	ne, timeout := err.(net.Error)
	return err != nil && !(timeout && ne.Timeout())
}

func TestIntrudersAreSentAwayAndCounted(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		sites := startAll(w, "east", "west")
		victim := sites[0]
		for _, c := range []struct {
			name, reason, as string
			bytes            []byte
		}{
			{"a node proxy", "identity", "nodeproxy", nil},
			{"unknown kind", "malformed", "gateway-west", []byte{9}},
			{"oversized introduction", "oversized", "gateway-west", []byte{kindPacket, 0xff, 0xff, 0xff, 0xff}},
			{"no introduction", "malformed", "gateway-west", link.AppendFrame([]byte{kindPacket}, []byte("\xff\xff\xff"))},
			{"short instance", "malformed", "gateway-west", introduction("west", "gw-1", []byte("short"))},
			{"a gateway of another network", "identity", "gateway-west", introduction("east", "gw-2", make([]byte, 16))},
			{"a gateway that nobody lists", "identity", "gateway-west", introduction("west", "gw-9", make([]byte, 16))},
			{"a gateway that proves nothing", "identity", "gateway-west", introduction("west", "gw-1", make([]byte, 16))},
			{"oversized message", "oversized", "gateway-west", []byte{0xff, 0xff, 0xff, 0xff}},
		} {
			before := rejected(victim.metrics, c.reason)
			conn := w.raw(victim, c.as)
			if c.name == "oversized message" {
				_, hello := w.hello(conn, "west", "gw-1")
				conn.Write(hello)
			}
			conn.Write(c.bytes)
			eventually(t, c.name+" is counted", func() bool { return rejected(victim.metrics, c.reason) > before })
			if c.name == "oversized message" {
				if _, err := link.ReadFrame(conn, maxIntroduction, nil); err != nil {
					t.Fatalf("%s: no introduction in return: %v", c.name, err)
				}
				for {
					if _, err := link.ReadFrame(conn, antientropy.MaxMessage, nil); err != nil {
						break
					}
				}
			}
			if !closed(conn) {
				t.Errorf("%s: the connection goes on", c.name)
			}
			conn.Close()
		}
		sites[2].publish(4)
		eventually(t, "the others go on", func() bool { return victim.believes("west", 4) && sites[1].believes("west", 4) })
	})
}

// Whoever speaks for a network without its key is refused, whatever TLS identity
// it has; a connection that carried such a message goes on.
func TestStatementsWithoutTheNetworksKeyAreRefused(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		sites := startAll(w, "east", "west")
		victim := sites[0]
		sites[2].publish(10)
		eventually(t, "the rightful word is heard", func() bool { return victim.believes("west", 10) })
		forge := func(key networkkey.Private) []byte {
			i := w.certified(key, "west", "gw-1")
			p := antientropy.NewPublisher(i, 100, 1<<20)
			p.Certified(time.Now())
			p.Synchronise()
			if err := p.Put(health(0), time.Now()); err != nil {
				t.Fatal(err)
			}
			s, err := p.Statement(1, func(record.Instance) bool { return false }, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			b, err := proto.Marshal(&federationpb.Message{Message: &federationpb.Message_Statement{Statement: s.Statement}})
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		stranger, err := networkkey.Generate(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		spoiled := forge(w.keys["west"])
		spoiled[len(spoiled)/3] ^= 1
		for _, c := range []struct {
			name, reason string
			message      []byte
		}{
			{"signed by nobody's key", "network_wrong_key", forge(stranger)},
			{"signed by another network's key", "network_wrong_key", forge(w.keys["east"])},
			{"changed on the way", "signature", spoiled},
			{"garbage", "malformed", []byte("\xff\xff garbage")},
		} {
			total := func() int {
				n := rejected(victim.metrics, c.reason)
				if c.name == "changed on the way" {
					n += rejected(victim.metrics, "malformed") // where the bit went
				}
				return n
			}
			before := total()
			conn := w.raw(victim, "gateway-west")
			by, hello := w.hello(conn, "west", "gw-1")
			conn.Write(append(hello, said(by, c.message)...))
			eventually(t, c.name+" is counted as "+c.reason, func() bool { return total() > before })
			if h, _ := victim.health("west"); h.Healthy != 10 || len(h.Deliveries) != 1 {
				t.Errorf("%s: the victim believes %+v", c.name, h)
			}
			conn.Close()
		}
	})
}

// A signed statement that was recorded and is played to a reader that has
// restarted is worth nothing: it answers no number of that reader's.
func TestReplayAfterTheReaderRestartsIsWorthNothing(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		w.add("east", "gw-1")
		w.add("west", "gw-1")
		relays, gateways := w.relays(), w.all()
		reader, origin := w.start(gateways[0], relays[gateways[0]]), w.start(gateways[1], relays[gateways[1]])
		origin.publish(0) // all are sick
		eventually(t, "it is heard", func() bool { return reader.believes("west", 0) })
		var recorded []byte
		reader.federation.Read(func(l *ledger.Ledger) {
			b, err := proto.Marshal(&federationpb.Message{Message: &federationpb.Message_Chunk{Chunk: l.Chunk(origin.federation.Instance(), &record.Hashes{})}})
			if err != nil {
				t.Fatal(err)
			}
			recorded = b
		})
		origin.kill()
		again := w.start(gateways[0], reader.restart())
		conn := w.raw(again, "gateway-west")
		by, hello := w.hello(conn, "west", "gw-1")
		conn.Write(append(hello, said(by, recorded)...))
		eventually(t, "the replay is held", func() bool { return again.status(origin.federation.Instance()).Complete })
		for range 100 {
			if h, known := again.health("west"); known {
				t.Fatalf("the replay is believed: %+v", h)
			}
			time.Sleep(100 * time.Millisecond)
		}
		conn.Close()
	})
}
