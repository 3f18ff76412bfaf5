package healthstream

import (
	"fmt"
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

// What proves an instance is lost here. It is asked for again, however much news there is
// of that instance meanwhile.
func TestWhatProvesAnInstanceIsAskedForAgainWhileItsNewsGoesOn(t *testing.T) {
	inBubble(t, func(w *world) {
		key := keyOf(t, "east")
		gw := w.gateway("gw-1", nil)
		east := w.speaker("east", "gw-e", "", key)
		n, _ := w.linked("node-1", networkkey.Known{"east": {key.Public()}})
		say := func(healthy uint32) {
			east.say(exportOf(shopID))
			east.say(healthOf(healthy))
			gw.say(service, shareFrom(east.voice()))
		}
		say(10)
		n.attached(1)
		n.offers("at first", shopID)
		proofs := n.services.proofs
		proofs.mu.Lock()
		proofs.end(proofs.instances[east.key.ID()])
		proofs.mu.Unlock()
		for i := range uint32(4) {
			say(i)
			n.offers("when what proves it is lost")
			time.Sleep(time.Minute)
		}
		time.Sleep(time.Minute)
		say(9)
		n.offers("five minutes later", shopID)
	})
}

// The key of a network is lacking of which one service is followed. Asking for that again
// costs what is told of it, and not what is told of all that is followed.
func TestALackingKeyCostsNothingOfWhatOthersSay(t *testing.T) {
	cost := func(by networkkey.Private) (bytes int64) {
		inBubble(t, func(w *world) {
			gw := w.gateway("gw-1", nil)
			east := w.speaker("east", "gw-e", "", by)
			east.say(exportOf(shopID))
			n, _ := w.linked("node-1", networkkey.Known{"east": {keyOf(t, "east").Public()}})
			gw.say(service, shareFrom(east.voice()))
			names := []string{service}
			for i := range uint64(100) {
				names = append(names, fmt.Sprintf("svc-%d.default.svc.cluster.local", i))
				gw.say(names[i+1], Share{Network: "north", Instances: []Voice{voice(record.Instance{1}, 1, names[i+1], record.Health{Ready: 10, Healthy: 10})}})
			}
			n.Pin(names...)
			n.attached(1)
			time.Sleep(30 * time.Second)
			before := w.bytes.Load()
			time.Sleep(time.Hour)
			bytes = w.bytes.Load() - before
		})
		return bytes
	}
	well, lacking := cost(keyOf(t, "east")), cost(keyOf(t, "east, next"))
	if lacking == well || lacking > well+well/8 {
		t.Errorf("%d bytes in an hour without news, and %d when a key is lacking; want a few more", well, lacking)
	}
}
