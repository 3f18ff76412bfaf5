//go:build linux

// Command isthmus-cni is a CNI plugin: a pod waits until the node proxy of its node has captured it.
package main

import (
	"os"

	"github.com/isthmus-mesh/isthmus/internal/buildinfo"
	"github.com/isthmus-mesh/isthmus/nodeproxy/cniplugin"
)

func main() {
	os.Exit(cniplugin.Main("isthmus-cni " + buildinfo.Version() + ": a CNI plugin that has pods wait until the node proxy of their node has captured them"))
}
