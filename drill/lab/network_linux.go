package lab

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// leaveNetwork moves the calling thread to a new network namespace.
func leaveNetwork() (*os.File, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("new network namespace: %w", err)
	}
	return threadNetwork()
}

// enterNetwork moves the calling thread to ns; back moves it to where it was.
func enterNetwork(ns *os.File) (back func() error, err error) {
	home, err := threadNetwork()
	if err != nil {
		return nil, err
	}
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		home.Close()
		return nil, err
	}
	return func() error {
		defer home.Close()
		return unix.Setns(int(home.Fd()), unix.CLONE_NEWNET)
	}, nil
}

func threadNetwork() (*os.File, error) {
	return os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
}
