package healthstream

import (
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/record"
)

// The age of a share is that of its numbers: that capacity changes, or who says it, is no
// change of them.
func TestTurnedIsWhenNumbersChange(t *testing.T) {
	const port = 80
	say := func(healthy, capacity uint32) []Delivery {
		return []Delivery{{Gateway: "gw-1", Live: true, Health: map[uint16]record.Health{port: {Ready: 2, Healthy: healthy, ReadyCapacity: 2, HealthyCapacity: capacity}}}}
	}
	epoch := time.Now()
	k := knownOf("s", "east", say(2, 2), Known{}, returns{}, epoch)
	for i, x := range []struct {
		healthy, capacity uint32
		turned            int
	}{{2, 2, 0}, {2, 1, 0}, {1, 1, 3}, {1, 1, 3}} {
		k = knownOf("s", "east", say(x.healthy, x.capacity), k, returns{}, epoch.Add(time.Duration(i+1)*time.Second))
		if want := epoch.Add(time.Duration(x.turned) * time.Second); !k.Turned[port].Equal(want) {
			t.Errorf("step %d: turned %v after the beginning, want %d s", i, k.Turned[port].Sub(epoch), x.turned)
		}
	}
}
