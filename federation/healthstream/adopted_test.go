package healthstream

import (
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/internal/meshtest/trust"
)

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
		v.Certificate = trust.Adopted(t, evil, "evil", "gw-evil", v.Certificate)
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
