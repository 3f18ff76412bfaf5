package lab

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
)

// times is processor time in ticks of the kernel's clock since some instant, of
// all processors together: see proc(5).
type times struct {
	all, idle uint64
	programs  uint64 // of all programs on the machine, the kernel's work for them included
	own       uint64 // of this process, its children that have ended, and those that the arm runs
	count     int    // how many processors there are
}

// Bounds of what other programs may take during a surge.
const (
	maxOthers = 0.25 // share of all processors
	minIdle   = 0.1  // if so much is idle, nobody took it from us
)

// doubt says why the span from one reading to another proves nothing about an
// overload, or returns "".
func (t times) doubt(end times) string {
	all := float64(end.all - t.all)
	if all <= 0 {
		return ""
	}
	others := (float64(end.programs-t.programs) - (float64(end.own) - float64(t.own))) / all
	if others <= maxOthers || float64(end.idle-t.idle)/all >= minIdle {
		return ""
	}
	return fmt.Sprintf("other programs took %.0f %% of the machine's processor time during the surge (at most %.0f %%): use a quieter machine", 100*others, 100*maxOthers)
}

// others returns how many processors other programs used on average from one reading to
// another.
func (t times) others(end times) float64 {
	all := float64(end.all) - float64(t.all)
	if all <= 0 {
		return 0
	}
	programs, own := float64(end.programs)-float64(t.programs), float64(end.own)-float64(t.own)
	return max(0, programs-own) / all * float64(end.count)
}

// watchSurge reads the processor times when the surge begins and when it ends, and
// returns why nothing is proved by it, or "".
func (a *armRun) watchSurge(ctx context.Context) string {
	g := a.layout.Scenario.Traffic.Surge
	if g.Rate == 0 || !a.sleepUntil(ctx, g.At) {
		return ""
	}
	begin, err := a.times()
	if err != nil {
		return "read processor times: " + err.Error()
	}
	if !a.sleepUntil(ctx, g.Until) {
		return ""
	}
	end, err := a.times()
	if err != nil {
		return "read processor times: " + err.Error()
	}
	return begin.doubt(end)
}

func (a *armRun) times() (times, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return times{}, err
	}
	t, err := parseTimes(b)
	if err != nil {
		return t, err
	}
	a.mu.Lock()
	pids := []int{os.Getpid()}
	for _, p := range a.running {
		pids = append(pids, p.cmd.Process.Pid)
	}
	a.mu.Unlock()
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue // it has ended
		}
		n, err := parseProcessTime(b, pid == os.Getpid())
		if err != nil {
			return t, err
		}
		t.own += n
	}
	return t, nil
}

// parseTimes reads the first line of /proc/stat: cpu user nice system idle iowait
// irq softirq steal.
func parseTimes(b []byte) (t times, err error) {
	line, _, _ := bytes.Cut(b, []byte("\n"))
	f := bytes.Fields(line)
	if len(f) < 9 || string(f[0]) != "cpu" {
		return t, fmt.Errorf("/proc/stat begins with %q", line)
	}
	for i, s := range f[1:9] {
		n, err := strconv.ParseUint(string(s), 10, 64)
		if err != nil {
			return t, fmt.Errorf("/proc/stat begins with %q", line)
		}
		t.all += n
		switch i {
		case 0, 1, 2:
			t.programs += n
		case 3, 4:
			t.idle += n
		}
	}
	t.count = bytes.Count(b, []byte("\ncpu"))
	return t, nil
}

// parseProcessTime reads utime and stime of /proc/<pid>/stat, and cutime and cstime if
// children that have ended count too: the name in parentheses may hold anything.
func parseProcessTime(b []byte, children bool) (sum uint64, err error) {
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 15 {
		return 0, fmt.Errorf("a process's stat reads %q", b)
	}
	fields := f[11:13]
	if children {
		fields = f[11:15]
	}
	for _, s := range fields {
		n, err := strconv.ParseUint(string(s), 10, 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}
