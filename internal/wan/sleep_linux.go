package wan

import (
	"time"

	"golang.org/x/sys/unix"
)

// sleep is exact to about 0.1 ms. The runtime's own timers are exact to 1 ms
// when nothing else happens: the poller waits for whole milliseconds.
func sleep(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	unix.Nanosleep(&t, nil) // interrupted by a signal it is short once, and harmless
}
