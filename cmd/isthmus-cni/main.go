//go:build linux

// Command isthmus-cni is a CNI plugin: a pod waits until the node proxy of its node has captured it. With an argument,
// install or uninstall, it puts itself on a node, or takes itself away; version prints its version.
package main

import (
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/isthmus-mesh/isthmus/internal/buildinfo"
	"github.com/isthmus-mesh/isthmus/nodeproxy/cniinstall"
	"github.com/isthmus-mesh/isthmus/nodeproxy/cniplugin"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 { // as runtimes call plugins
		return cniplugin.Main("isthmus-cni " + buildinfo.Version() + ": a CNI plugin that has pods wait until the node proxy of their node has captured them")
	}
	switch args[0] {
	case "version", "-version", "--version":
		fmt.Fprintln(stdout, "isthmus-cni", buildinfo.Version(), runtime.Version())
		return 0
	}
	return cniinstall.Main(args, stderr)
}
