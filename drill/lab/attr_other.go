//go:build !linux

package lab

import "syscall"

// yield does nothing: see claim.
func yield(int) error { return nil }

// childAttr is as on Linux, without the death signal: the drill does not run
// here (see claim), but the command that has it builds.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
