package lab

import "syscall"

// yield lowers the priority of the calling thread, and of what it starts from
// then on, by so many steps of nice(2).
func yield(steps int) error {
	const none = 20 // what the system call returns for a niceness of 0: 20 - niceness
	was, err := syscall.Getpriority(syscall.PRIO_PROCESS, 0)
	if err != nil {
		return err
	}
	return syscall.Setpriority(syscall.PRIO_PROCESS, 0, min(none-was+steps, 19))
}

// childAttr puts a child into a process group of its own, which a terminal's
// Ctrl-C does not reach, and has the kernel kill it when this process is gone.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
