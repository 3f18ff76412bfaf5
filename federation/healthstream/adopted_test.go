package healthstream

import (
	"crypto/ed25519"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
)

func adopted(t testing.TB, by networkkey.Private, network, gateway string, theirs []byte) []byte {
	t.Helper()
	var signed pb.SignedCertificate
	var c pb.Certificate
	if err := proto.Unmarshal(theirs, &signed); err != nil {
		t.Fatal(err)
	}
	if err := proto.Unmarshal(signed.GetCertificate(), &c); err != nil {
		t.Fatal(err)
	}
	c.Network, c.Gateway = network, gateway
	b, err := proto.Marshal(&c)
	if err != nil {
		t.Fatal(err)
	}
	out, err := proto.Marshal(&pb.SignedCertificate{Certificate: b, Signature: ed25519.Sign(by.Ed25519(), append([]byte("isthmus-instance/1\x00"), b...))})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// One of two gateways of the own network was told first by network evil that east's
// gateway is evil's. The other one tells the truth, and is not believed.
func TestANetworkCannotCertifyAThirdOnesInstanceAtNodeProxies(t *testing.T) {
	inBubble(t, func(w *world) {
		key, evil := keyOf(t, "east"), keyOf(t, "evil")
		misled := w.gateway("gw-1", nil)
		east := w.speaker("east", "gw-e", "", key)
		east.say(exportOf(shopID))
		east.say(healthOf(9))
		v := east.voice()
		v.Certificate = adopted(t, evil, "evil", "gw-evil", v.Certificate)
		misled.say(service, Share{Network: "evil", Instances: []Voice{v}})
		n, _ := w.linked("node-1", networkkey.Known{"east": {key.Public()}, "evil": {evil.Public()}})
		n.attached(1)
		honest := w.gateway("gw-2", nil)
		honest.say(service, shareFrom(east.voice()))
		n.attached(2)
		time.Sleep(time.Minute)
		n.offers("a minute after an honest gateway has brought east's own certificate and records", shopID)
	})
}
