package nodeproxy

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/hbone/pool"
)

// A pool without a free stream and a session that a fresh one has replaced are no
// fault of the hop; a hop that does not answer is.
func TestWhatThePoolReportsIsNotBookedOnTheHop(t *testing.T) {
	silent := fmt.Errorf("CONNECT: %w", hbone.ErrConnectTimeout)
	for _, c := range []struct {
		err    error
		fault  bool
		reason string
	}{
		{silent, true, reasonConnect},
		{&supersededError{silent}, false, reasonConnect},
		{&lostCarrierError{&supersededError{&indeterminateError{silent}}}, false, reasonTunnel},
		{fmt.Errorf("gateway: %w", errors.Join(pool.ErrExhausted, context.DeadlineExceeded)), false, string(header.ReasonOverload)},
	} {
		if f := throughResponse(1, c.err); f.fault != c.fault || f.reason != c.reason {
			t.Errorf("%v: fault %v, reason %q; want %v, %q", c.err, f.fault, f.reason, c.fault, c.reason)
		}
	}
	if f := outerResponse(pool.ErrExhausted); f.fault || f.at != atGateway {
		t.Errorf("%+v; want no fault, and another gateway next", f)
	}
}
