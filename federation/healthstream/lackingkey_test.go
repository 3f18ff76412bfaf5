package healthstream

import (
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/networkkey"
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
