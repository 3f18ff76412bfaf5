//go:build !linux

package wan

import "time"

func sleep(d time.Duration) { time.Sleep(d) }
