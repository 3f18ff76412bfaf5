package healthstream

import (
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/ledger"
)

// A gateway that has restarted while all the others are out of its reach knows nothing
// yet: what its node proxies know stands, and lapses like the word of those who fall
// silent. Only who knows everything, or knew, takes something back.
func TestAGatewayThatKnowsNothingYetTakesNothingBack(t *testing.T) {
	for name, c := range map[string]struct {
		then func(s *site)
		want uint32
		gone bool
	}{
		"nobody is reached": {then: func(*site) {}, want: 9},
		"one is heard":      {then: func(s *site) { s.say(service, east(2, service, 7)) }, want: 7},
		"one is heard and lost": {then: func(s *site) {
			s.say(service, east(2, service, 7))
			settle()
			s.say(service)
		}, gone: true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				s := w.gateway("gw-1", nil)
				s.say(service, east(1, service, 9))
				n := w.node("node-1", nil)
				n.Pin(service)
				n.attached(1)
				n.knows("at first", "east", 9)
				s.stop()
				n.attached(0)
				s = w.start(s.Gateway, nil)
				n.attached(1)
				lost := time.Now()
				settle()
				c.then(s)
				settle()
				f, ok := n.Summary("east", service, 80)
				if ok == c.gone || !c.gone && f.Healthy != c.want {
					t.Errorf("after the restart: %+v, %v; want %d healthy, nothing: %v", f, ok, c.want, c.gone)
				}
				if c.want != 9 {
					return
				}
				time.Sleep(time.Until(lost.Add(ledger.Lapse - 2*time.Second)))
				n.knows("just before a minute is over", "east", 9)
				time.Sleep(4 * time.Second)
				if f, ok := n.Summary("east", service, 80); ok {
					t.Errorf("a minute after the restart: %+v; want health unknown", f)
				}
				if len(n.services.unheard) != 0 {
					t.Errorf("%d shares wait to lapse; want none", len(n.services.unheard))
				}
			})
		})
	}
}
