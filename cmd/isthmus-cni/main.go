//go:build linux

// Command isthmus-cni is a CNI plugin: a pod waits until the node proxy of its node has captured it. With an argument,
// install or uninstall, it puts itself on a node, or takes itself away.
package main

import (
	"os"

	"github.com/isthmus-mesh/isthmus/internal/buildinfo"
	"github.com/isthmus-mesh/isthmus/nodeproxy/cniinstall"
	"github.com/isthmus-mesh/isthmus/nodeproxy/cniplugin"
)

func main() {
	if len(os.Args) > 1 { // runtimes call plugins without any
		os.Exit(cniinstall.Main(os.Args[1:], os.Stderr))
	}
	os.Exit(cniplugin.Main("isthmus-cni " + buildinfo.Version() + ": a CNI plugin that has pods wait until the node proxy of their node has captured them"))
}
