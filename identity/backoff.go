package identity

import "time"

const (
	backoffFirst  = 500 * time.Millisecond
	backoffLimit  = 150 * time.Second
	backoffSpread = 0.2
)

// backoff is how long to wait after the nth failure in a row (n ≥ 1):
// min(150 s, 0.5 s·2^(n-1)), spread evenly over ±20 % by u in [0, 1). The
// numbers are ztunnel's; the spread keeps processes that failed together from
// coming back together.
func backoff(n int, u float64) time.Duration {
	d := backoffLimit
	if n < 10 { // 0.5 s·2^9 is beyond the limit
		d = min(d, backoffFirst<<(n-1))
	}
	return time.Duration(float64(d) * (1 - backoffSpread + 2*backoffSpread*u))
}
