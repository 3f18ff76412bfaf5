package healthstream

import (
	"slices"
	"testing"

	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

// A port is given a name. While one gateway of its network knows that and the other does
// not yet, it is offered as before: clients ask for its number.
func TestAPortThatIsGivenANameStaysOffered(t *testing.T) {
	inBubble(t, func(w *world) {
		key := keyOf(t, "east")
		gw := w.gateway("gw-1", nil)
		a, b := w.speaker("east", "gw-a", "", key), w.speaker("east", "gw-b", "", key)
		named := exportOf(shopID)
		named.Export.Ports = []record.Port{{Name: "http", Port: 80}}
		n, _ := w.linked("node-1", networkkey.Known{"east": {key.Public()}})
		n.attached(1)
		for _, x := range []struct {
			when string
			a, b record.Record
		}{{"before", exportOf(shopID), exportOf(shopID)}, {"when one gateway has read it", named, exportOf(shopID)}, {"when both have", named, named}} {
			a.say(x.a)
			b.say(x.b)
			gw.say(service, shareFrom(a.voice(), b.voice()))
			n.offers(x.when, shopID)
			if k, _ := n.Known("east", service); k.Offer != nil && !slices.ContainsFunc(k.Offer.Ports, func(p record.Port) bool { return p.Port == 80 }) {
				t.Errorf("%s: port 80 is not offered: %v (%s)", x.when, k.Offer.Ports, k.Differ)
			}
		}
	})
}
