//go:build linux

package wan

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var auto = arm{"auto", []string{"ISTHMUS_LINES_TRANSPORT=auto"}}

// ofQUIC returns a metric of the client's node proxy for QUIC, 0 without a value.
func ofQUIC(t *testing.T, metric string) (value float64) {
	t.Helper()
	text, err := here.Get("client-ours", admin, "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	if _, rest, ok := strings.Cut(string(text), metric+`{network="west",transport="quic"} `); ok {
		fmt.Sscan(rest, &value)
	}
	return value
}

// usesQUIC reports whether the client's node proxy uses QUIC for small messages.
func usesQUIC(t *testing.T) bool { return ofQUIC(t, "isthmus_line_transport") == 1 }

// awaitWithMessages has messages on the line until done returns true, for at most d. It reports whether done did.
func awaitWithMessages(t *testing.T, d time.Duration, done func() bool) bool {
	t.Helper()
	var all sync.WaitGroup
	var measured, stop atomic.Bool
	for range echoes {
		all.Go(func() {
			if _, err := messages(double, busyPause, &measured, &stop); err != nil {
				t.Errorf("messages before the measurement: %v", err)
			}
		})
	}
	defer all.Wait()
	defer stop.Store(true)
	for began := time.Now(); time.Since(began) < d; time.Sleep(100 * time.Millisecond) {
		if done() {
			t.Logf("after %v of messages", time.Since(began).Round(100*time.Millisecond))
			return true
		}
	}
	return false
}

// With lines.transport: auto small messages move to QUIC on a line that loses packets, and stay on TCP on one that does not.
func TestAutoTransport(t *testing.T) {
	need(t)
	notShort(t)
	congestion(t, "bbr")
	t.Cleanup(func() { set(t, withLines) })
	for _, loss := range []float64{0, 0.01} {
		t.Run(fmt.Sprintf("loss %g", loss), func(t *testing.T) {
			here.link.Set(busyLine(loss))
			defer here.link.Set(line)
			set(t, auto)
			quic, want := awaitWithMessages(t, time.Minute, func() bool { return usesQUIC(t) }), loss > 0
			if quic != want {
				t.Errorf("QUIC in use: %v, want %v", quic, want)
			}
			if !quic {
				return
			}
			began := time.Now()
			awaitWithMessages(t, time.Minute, func() bool { return time.Since(began) > 20*time.Second })
			got, rtt := ofQUIC(t, "isthmus_line_loss_ratio"), ofQUIC(t, "isthmus_line_rtt_seconds")
			t.Logf("QUIC lost %.2g %% of %g %%, and has a round trip of %.3g s", 100*got, 100*loss, rtt)
			if got < loss/3 || got > 3*loss || rtt < 0.04 || rtt > 0.4 {
				t.Errorf("QUIC lost %g at a round trip of %g s, want about %g and 0.04 s", got, rtt, loss)
			}
		})
	}
}

// A network that limits UDP to 1 Mbit/s while QUIC is in use: no connection fails, new ones are soon on TCP, and they stay there.
func TestThrottledUDPReturnsToTCP(t *testing.T) {
	need(t)
	notShort(t)
	congestion(t, "bbr")
	t.Cleanup(func() { set(t, withLines) })
	lossy := busyLine(0.01)
	here.link.Set(lossy)
	defer here.link.Set(line)
	set(t, auto)
	if !awaitWithMessages(t, time.Minute, func() bool { return usesQUIC(t) }) {
		t.Fatal("QUIC is not used")
	}
	lossy.UDPRate = 1e6 / 8
	var took []time.Duration
	var changed float64
	throttled, onTCP := time.Time{}, time.Time{}
	awaitWithMessages(t, 3*time.Minute, func() bool {
		now := time.Now()
		if throttled.IsZero() {
			throttled = now
			here.link.Set(lossy)
		}
		c, err := here.connect(double)
		if err != nil {
			t.Errorf("%v after UDP is limited: %v", now.Sub(throttled), err)
			return true
		}
		defer c.Close()
		if _, err := who(c); err != nil {
			t.Errorf("%v after UDP is limited: %v", now.Sub(throttled), err)
			return true
		}
		took = append(took, time.Since(now))
		if onTCP.IsZero() && !usesQUIC(t) {
			onTCP = now
			changed = ofQUIC(t, "isthmus_line_transport_changes_total")
		}
		return !onTCP.IsZero() && now.Sub(onTCP) > time.Minute
	})
	if onTCP.IsZero() {
		t.Fatal("QUIC is still used")
	}
	slices.Sort(took)
	t.Logf("TCP is used after %v; %d new connections: p50 %v, p99 %v, at most %v", onTCP.Sub(throttled).Round(100*time.Millisecond), len(took),
		took[len(took)/2].Round(time.Millisecond), took[len(took)*99/100].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond))
	if n := ofQUIC(t, "isthmus_line_transport_changes_total"); n != changed {
		t.Errorf("new connections returned to QUIC %v times", n-changed)
	}
}
