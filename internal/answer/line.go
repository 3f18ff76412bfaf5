package answer

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Line is what the kernel measured on the open TCP connections of a node proxy to the gateways of one other network.
type Line struct {
	Network        string         `json:"network"`        // of the gateways
	Connections    int            `json:"connections"`    // that are open
	Congestion     map[string]int `json:"congestion"`     // connections by congestion control algorithm
	RTTMicros      int64          `json:"rttMicros"`      // mean of the smoothed round-trip times
	Segments       uint64         `json:"segments"`       // with data, sent since each connection was opened
	Retransmitted  uint64         `json:"retransmitted"`  // of these
	BytesPerSecond uint64         `json:"bytesPerSecond"` // most that one connection delivered lately
}

// Loss is the share of segments that were retransmitted, 0 to 1.
func (l Line) Loss() float64 {
	if l.Segments == 0 {
		return 0
	}
	return min(1, float64(l.Retransmitted)/float64(l.Segments))
}

// String is the line of a table without its network.
func (l Line) String() string {
	rate := 8e-6 * float64(l.BytesPerSecond)
	digits := 0
	if rate < 10 {
		digits = 1
	}
	plural := "s"
	if l.Connections == 1 {
		plural = ""
	}
	return fmt.Sprintf("%d connection%s (%s), round trip %v, %.2g %% retransmitted, up to %.*f Mbit/s",
		l.Connections, plural, strings.Join(slices.Sorted(maps.Keys(l.Congestion)), ", "),
		(time.Duration(l.RTTMicros) * time.Microsecond).Round(100*time.Microsecond), 100*l.Loss(), digits, rate)
}
