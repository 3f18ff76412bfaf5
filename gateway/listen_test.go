package gateway

import (
	"context"
	"net"
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

func TestOnlyAProcessOfThisMachineTakesOver(t *testing.T) {
	at := func(a string) net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(a)) }
	for _, c := range []struct {
		remote, local net.Addr
		want          bool
	}{
		{at("127.0.0.1:4711"), at("127.20.1.1:15008"), true},
		{at("[::1]:4711"), at("[::1]:15008"), true},
		{at("10.0.0.1:4711"), at("10.0.0.1:15008"), true},
		{at("10.0.0.1:4711"), at("[::ffff:10.0.0.1]:15008"), true},
		{at("10.0.0.2:4711"), at("10.0.0.1:15008"), false},
		{at("[fd00::2]:4711"), at("[fd00::1]:15008"), false},
		{&net.UnixAddr{}, &net.UnixAddr{}, false},
	} {
		if got := sameMachine(c.remote, c.local); got != c.want {
			t.Errorf("from %v to %v: %t, want %t", c.remote, c.local, got, c.want)
		}
	}
}
