package healthstream

import (
	"testing"
	"time"
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
