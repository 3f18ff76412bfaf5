//go:build linux

package fleet

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CPUOf returns the processor time of a process since its start, of all its
// threads, those that ended included. The kernel's process clock counts
// nanoseconds; /proc/PID/stat counts ticks of 10 ms, too few for short cells.
func CPUOf(pid int) (time.Duration, error) {
	const cpuclockSched = 2 // linux/posix-timers.h; the clock's number is made of it and the PID
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|cpuclockSched), &t); err != nil {
		return 0, fmt.Errorf("read the processor time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// Busy returns the processor time of the whole machine that was not idle, over
// all processors, since its start.
func Busy() (time.Duration, error) {
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

// Meter measures what others take of the machine.
type Meter struct {
	pids   []int         // the caller's first
	ours   time.Duration // of all of them, the caller's included
	caller time.Duration
	busy   time.Duration
	begun  time.Time
}

// StartMeter begins a measurement. The fleet is started, and none of its processes
// ends before Others.
func (f *Fleet) StartMeter() (*Meter, error) {
	m := &Meter{pids: []int{os.Getpid()}, begun: time.Now()}
	for _, p := range f.Processes {
		m.pids = append(m.pids, p.Pid())
	}
	var err error
	if m.busy, m.ours, err = m.read(); err != nil {
		return nil, err
	}
	m.caller, err = CPUOf(m.pids[0])
	return m, err
}

func (m *Meter) read() (busy, ours time.Duration, err error) {
	for _, pid := range m.pids {
		t, err := CPUOf(pid)
		if err != nil {
			return 0, 0, err
		}
		ours += t
	}
	busy, err = Busy()
	return busy, ours, err
}

// Others is how many processors were busy since StartMeter, on average, with
// processes that are neither the fleet's nor the caller's.
func (m *Meter) Others() (processors float64, err error) {
	busy, ours, err := m.read()
	if err != nil {
		return 0, err
	}
	others := (busy - m.busy) - (ours - m.ours)
	return max(0, others.Seconds()/time.Since(m.begun).Seconds()), nil
}

// Ours is how much processor time the caller and the fleet's processes used since
// StartMeter.
func (m *Meter) Ours() (caller, fleet time.Duration, err error) {
	_, ours, err := m.read()
	if err != nil {
		return 0, 0, err
	}
	caller, err = CPUOf(m.pids[0])
	if err != nil {
		return 0, 0, err
	}
	caller -= m.caller
	return caller, ours - m.ours - caller, nil
}
