//go:build !linux

package lab

import "syscall"

// childAttr is as on Linux, without the death signal: the drill does not run
// here (see claim), but the command that has it builds.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
