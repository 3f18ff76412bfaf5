package nodeproxy

import (
	"slices"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// unrouted says what is in force and leads nowhere, by its addresses. Of services without virtual addresses only who lists
// them in a file can do something about it: gateways tell of those that the controller gives.
func (p *Proxy) unrouted(snap *mesh.Snapshot) (list []string) {
	if p.own == nil {
		list = append(p.cfg.Capture.Addressless(snap), p.cfg.Capture.Taken(snap, p.cfg.Network)...)
	}
	list = append(list, discovery.OnLoopback(snap, p.cfg.capturedFrom())...)
	return append(list, p.pods.Unreached(p.podName)...)
}

// capturedFrom is the network that pods are captured on; empty: none are.
func (c Config) capturedFrom() string {
	if !c.Capture.On() {
		return ""
	}
	return c.Network
}

// Absent names files of this machine that the configuration at path, from which c was read, is given and that cannot be read.
func (c Config) Absent(path string) []string { return strictyaml.Located(path, c, c.Capture.Absent()) }

// Warnings says what of the discovery file is in force and does not do what it was written for: policies that select no
// workload, and what leads nowhere by its addresses. Without a file, or one that can be used, there are none.
func (c Config) Warnings() (list []string) {
	list = c.Discovery.Warnings()
	if c.Discovery.File == "" {
		return list
	}
	snap, _, err := c.Discovery.Load()
	if err != nil {
		return list
	}
	return slices.Concat(list, c.Capture.Addressless(snap), c.Capture.Taken(snap, c.Network), discovery.OnLoopback(snap, c.capturedFrom()))
}
