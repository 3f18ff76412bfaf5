package healthstream

import (
	"strings"
	"testing"
	"time"
)

// A stream to another gateway must not hide that there is none to this one, nor why.
func TestAGatewayThatIsAwayIsNamedWithWhyAndSinceWhen(t *testing.T) {
	inBubble(t, func(w *world) {
		w.gateway("gw-1", nil)
		gw2 := w.gateway("gw-2", nil)
		n := w.node("west-1", nil)
		n.attached(2)
		if list := n.Unattached(); len(list) != 0 {
			t.Errorf("both are attached; Unattached says %v", list)
		}
		lost := time.Now()
		gw2.stop()
		time.Sleep(20 * time.Second) // bubble time: many attempts
		settle()
		list := n.Unattached()
		if len(list) != 1 || list[0].Gateway != "gw-2" || list[0].Err == nil || !strings.Contains(list[0].Err.Error(), "dial") {
			t.Fatalf("gw-2 is away; Unattached says %v", list)
		}
		if d := list[0].Since.Sub(lost); d < 0 || d > 10*time.Second {
			t.Errorf("away since %v after the stream was lost; want within the time that it takes to notice", d)
		}
		w.start(gw2.Gateway, nil)
		n.attached(2)
		if list := n.Unattached(); len(list) != 0 {
			t.Errorf("it is back; Unattached says %v", list)
		}
	})
}
