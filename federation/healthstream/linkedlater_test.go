package healthstream

import (
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/networkkey"
)

// A network that is linked while streams are up withdraws as any other one.
func TestANetworkThatIsLinkedLaterWithdrawsItsExports(t *testing.T) {
	for name, first := range map[string]networkkey.Known{"linked from the start": {"east": {keyOf(t, "east").Public()}}, "linked later": nil} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				key := keyOf(t, "east")
				gw := w.gateway("gw-1", func(c *ServerConfig) { c.Holds = func() []string { return []string{"east"} } })
				east := w.speaker("east", "gw-e", "", key)
				east.say(exportOf(shopID))
				east.say(healthOf(9))
				gw.say(service, shareFrom(east.voice()))
				n, _ := w.linked("node-1", first)
				n.attached(1)
				time.Sleep(5 * time.Second) // the gateway says what it holds
				n.SetKnown(networkkey.Known{"east": {key.Public()}})
				n.offers("linked", shopID)
				east.withdraw(exportOf())
				gw.say(service, shareFrom(east.voice()))
				n.offers("when it is withdrawn")
				time.Sleep(time.Hour)
				n.offers("an hour after it was withdrawn")
				gw.say(service)
				time.Sleep(time.Hour)
				n.offers("an hour after nothing of that network is left")
			})
		})
	}
}
