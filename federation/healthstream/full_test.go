package healthstream

import (
	"fmt"
	"testing"
	"time"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/internal/meshtest/trust"
)

// What a gateway holds of a stream ends with it, also of one that it refuses: node proxies
// of a full gateway come again and again.
func TestRefusedStreamsLeaveNothingBehind(t *testing.T) {
	inBubble(t, func(w *world) {
		gw := w.gateway("gw-1", func(c *ServerConfig) { c.MaxNodes = 1 })
		held := func() int {
			gw.health.topics.mu.Lock()
			defer gw.health.topics.mu.Unlock()
			return len(gw.health.topics.streams)
		}
		first := w.node("node-1", nil)
		first.attached(1)
		refused := w.node("node-2", nil) // comes again every 200 ms
		time.Sleep(10 * time.Second)
		if n := held(); n > 2 { // and one that is being refused
			t.Errorf("one stream is attached, and after 10 s of one refused node proxy %d are held", n)
		}
		first.cancel()
		refused.attached(1)
		refused.cancel()
		time.Sleep(10 * time.Second)
		if n := held(); n != 0 {
			t.Errorf("all streams have ended, and %d are held", n)
		}
	})
}

// The place that an instance needs may be its own: that of its old stream, whose end has
// not been seen. So may that of another instance of its node, which gives way to it. It is
// not anybody else's.
func TestAFullGatewayTakesStreamsThatDisplaceTheirOwn(t *testing.T) {
	inBubble(t, func(w *world) {
		gw := w.gateway("gw-1", func(c *ServerConfig) { c.MaxNodes = maxAttached })
		attach := func(node string, instance byte) error {
			c, err := w.raw(gw, trust.Node("west", node))
			if err != nil {
				t.Fatal(err)
			}
			f := &frames{conn: c, dead: time.Second, metrics: gw.metrics.OrDiscard()}
			if err := f.write(&pb.StreamMessage{Message: &pb.StreamMessage_Attach{Attach: &pb.Attach{Node: node, Network: "west", Instance: append(make([]byte, 15), instance)}}}); err != nil {
				return err
			}
			m, err := f.read()
			if err == nil && m.GetWelcome() == nil {
				err = fmt.Errorf("no welcome: %v", m)
			}
			return err
		}
		for i := range byte(maxAttached) {
			if err := attach("node-1", i); err != nil {
				t.Fatal(err)
			}
		}
		if err := attach("node-1", 0); err != nil { // its first connection is dead, and nobody has noticed
			t.Errorf("an instance again: %v", err)
		}
		if err := attach("node-1", maxAttached); err != nil {
			t.Errorf("one more instance of that node: %v", err)
		}
		if err := attach("node-2", 0); err == nil {
			t.Error("a node that has no stream is attached, and there is no room")
		}
		gw.health.mu.Lock()
		defer gw.health.mu.Unlock()
		if n := len(gw.health.streams); n != maxAttached {
			t.Errorf("%d streams are attached; want %d", n, maxAttached)
		}
	})
}
