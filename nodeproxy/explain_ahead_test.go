package nodeproxy

import (
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/health/standing"
)

// The clock here is hours behind that of the gateway that says since when a pod is out:
// its reason is told, and nothing is out since a time that is still to come.
func TestNothingIsOutSinceATimeToCome(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	here := now.Add(-time.Minute)
	for ahead, want := range map[time.Duration]time.Time{-time.Hour: now.Add(-time.Hour), time.Second: here, 5 * time.Hour: here} {
		x := record.Exception{Endpoint: 7, Cause: record.Witness, Detail: record.Detail{Reason: "refused", Witness: "west-1", Since: now.Add(ahead).Unix()}}
		k := healthstream.Known{Deliveries: []healthstream.Delivery{{Gateway: "gw-1", Live: true, Health: map[uint16]record.Health{80: {Exceptions: []record.Exception{x}}}}}}
		c := standing.Cause{Since: here}
		if detail(&c, k, "west", 80, 7, now); !c.Since.Equal(want) || c.Reason != "refused" {
			t.Errorf("said to be out since %v from now: %+v; want since %v", ahead, c, want)
		}
		unseen := standing.Cause{}
		if detail(&unseen, k, "west", 80, 7, now); unseen.Since.After(now) {
			t.Errorf("said to be out since %v from now: out since %v", ahead, unseen.Since)
		}
	}
}
