//go:build linux

package main

import (
	"fmt"
	"os"
	"syscall"
)

// Open files of one process for one idle connection. A server's proxy has the
// application's socket, and without kept inner sessions a connection from the
// gateway as well; a plain relay has two sockets and four ends of pipes. The
// number of connections is the same for all proxies.
const (
	perProxied = 2
	perRelayed = 6
	otherFiles = 1000 // what a process has open besides, with room
)

// raiseFiles raises the limit of open files for this process and those that it
// starts, to what is wanted or to what is allowed, and returns it.
func raiseFiles(want int) (int, error) {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 0, fmt.Errorf("read the limit of open files: %w", err)
	}
	allowed := l
	l.Max = max(l.Max, uint64(want)) // only some may
	l.Cur = l.Max
	if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l) == nil {
		return int(l.Cur), nil
	}
	allowed.Cur = allowed.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &allowed); err != nil {
		return 0, fmt.Errorf("raise the limit of open files to %d: %w", allowed.Max, err)
	}
	return int(allowed.Cur), nil
}

// affordable returns how many of the idle connections the limit of open files
// allows, and says it when they are fewer.
func (v *variant) affordable(idle, files int) int {
	per := perProxied
	if v.Name == "relay" {
		per = perRelayed
	}
	n := min(idle, (files-otherFiles)/per)
	if n < idle {
		fmt.Fprintf(os.Stderr, "  %s: %d open files allow %d idle connections, not %d\n", v.Name, files, n, idle)
	}
	return n
}
