//go:build linux

package netspace

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// Launch starts a process that the kernel kills when this one ends, however that happens. exec.Cmd with Pdeathsig alone does not do:
// that signal comes when the thread ends that has started the process, and Go's threads end with goroutines
// that were locked to them.
func Launch(cmd *exec.Cmd) error { return launch(nil, cmd) }

// Launch starts a process in a host as [Launch] does.
func (s *Space) Launch(host string, cmd *exec.Cmd) error {
	if host == Here {
		return launch(nil, cmd)
	}
	ns, err := s.namespace(host)
	if err != nil {
		return err
	}
	return launch(ns, cmd)
}

func launch(ns *os.File, cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	errs := make(chan error, 1)
	launches() <- func() {
		if ns == nil {
			errs <- cmd.Start()
			return
		}
		home, err := within(ns, cmd.Start)
		if !home {
			panic(fmt.Sprintf("netspace: the thread that starts processes is left in %s", ns.Name()))
		}
		errs <- err
	}
	return <-errs
}

// launches runs functions on a thread that never ends.
var launches = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})
