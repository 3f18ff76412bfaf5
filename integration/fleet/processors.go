//go:build linux

package fleet

import (
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// Apart divides the processors that the caller may use: the first for the processes of
// a fleet, the rest for the caller, which it binds to them. It fails if there is only one.
func Apart() (fleet []int, err error) {
	mine, err := allowed()
	if err != nil {
		return nil, err
	}
	if len(mine) < 2 {
		return nil, fmt.Errorf("only one processor may be used, so that load and proxies cannot have different ones: give this program two, or let them share one (--apart=false)")
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return nil, err
	}
	rest := set(mine[1:])
	for _, t := range tasks { // those that come are started by one of them, and inherit it
		id, err := strconv.Atoi(t.Name())
		if err != nil {
			return nil, fmt.Errorf("/proc/self/task has %q, want numbers", t.Name())
		}
		if err := unix.SchedSetaffinity(id, &rest); err != nil && err != unix.ESRCH {
			return nil, os.NewSyscallError("sched_setaffinity", err)
		}
	}
	runtime.GOMAXPROCS(len(mine) - 1)
	return mine[:1], nil
}

// allowed lists the processors that the caller may use.
func allowed() (all []int, err error) {
	var s unix.CPUSet
	if err := unix.SchedGetaffinity(0, &s); err != nil {
		return nil, os.NewSyscallError("sched_getaffinity", err)
	}
	for cpu := range 8 * len(s) * unix.SizeofPtr {
		if s.IsSet(cpu) {
			all = append(all, cpu)
		}
	}
	return all, nil
}

func set(processors []int) (s unix.CPUSet) {
	for _, cpu := range processors {
		s.Set(cpu)
	}
	return s
}

// bind binds the calling thread, and all that it starts, to these processors; nil: to
// those that it is bound to.
func bind(processors []int) error {
	if processors == nil {
		return nil
	}
	s := set(processors)
	return os.NewSyscallError("sched_setaffinity", unix.SchedSetaffinity(0, &s))
}
