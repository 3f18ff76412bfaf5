package healthstream

import (
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation/networkkey"
)

// A gateway of the own network that is compromised repeats what an instance has signed
// that has long ended. That takes nothing from what its sibling tells of those that live.
func TestARetiredInstanceThatOneGatewayRepeatsTakesNothingFromAnExport(t *testing.T) {
	inBubble(t, func(w *world) {
		key := keyOf(t, "east")
		rogue, honest := w.gateway("gw-1", nil), w.gateway("gw-2", nil)
		retired := w.speaker("east", "gw-e", "before", key)
		retired.say(exportOf(spiffeid.RequireFromString("spiffe://cluster.local/ns/default/sa/shop-before")))
		time.Sleep(time.Hour)
		east := w.speaker("east", "gw-e", "", key)
		east.say(exportOf(shopID))
		east.say(healthOf(9))
		n, _ := w.linked("node-1", networkkey.Known{"east": {key.Public()}})
		n.attached(2)
		honest.say(service, shareFrom(east.voice()))
		n.offers("by the honest one", shopID)
		rogue.say(service, shareFrom(retired.voice()))
		n.offers("while the other one repeats an instance that has ended", shopID)
		time.Sleep(time.Hour)
		n.offers("an hour later", shopID)
	})
}
