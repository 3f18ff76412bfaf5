package gateway

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

func TestAnAddressIsSharedOnlyIfBothSaySo(t *testing.T) {
	for _, first := range []bool{false, true} {
		for _, second := range []bool{false, true} {
			a, err := listen(netip.MustParseAddrPort("127.0.0.1:0"), first)
			if err != nil {
				t.Fatal(err)
			}
			b, err := listen(netip.MustParseAddrPort(a.Addr().String()), second)
			if (err == nil) != (first && second) {
				t.Errorf("first %v, second %v: %v", first, second, err)
			}
			if err == nil {
				b.Close()
			}
			a.Close()
		}
	}
}

// An accept loop that fails for want of descriptors ends when its gateway is stopped,
// and not when its pause is over.
func TestAPauseOfTheAcceptLoopEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		started := time.Now()
		pauseAccepting(ctx, time.Hour)
		if took := time.Since(started); took < time.Second || took > time.Second+acceptGrace/2 {
			t.Errorf("it paused for %v, stopped after 1s", took)
		}
		pauseAccepting(t.Context(), time.Minute)
		if took := time.Since(started); took < time.Minute {
			t.Errorf("it paused for %v, want a minute", took)
		}
	})
}
