package healthstream

import (
	"fmt"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/networkkey"
)

// One of two gateways of another network starts again and again: each of its instances
// is another one. The other gateway, which works all the time, is not forgotten for it.
func TestAGatewayThatStartsAgainAndAgainDoesNotDisplaceItsSibling(t *testing.T) {
	inBubble(t, func(w *world) {
		key := keyOf(t, "east")
		gw := w.gateway("gw-1", func(c *ServerConfig) { c.Holds = func() []string { return []string{"east"} } })
		well := w.speaker("east", "gw-well", "", key)
		well.say(exportOf(shopID))
		well.say(healthOf(9))
		n, _ := w.linked("node-1", networkkey.Known{"east": {key.Public()}})
		n.attached(1)
		gw.say(service, shareFrom(well.voice()))
		n.offers("before", shopID)
		for i := range maxSpeakers {
			time.Sleep(5 * time.Minute) // the back-off of a crash loop
			ill := w.speaker("east", "gw-ill", fmt.Sprint(i), key)
			ill.say(exportOf(shopID))
			ill.say(healthOf(9))
			gw.say(service, shareFrom(well.voice(), ill.voice()))
			settle()
			gw.say(service, shareFrom(well.voice()))
		}
		for _, after := range []time.Duration{time.Second, time.Minute, time.Hour} {
			time.Sleep(after)
			n.offers(fmt.Sprintf("%v after the last start", after), shopID)
			names := map[string]int{}
			for _, g := range n.Gateways("east") {
				names[g.Name]++
			}
			if len(names) != 1 || names["gw-well"] != 1 {
				t.Errorf("%v after the last start, %v after its own: gateways of east: %v; want gw-well, which has worked all the time", after, maxSpeakers*5*time.Minute, names)
			}
		}
	})
}
