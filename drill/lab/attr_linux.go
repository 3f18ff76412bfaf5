package lab

import "syscall"

// childAttr puts a child into a process group of its own, which a terminal's
// Ctrl-C does not reach, and has the kernel kill it when this process is gone.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
