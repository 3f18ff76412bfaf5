package healthstream

import (
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

// A rotation was finished without this node proxy: that a key is lacking is said for as
// long as it is, and no longer: neither when it has been added, nor when the gateway that
// the new key has certified has ended.
func TestALackingKeyIsSaidWhileItIsLacking(t *testing.T) {
	for name, mend := range map[string]func(n *node, gw *site, known networkkey.Known){
		"added": func(n *node, _ *site, known networkkey.Known) { n.SetKnown(known) },
		"ended": func(_ *node, gw *site, _ networkkey.Known) { gw.say(service); time.Sleep(unprovenFor) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				before, after := keyOf(t, "east"), keyOf(t, "east, next")
				gw := w.gateway("gw-1", nil)
				east := w.speaker("east", "gw-e", "", after)
				east.say(exportOf(shopID))
				n, _ := w.linked("node-1", networkkey.Known{"east": {before.Public()}})
				gw.say(service, shareFrom(east.voice()))
				n.attached(1)
				for range 15 {
					settle()
					if len(n.Unproven()) == 0 {
						t.Fatal("nothing is said of the key that is lacking")
					}
					time.Sleep(time.Minute)
				}
				mend(n, gw, networkkey.Known{"east": {before.Public(), after.Public()}})
				settle()
				if u := n.Unproven(); len(u) > 0 {
					t.Errorf("mended, and still said: %q", u)
				}
			})
		})
	}
}

// A key that was lacking is added while news of that network is on its way: that news is
// not proven, and its instance is not said to lack a certificate once it has one. Of another
// instance that has none it is said still.
func TestNewsOnItsWayDoesNotLackAKeyThatWasAdded(t *testing.T) {
	for name, another := range map[string]bool{"one instance": false, "another one that has none": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.network.Options.Delay = 20 * time.Millisecond
				before, after := keyOf(t, "east"), keyOf(t, "east, next")
				gw := w.gateway("gw-1", nil)
				east, other := w.speaker("east", "gw-e", "", after), w.speaker("east", "gw-o", "", keyOf(t, "east, third"))
				east.say(exportOf(shopID))
				gw.say(service, shareFrom(east.voice()))
				if other.say(record.HealthRecord("cart", 80, record.Health{Ready: 10, Healthy: 10})); another {
					gw.say("cart", shareFrom(other.voice()))
				}
				n, m := w.linked("node-1", networkkey.Known{"east": {before.Public()}})
				n.Pin(service, "cart")
				n.attached(1)
				time.Sleep(time.Second)
				east.say(healthOf(9))
				gw.say(service, shareFrom(east.voice()))
				time.Sleep(5 * time.Millisecond)
				noted := unprovenOf(m, Uncertified)
				n.SetKnown(networkkey.Known{"east": {before.Public(), after.Public()}})
				time.Sleep(30 * time.Millisecond)
				if unprovenOf(m, Uncertified) == noted {
					t.Fatal("no news was on its way when the key was added")
				}
				time.Sleep(time.Second)
				n.offers("a second after the key was added", shopID)
				said := strings.Join(n.Unproven(), "\n")
				if strings.Contains(said, east.key.ID().String()) || strings.Contains(said, other.key.ID().String()) != another {
					t.Errorf("a second after a key was added for instance %s, and none for %s, it is said: %q", east.key.ID(), other.key.ID(), said)
				}
			})
		})
	}
}
