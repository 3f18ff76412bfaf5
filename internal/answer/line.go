package answer

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Line is what the kernel measured on the open TCP connections of a node proxy to the gateways of one other network, and
// the transport of new sessions, unless that is TCP alone.
type Line struct {
	Network        string         `json:"network"`        // of the gateways
	Connections    int            `json:"connections"`    // that are open
	Congestion     map[string]int `json:"congestion"`     // connections by congestion control algorithm
	RTTMicros      int64          `json:"rttMicros"`      // mean of the smoothed round-trip times
	Segments       uint64         `json:"segments"`       // with data, sent since each connection was opened
	Retransmitted  uint64         `json:"retransmitted"`  // of these
	BytesPerSecond uint64         `json:"bytesPerSecond"` // most that one connection delivered lately

	QUIC      int    `json:"quic,omitempty"`      // QUIC connections that are open
	Transport string `json:"transport,omitempty"` // of new sessions for small messages: tcp or quic. Empty: lines.transport is tcp
	Reason    string `json:"reason,omitempty"`    // for it
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
	var parts []string
	if l.Connections > 0 || l.Transport == "" {
		parts = append(parts, l.measured())
	}
	if l.QUIC > 0 {
		parts = append(parts, fmt.Sprintf("%d QUIC connection%s", l.QUIC, plural(l.QUIC)))
	}
	if l.Transport != "" {
		parts = append(parts, fmt.Sprintf("small messages use %s (%s)", l.Transport, l.Reason))
	}
	return strings.Join(parts, ", ")
}

// measured is what String has of TCP.
func (l Line) measured() string {
	rate := 8e-6 * float64(l.BytesPerSecond)
	digits := 0
	if rate < 10 {
		digits = 1
	}
	return fmt.Sprintf("%d connection%s (%s), round trip %v, %.2g %% retransmitted, up to %.*f Mbit/s",
		l.Connections, plural(l.Connections), strings.Join(slices.Sorted(maps.Keys(l.Congestion)), ", "),
		(time.Duration(l.RTTMicros) * time.Microsecond).Round(100*time.Microsecond), 100*l.Loss(), digits, rate)
}

func plural(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}
