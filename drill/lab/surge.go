package lab

import (
	"fmt"
	"syscall"

	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

const (
	// niceness of the processes under a surge. The generator shares their machine:
	// who waits for a processor is to be whoever serves, and not whoever asks.
	niceness = 10
	// spareDescriptors is how many a process needs beside the connections of a surge.
	spareDescriptors = 1000
)

// prepareSurge makes sure that a surge can be offered. It is called before any
// process is started.
func prepareSurge(t scenario.Traffic, st *starter) error {
	if t.Open() == 0 {
		return nil
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read the limit of open files: %w", err)
	}
	if err := enough(t, limit.Cur); err != nil {
		return err
	}
	done := make(chan error)
	st.jobs <- func() { done <- yield(niceness) }
	if err := <-done; err != nil {
		return fmt.Errorf("lower the priority of the processes: %w", err)
	}
	return nil
}

// enough reports whether a process may have as many open files as the surge may
// have connections that wait for an answer.
func enough(t scenario.Traffic, files uint64) error {
	if need := uint64(t.Open() + spareDescriptors); files < need {
		return fmt.Errorf("up to %d connections of the surge wait for an answer at once, and a process may have %d open files: raise the limit to %d (ulimit -n), or lower traffic.surge.rate or traffic.timeout", t.Open(), files, need)
	}
	return nil
}
