package controller

import "time"

// gatewayGrace is how long no gateway may be connected before ServiceExports report it: a
// rollout of gateways, or of this process, takes less.
const gatewayGrace = 30 * time.Second

// attached tracks whether gateways of this network are connected. The zero value is
// connected. Not safe for concurrent use.
type attached struct {
	lost time.Time // since when none is; zero if one is
	gone bool      // for gatewayGrace
}

// note takes in whether a gateway is connected now, and reports whether gone changed.
func (a *attached) note(connected bool, now time.Time) (changed bool) {
	was := a.gone
	switch {
	case connected:
		*a = attached{}
	case a.lost.IsZero():
		a.lost = now
	default:
		a.gone = now.Sub(a.lost) >= gatewayGrace
	}
	return a.gone != was
}
