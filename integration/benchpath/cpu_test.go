//go:build linux

package main

import (
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestParseBusy(t *testing.T) {
	const stat = "cpu  100 2 30 5000 60 7 8 9 0 0\ncpu0 50 1 15 2500 30 3 4 4 0 0\nintr 1\n"
	got, err := parseBusy(stat)
	if want := (100 + 2 + 30 + 7 + 8) * 10 * time.Millisecond; err != nil || got != want {
		t.Errorf("parseBusy is %v, %v, want %v: all but idle, iowait and steal", got, err, want)
	}
	for _, bad := range []string{"", "cpu 1 2 3", "cpu0 1 2 3 4 5 6 7 8 9 10", "cpu 1 2 x 4 5 6 7 8 9 10"} {
		if got, err := parseBusy(bad); err == nil {
			t.Errorf("parseBusy(%q) is %v and no error", bad, got)
		}
	}
	if got, err := busy(); err != nil || got <= 0 {
		t.Errorf("this machine was busy for %v, %v", got, err)
	}
}

func TestParseRSS(t *testing.T) {
	const rollup = "00400000-7ffc ---p 00000000 00:00 0 [rollup]\nRss:               14280 kB\nPss:                9000 kB\n"
	if got, err := parseRSS(rollup); err != nil || got != 14280<<10 {
		t.Errorf("parseRSS is %d, %v, want %d", got, err, 14280<<10)
	}
	for _, bad := range []string{"", "Pss: 1 kB\n", "Rss: many kB\n"} {
		if got, err := parseRSS(bad); err == nil {
			t.Errorf("parseRSS(%q) is %d and no error", bad, got)
		}
	}
}

func TestParseInside(t *testing.T) {
	const goroutines = "goroutine profile: total 23\n9 @ 0x1 0x2\n"
	const heap = "heap profile: 1: 2 [3: 4] @ heap/1048576\n\n# runtime.MemStats\n# Alloc = 5\n# HeapInuse = 6029312\n# Stack = 917504 / 917504\n"
	want := inside{23, 6029312, 917504}
	if got, err := parseInside(goroutines, heap); err != nil || got != want {
		t.Errorf("parseInside is %v, %v, want %v", got, err, want)
	}
	for _, bad := range [][2]string{{"", heap}, {goroutines, ""}, {goroutines, "# HeapInuse = many\n# Stack = 1 / 1\n"}} {
		if got, err := parseInside(bad[0], bad[1]); err == nil {
			t.Errorf("parseInside(%q) is %v and no error", bad, got)
		}
	}
	var g, h strings.Builder
	pprof.Lookup("goroutine").WriteTo(&g, 1)
	pprof.Lookup("heap").WriteTo(&h, 1)
	if got, err := parseInside(g.String(), h.String()); err != nil || got.Goroutines < 1 || got.Heap <= 0 || got.Stack <= 0 {
		t.Errorf("this process is %v, %v", got, err)
	}
}

func TestResidentMemoryGrowsByWhatIsTouched(t *testing.T) {
	before, err := rssOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	const size = 64 << 20
	block := make([]byte, size)
	for i := 0; i < size; i += os.Getpagesize() {
		block[i] = 1
	}
	after, err := rssOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if grown := after - before; grown < size*3/4 {
		t.Errorf("after touching %d bytes %d more are resident", size, grown)
	}
	runtime.KeepAlive(block)
}

// A thread that has ended still counts: the sum over /proc/PID/task would lose
// it.
func TestProcessorTimeCountsAllThreads(t *testing.T) {
	before, err := cpuOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	const each = 50 * time.Millisecond
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			runtime.LockOSThread() // and with the goroutine the thread ends
			burn(each)
		})
	}
	wg.Wait()
	after, err := cpuOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if used := after - before; used < 2*each {
		t.Errorf("two threads that used %v each count as %v", each, used)
	}
	if _, err := cpuOf(1 << 22); err == nil || !strings.Contains(err.Error(), "4194304") {
		t.Errorf("the processor time of no process is no error: %v", err)
	}
}

// burn uses processor time of the thread it runs on.
func burn(d time.Duration) {
	now := func() time.Duration {
		var t unix.Timespec
		unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
		return time.Duration(t.Nano())
	}
	for end := now() + d; now() < end; {
	}
}
