package healthstream

import (
	"fmt"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/mesh"
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

// A network is linked while a gateway tells its node proxy what it knows, on a path that
// takes 16 kB in 20 ms: what proves the network's instance has been told by then, and was
// not kept. It is asked for again in the middle of what is told, and told again.
func TestANetworkThatIsLinkedWhileItsGatewaySpeaksIsProven(t *testing.T) {
	inBubble(t, func(w *world) {
		w.network.Options.Delay = 20 * time.Millisecond
		w.network.Options.Buffer = 16 << 10
		key := keyOf(t, "east")
		gw := w.gateway("gw-1", nil)
		east := w.speaker("east", "gw-e", "", key)
		n, m := w.linked("node-1", nil)
		voice := east.voice()
		var names []string
		for i := range 400 {
			names = append(names, fmt.Sprintf("svc-%d.default.svc.cluster.local", i))
			h := record.Health{Ready: 100, Healthy: 40, ReadyCapacity: 100, HealthyCapacity: 40}
			for id := range mesh.EndpointID(60) {
				h.Exceptions = append(h.Exceptions, record.Exception{Endpoint: id + 1<<60, Cause: record.Witness})
			}
			voice.Entries = []record.Entry{
				east.say(record.ExportRecord(names[i], record.Export{Name: "shop", Namespace: "default", Ports: []record.Port{{Port: 80}}, Scope: record.ScopeGlobal, Capacity: 10})),
				east.say(record.HealthRecord(names[i], 80, h)),
			}
			gw.say(names[i], shareFrom(voice))
		}
		told := func() (known, proven int) {
			for _, name := range names {
				k, ok := n.Known("east", name)
				known += truth(ok)
				proven += truth(k.Offer != nil)
			}
			return known, proven
		}
		n.Pin(names...)
		for known := 0; known == 0; known, _ = told() {
			time.Sleep(time.Millisecond)
		}
		if known, _ := told(); known > len(names)/2 {
			t.Fatalf("%d of %d services are told: want it in the middle", known, len(names))
		}
		n.SetKnown(networkkey.Known{"east": {key.Public()}})
		time.Sleep(10 * time.Second)
		if known, proven := told(); proven != len(names) {
			t.Errorf("10 s after the network was linked: of %d services %d are known and %d exports proven, %d records had no certificate. Not proven: %.300q",
				len(names), known, proven, unprovenOf(m, Uncertified), n.Unproven())
		}
	})
}
