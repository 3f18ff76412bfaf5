//go:build linux

package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

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
