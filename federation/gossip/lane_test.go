package gossip

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/networkkey"
)

// dialling counts what a site dials.
func dialling(n *atomic.Int64) func(*Config) {
	return func(c *Config) {
		dial := c.dial
		c.dial = func(ctx context.Context, address string) (net.Conn, error) {
			n.Add(1)
			return dial(ctx, address)
		}
	}
}

// after returns by how much n has grown after d.
func after(d time.Duration, n *atomic.Int64) int64 {
	before := n.Load()
	time.Sleep(d)
	return n.Load() - before
}

// Gateways of a network whose key is unknown are dialed rarely, by either end, and at
// once when somebody has linked them.
func TestGatewaysThatAreNotBelievedAreDialledRarelyUntilKeysChange(t *testing.T) {
	for name, forget := range map[string]func(w *world, keys *atomic.Bool){
		"neither knows the other":     func(w *world, _ *atomic.Bool) { w.unlink("east"); w.unlink("west") },
		"one does not know the other": func(_ *world, keys *atomic.Bool) { keys.Store(true) },
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, w *world) {
				east, west := w.add("east", "gw-1"), w.add("west", "gw-1")
				known := w.known
				var ignorant atomic.Bool
				forget(w, &ignorant)
				relays := w.relays()
				var dials atomic.Int64
				e := w.start(east, relays[east], dialling(&dials), func(c *Config) {
					all := c.Keys
					c.KeysInterval = time.Second
					c.Keys = func() (Keys, error) {
						k, err := all()
						if ignorant.Load() {
							k.Known = networkkey.Known{"east": k.Known["east"]}
						}
						return k, err
					}
				})
				v := w.start(west, relays[west], dialling(&dials), func(c *Config) { c.KeysInterval = time.Second })
				time.Sleep(time.Minute)
				if n := after(anHour, &dials); n > int64(2*anHour/(7*time.Second)) {
					t.Errorf("two gateways dial each other %d times in %v; want once in 7.5 s each at most", n, anHour)
				}
				w.mu.Lock()
				w.known = known
				w.mu.Unlock()
				ignorant.Store(false)
				e.publish(3)
				took := eventually(t, "west believes east", func() bool { return v.believes("east", 3) })
				if most := 3 * time.Second; took > most { // keys are read every second
					t.Errorf("believed %v after keys were changed; want within %v", took, most)
				}
			})
		})
	}
}

// A gateway that is down for seconds is found at once, and one that is down for long is
// dialed less and less; it dials the others when it is back.
func TestAGatewayThatIsDownForLongIsDialledRarely(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		east, west := w.add("east", "gw-1"), w.add("west", "gw-1")
		relays := w.relays()
		var dials atomic.Int64
		e := w.start(east, relays[east], dialling(&dials))
		if n := after(10*time.Second, &dials); n < 20 {
			t.Errorf("dialed %d times in the first 10 s; want twice a second at least", n)
		}
		time.Sleep(10 * time.Minute)
		if n := after(time.Hour, &dials); n > 3600/5 {
			t.Errorf("dialed %d times in an hour; want once in 5 s at most", n)
		}
		v := w.start(west, relays[west])
		e.publish(3)
		if took := eventually(t, "west believes east", func() bool { return v.believes("east", 3) }); took > 5*time.Second {
			t.Errorf("believed %v after its start", took)
		}
		v.kill()
		time.Sleep(10 * time.Second)
		relays[west].set(pass)
		v = w.start(west, relays[west], func(c *Config) { // which is not dialed, and dials nobody
			c.dial = func(ctx context.Context, address string) (net.Conn, error) { return nil, net.ErrClosed }
		})
		again := v.federation.Instance().String()
		if took := eventually(t, "east is connected with west again", func() bool { return e.federation.transport.has(again) }); took > 3*time.Second {
			t.Errorf("found %v after a restart of 10 s", took)
		}
	})
}
