//go:build linux

package wan

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var auto = arm{"auto", []string{"ISTHMUS_LINES_TRANSPORT=auto"}}

// usesQUIC reports whether the client's node proxy uses QUIC for small messages.
func usesQUIC(t *testing.T) bool {
	t.Helper()
	text, err := here.Get("client-ours", admin, "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(text), `isthmus_line_transport{network="west",transport="quic"} 1`)
}

// awaitQUIC has messages on the line for at most d, and reports whether new sessions use QUIC then.
func awaitQUIC(t *testing.T, d time.Duration) bool {
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
		if usesQUIC(t) {
			t.Logf("QUIC after %v of messages", time.Since(began).Round(100*time.Millisecond))
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
			if quic, want := awaitQUIC(t, time.Minute), loss > 0; quic != want {
				t.Errorf("QUIC in use: %v, want %v", quic, want)
			}
		})
	}
}
