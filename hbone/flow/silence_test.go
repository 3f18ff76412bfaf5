package flow

import (
	"testing"
	"time"
)

func TestWhatAnUnansweredPingMeans(t *testing.T) {
	sent := time.Unix(1000, 0)
	const after, timeout = 300 * time.Millisecond, 20 * time.Second
	for _, c := range []struct {
		name     string
		due, now time.Duration // since the PING was sent
		heard    bool
		want     PingVerdict
		again    time.Duration
	}{
		{"nothing was heard", after, after, false, PingSilent, timeout - after},
		{"data was heard", after, after, true, PingWaits, after},
		{"a later look, nothing since the one before", 5 * after, 5 * after, false, PingSilent, timeout - 5*after},
		{"the timer was planned before the PING", after, 0, false, PingWaits, after},
		{"this process is late", after, 2 * after, false, PingWaits, after},
		{"this process is a little late", after, after + after/3, false, PingSilent, timeout - after - after/3},
		{"data is heard, the answer is still owed", timeout, timeout, true, PingDead, 0},
		{"time is up", timeout, timeout, false, PingDead, 0},
		{"time is up, and this process is late", timeout, timeout + time.Minute, false, PingWaits, after},
		{"the last look before the end", timeout - time.Millisecond, timeout - time.Millisecond, true, PingWaits, time.Millisecond},
	} {
		u := UnansweredPing{Sent: sent, Due: sent.Add(c.due), Received: c.heard, After: after, Timeout: timeout}
		if v, again := u.Judge(sent.Add(c.now)); v != c.want || again != c.again {
			t.Errorf("%s: verdict %d, again after %v; want %d, %v", c.name, v, again, c.want, c.again)
		}
	}
	for rtt, want := range map[time.Duration]time.Duration{
		0: SilentAtMost, time.Millisecond: SilentAtLeast, 200 * time.Millisecond: 800 * time.Millisecond, time.Minute: SilentAtMost,
	} {
		if got := SilentAfter(rtt); got != want {
			t.Errorf("round trip %v: silent after %v, want %v", rtt, got, want)
		}
	}
}
