package process

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// timerSlack is how late the kernel may fire a timer of a thread of ours. A
// thread of the Go runtime (sysmon) looks after the others every 20 µs while
// there is work, up to 5 000 times per second, and none of our own timers is
// finer than a millisecond. With Linux's 50 µs that thread was 9 % of a node
// proxy's CPU in bulk and 24 % at 4 000 small messages per second (2026-11).
const timerSlack = time.Millisecond

// CoarseTimers lets the kernel fire the timers of this process up to a
// millisecond late, unless ISTHMUS_TIMER_SLACK is set. A thread can set that only
// for itself and its children, and sysmon is there before main: so the process
// executes itself once more, with the same arguments, descriptors and process
// identifier. It is to be called first of all. On error nothing has changed.
//
// From here on SIGHUP is ignored, in the new image too, until Main listens for it:
// it never kills.
func CoarseTimers() error {
	signal.Ignore(syscall.SIGHUP)
	if os.Getenv("ISTHMUS_TIMER_SLACK") != "" {
		return nil
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("coarse timers: %w", err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	old, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil || time.Duration(old) >= timerSlack {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(timerSlack), 0, 0, 0); err != nil {
		return fmt.Errorf("coarse timers: set timer slack: %w", err)
	}
	err = syscall.Exec(program, os.Args, slices.Concat(os.Environ(), []string{"ISTHMUS_TIMER_SLACK=keep"}))
	unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(old), 0, 0, 0)
	return fmt.Errorf("coarse timers: execute %s again: %w", program, err)
}
