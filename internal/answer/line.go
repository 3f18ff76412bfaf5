package answer

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Line has statistics of the open connections of a node proxy to the gateways of one other network, and the transport of
// new sessions, unless that is TCP alone.
type Line struct {
	Network        string         `json:"network"`        // of the gateways
	Connections    int            `json:"connections"`    // of TCP that are open
	Congestion     map[string]int `json:"congestion"`     // connections by congestion control algorithm
	RTTMicros      int64          `json:"rttMicros"`      // mean of the smoothed round-trip times
	Loss           *float64       `json:"loss,omitempty"` // share of the segments that were lost lately, 0 to 1: samples count half after 5 minutes. Without bulk; absent if there is nothing else
	BytesPerSecond uint64         `json:"bytesPerSecond"` // most that one connection delivered lately

	QUIC          int      `json:"quic,omitempty"`          // QUIC connections that are open
	QUICRTTMicros int64    `json:"quicRTTMicros,omitempty"` // mean of their smoothed round-trip times
	QUICLoss      *float64 `json:"quicLoss,omitempty"`      // as loss, of the bytes in QUIC packets

	Transport string `json:"transport,omitempty"` // of new sessions for small messages: tcp or quic. Empty: lines.transport is tcp
	Reason    string `json:"reason,omitempty"`    // for it

	QUICFailing *bool `json:"quicFailing,omitempty"` // new sessions for small messages use TCP because QUIC failed. Absent unless lines.transport is auto
}

// String is the line of a table without its network.
func (l Line) String() string {
	var parts []string
	if l.Connections > 0 || l.Transport == "" {
		parts = append(parts, l.measured())
	}
	if l.QUIC > 0 {
		parts = append(parts, fmt.Sprintf("%d QUIC connection%s (round trip %v%s)",
			l.QUIC, plural(l.QUIC), micros(l.QUICRTTMicros), lost(l.QUICLoss)))
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
	return fmt.Sprintf("%d connection%s (%s), round trip %v%s, up to %.*f Mbit/s",
		l.Connections, plural(l.Connections), strings.Join(slices.Sorted(maps.Keys(l.Congestion)), ", "),
		micros(l.RTTMicros), lost(l.Loss), digits, rate)
}

func lost(share *float64) string {
	if share == nil {
		return ""
	}
	return fmt.Sprintf(", %.2g %% lost", 100**share)
}

func micros(n int64) time.Duration {
	return (time.Duration(n) * time.Microsecond).Round(100 * time.Microsecond)
}

func plural(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}
