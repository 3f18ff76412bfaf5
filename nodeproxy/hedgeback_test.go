package nodeproxy

import (
	"errors"
	"testing"

	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/picker"
)

// Another replica than the one that was meant has answered an attempt that goes back: the place has not been asked, and
// the next attempt goes there too. One that has failed does not.
func TestAnAttemptThatGoesBackDoesSoUntilItWasThere(t *testing.T) {
	c, first := &call{}, picker.Place{Network: "west", Endpoint: 7}
	c.hedge = hedging{left: []picker.Place{first}, back: first, returned: true}
	for range 3 {
		if where := c.hedge.where(tried{}); where.Back != first {
			t.Fatalf("goes to %+v, want back to %+v", where.Back, first)
		}
		if !c.again(&failure{reason: reasonElsewhere, err: errors.New("another replica")}) {
			t.Fatal("a failure of its own")
		}
	}
	if c.hedged(t.Context(), &failure{reason: "refused", err: errors.New("refused")}) {
		t.Error("goes back twice")
	}
	if where := c.hedge.where(tried{Pods: []mesh.EndpointID{7}}); where.Back != (picker.Place{}) {
		t.Errorf("goes back to %+v again", where.Back)
	}
}
