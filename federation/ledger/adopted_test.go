package ledger

import (
	"strings"
	"testing"
	"time"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/internal/meshtest/trust"
)

// East brings what west's gateway has said before that comes itself, to a reader that has
// just started, with a certificate of its own for that gateway's key.
func TestANetworkCannotCertifyAnInstanceOfAThirdOne(t *testing.T) {
	l := newLedger(epoch) // it knows west and east
	gw := newSpeaker(t, "west", "gw-1")
	first := gw.say(export(80), health(10, 10))
	// east relays west's statement, unchanged, with a certificate by its own key.
	stolen := &pb.SignedStatement{Statement: first.Statement, Signature: first.Signature, Certificate: trust.Adopted(t, networkKey("east"), "east", "gw-evil", first.Certificate)}
	if o, err := l.Offer(stolen, epoch); err == nil {
		t.Errorf("it is taken for the word of network %q", o.Network)
	} else if !strings.Contains(err.Error(), "not of "+gw.key.ID().String()) {
		t.Errorf("%v does not say what is wrong", err)
	}
	offer(t, l, first, epoch)
	now := epoch
	for range 30 { // a minute of heartbeats of the real one, with its real certificate
		now = now.Add(2 * time.Second)
		offer(t, l, gw.say(), now)
		l.Draw(number, now)
	}
	if _, ok := l.Export("west", hello); !ok {
		t.Errorf("nothing is known of what west exports, whose gateway is heard every 2 s")
	}
	if s, ok := l.Export("east", hello); ok {
		t.Errorf("east exports west's service by west's word: %+v", s)
	}
	if h, ok := l.Health("west", hello, 80); !ok {
		t.Errorf("health of west: %+v, %v", h, ok)
	}
	for _, s := range l.Status() {
		if s.Network != "west" {
			t.Errorf("an instance of network %q is held: %+v", s.Network, s)
		}
	}
}
