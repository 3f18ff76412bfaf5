package pods

import (
	"errors"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
	"github.com/isthmus-mesh/isthmus/nodeproxy/sockdiag"
)

// nodeSockets tells connections of the node's own processes, such as the kubelet's probes, from what the node only
// passes on: who has one of the node's addresses need not be on the node, as it gives its own to what it masquerades.
// The node has a socket for the former. Safe for concurrent use; the zero value but for proc is ready.
type nodeSockets struct {
	proc string // of the node

	mu     sync.Mutex
	opened bool
	said   bool              // that nothing can be told
	tables []*sockdiag.Table // of what could be opened
	err    error             // why not all could
	failed time.Time         // when
}

// openAgain is how often what could not be opened is tried: it may have been for want of descriptors.
const openAgain = 500 * time.Millisecond

// has reports whether a process of the node holds the end local of a connection to remote.
func (n *nodeSockets) has(local, remote netip.AddrPort) (bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.open()
	for _, t := range n.tables {
		if there, err := t.Connected(local, remote); there || err != nil {
			return there, err
		}
	}
	return false, n.err
}

// ofNode reports whether a process of the node, such as the kubelet, holds the end local of a connection to remote. It
// returns false if that is unknown, logs the first such error, and Problems lists the current one.
func (c *Set) ofNode(local, remote netip.AddrPort) bool {
	own, err := c.node.has(local, remote)
	c.nodeUnknown(err)
	return own
}

// lack is why not all of the node's sockets can be asked.
func (n *nodeSockets) lack() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.open()
	return n.err
}

// open opens what is not open yet, or not all of it; the caller holds mu.
func (n *nodeSockets) open() {
	if n.opened && (n.err == nil || time.Since(n.failed) <= openAgain) {
		return
	}
	n.closeTables()
	n.opened, n.failed = true, time.Now()
	n.tables, n.err = openNode(n.proc)
}

// first reports whether this is the first error.
func (n *nodeSockets) first() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	said := n.said
	n.said = true
	return !said
}

// nodeNamespaces opens the network namespaces of the node: that of this process, as with hostNetwork, and that of the
// node's first process if it is another one. The caller closes them. With an error it returns those that it could open.
func nodeNamespaces(proc string) (list []*podns.Namespace, err error) {
	for _, path := range []string{"/proc/self/ns/net", filepath.Join(proc, "1/ns/net")} {
		ns, e := podns.Open(path)
		if e != nil {
			err = errors.Join(err, e)
			continue
		}
		if len(list) > 0 && list[0].ID() == ns.ID() {
			ns.Close()
			continue
		}
		list = append(list, ns)
	}
	return list, err
}

// openNode opens the sockets of nodeNamespaces.
func openNode(proc string) (tables []*sockdiag.Table, err error) {
	list, err := nodeNamespaces(proc)
	for _, ns := range list {
		t, e := sockdiag.Open(ns)
		ns.Close() // the table's socket is in it
		if e != nil {
			err = errors.Join(err, e)
			continue
		}
		tables = append(tables, t)
	}
	return tables, err
}

func (n *nodeSockets) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.opened, n.err = true, nil
	n.closeTables()
}

func (n *nodeSockets) closeTables() {
	for _, t := range n.tables {
		t.Close()
	}
	n.tables = nil
}
