//go:build linux

package fleet

import (
	"os"
	"os/exec"
	"runtime"
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
	if got, err := Busy(); err != nil || got <= 0 {
		t.Errorf("this machine was busy for %v, %v", got, err)
	}
}

// A thread that has ended still counts: the sum over /proc/PID/task would lose
// it.
func TestProcessorTimeCountsAllThreads(t *testing.T) {
	before, err := CPUOf(os.Getpid())
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
	after, err := CPUOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if used := after - before; used < 2*each {
		t.Errorf("two threads that used %v each count as %v", each, used)
	}
	if _, err := CPUOf(1 << 22); err == nil || !strings.Contains(err.Error(), "4194304") {
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

// What this process and the fleet's use is not somebody else's.
func TestMeterTellsOthersFromOurs(t *testing.T) {
	spin := func() *exec.Cmd {
		cmd := exec.Command("sh", "-c", "while :; do :; done")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		return cmd
	}
	ours, other := &Fleet{Processes: []*Process{{cmd: spin()}}}, &Fleet{}
	in, err := ours.StartMeter()
	if err != nil {
		t.Fatal(err)
	}
	out, err := other.StartMeter()
	if err != nil {
		t.Fatal(err)
	}
	pid := ours.Processes[0].Pid()
	began, _ := CPUOf(pid)
	for used := time.Duration(0); used < 300*time.Millisecond; time.Sleep(10 * time.Millisecond) {
		now, err := CPUOf(pid)
		if err != nil {
			t.Fatal(err)
		}
		used = now - began
	}
	took := time.Since(in.begun).Seconds()
	less, err := in.Others()
	if err != nil {
		t.Fatal(err)
	}
	more, err := out.Others()
	if err != nil {
		t.Fatal(err)
	}
	if used := (more - less) * took; used < 0.25 {
		t.Errorf("a process that used 0.3 s counts as %.2f s of somebody else's more where it is not the fleet's", used)
	}
}
