package gossip

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/internal/meshtest/trust"
)

// A gateway starts again. Network north, which is linked, is the first to tell it what
// west's gateway said, with a certificate of north's own for that instance.
func TestALinkedNetworkCannotTakeAThirdOnesGateway(t *testing.T) {
	for name, steals := range map[string]bool{"with a certificate of its own": true, "with west's certificate": false} {
		t.Run(name, func(t *testing.T) { relayBefore(t, steals) })
	}
}

func relayBefore(t *testing.T, steals bool) {
	simulated(t, func(t *testing.T, w *world) {
		w.add("east", "gw-1")
		w.add("west", "gw-1")
		w.add("north", "gw-1")
		relays, gateways := w.relays(), w.all()
		reader, origin := w.start(gateways[0], relays[gateways[0]]), w.start(gateways[1], relays[gateways[1]])
		origin.publish(10)
		eventually(t, "it is heard", func() bool { return reader.believes("west", 10) })
		var c *federationpb.Chunk
		reader.federation.Read(func(l *ledger.Ledger) { c = l.Chunk(origin.federation.Instance(), &record.Hashes{}) })
		if steals {
			c.Statement.Certificate = trust.Adopted(t, w.keys["north"], "north", "gw-1", c.Statement.Certificate)
		}
		stolen, err := proto.Marshal(&federationpb.Message{Message: &federationpb.Message_Chunk{Chunk: c}})
		if err != nil {
			t.Fatal(err)
		}
		again := reader.restart()
		relays[gateways[1]].set(stall) // north is a little faster
		again.set(stall)
		next := w.start(gateways[0], again)
		conn := w.raw(next, "gateway-north")
		by, hello := w.hello(conn, "north", "gw-1")
		conn.Write(append(hello, said(by, stolen)...))
		if taken := func() bool { return next.status(origin.federation.Instance()).Network != "" }; !steals {
			eventually(t, "it is taken", taken)
		} else if time.Sleep(time.Second); taken() {
			t.Errorf("it is taken, as of network %q", next.status(origin.federation.Instance()).Network)
		}
		conn.Close() // and is not heard any more
		relays[gateways[1]].set(pass)
		again.set(pass)
		time.Sleep(5 * time.Minute)
		origin.publish(4)
		time.Sleep(time.Minute)
		st := next.status(origin.federation.Instance())
		t.Logf("the instance is %s of network %q, gateway %q, heard %v ago; members %v", st.Phase, st.Network, st.Gateway, time.Since(st.Heard), next.federation.Members())
		if h, ok := next.health("west"); !ok || h.Healthy != 4 {
			t.Errorf("6 minutes after both reach each other the reader believes of west: %+v, %v; want 4 healthy", h, ok)
		}
		if h, ok := next.health("north"); ok {
			t.Errorf("and of north, which has said nothing: %d healthy", h.Healthy)
		}
	})
}
