//go:build linux

// Command node is two small programs of a Kubernetes node that lives in namespaces of its
// own, for tests. It runs the one by whose name it is called: node, which is the first process
// there, or pause, of which pods have a container each.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	var err error
	switch name := filepath.Base(os.Args[0]); name {
	case "node":
		err = node(os.Args[1])
	case "pause":
		pause()
	default:
		err = fmt.Errorf("%s is neither node nor pause: call this binary by one of these names", name)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// pause holds the namespaces of a pod.
func pause() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGINT, syscall.SIGTERM)
	<-end
}
