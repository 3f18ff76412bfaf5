//go:build linux

package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cpuOf returns the processor time of a process since its start, of all its
// threads, those that ended included. The kernel's process clock counts
// nanoseconds; /proc/PID/stat counts ticks of 10 ms, too few for short cells.
func cpuOf(pid int) (time.Duration, error) {
	const cpuclockSched = 2 // linux/posix-timers.h; the clock's number is made of it and the PID
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|cpuclockSched), &t); err != nil {
		return 0, fmt.Errorf("read the processor time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// busy returns the processor time of the whole machine that was not idle, over
// all processors, since its start.
func busy() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	return parseBusy(string(text))
}

// parseBusy reads the first line of /proc/stat: cpu user nice system idle iowait
// irq softirq steal (and guest times, which are in user already), in ticks of
// 10 ms. Stolen time is somebody else's.
func parseBusy(stat string) (time.Duration, error) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat begins with %q, want the sum over all processors", line)
	}
	ticks := 0
	for _, i := range []int{1, 2, 3, 6, 7} {
		n, err := strconv.Atoi(fields[i])
		if err != nil {
			return 0, fmt.Errorf("/proc/stat begins with %q: %w", line, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}

// rssOf returns the resident memory of a process in bytes. smaps_rollup counts
// pages; the VmRSS of /proc/PID/status is a sum that lags behind.
func rssOf(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	return parseRSS(string(text))
}

func parseRSS(rollup string) (int64, error) {
	for line := range strings.Lines(rollup) {
		if rest, ok := strings.CutPrefix(line, "Rss:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("smaps_rollup has the line %q: %w", line, err)
			}
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("smaps_rollup has no line Rss")
}
