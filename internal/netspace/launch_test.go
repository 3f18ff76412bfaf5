//go:build linux

package netspace

import (
	"os/exec"
	"runtime"
	"sync"
	"testing"
	"time"
)

// Processes live on when the threads end on which their starters ran, which is what becomes of threads that goroutines are
// locked to.
func TestLaunchedProcessesOutliveTheThreadsOfTheirCallers(t *testing.T) {
	var commands []*exec.Cmd
	var callers sync.WaitGroup
	var all sync.WaitGroup // so that each has a thread of its own; the process's first one would not end
	all.Add(4)
	for range 4 {
		cmd := exec.Command("sleep", "60")
		commands = append(commands, cmd)
		callers.Go(func() {
			runtime.LockOSThread() // and with the goroutine the thread ends
			all.Done()
			all.Wait()
			if err := Launch(cmd); err != nil {
				t.Error(err)
			}
		})
	}
	callers.Wait()
	ended := make(chan struct{}, len(commands))
	for _, cmd := range commands {
		if cmd.Process == nil {
			continue
		}
		go func() {
			cmd.Wait()
			ended <- struct{}{}
		}()
		t.Cleanup(func() { cmd.Process.Kill(); <-ended })
	}
	time.Sleep(200 * time.Millisecond) // nothing says when a thread has ended
	if n := len(ended); n > 0 {
		t.Errorf("%d of %d have ended", n, len(commands))
	}
}
