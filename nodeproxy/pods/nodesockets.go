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

// OfNode reports whether a process of the node, such as the kubelet, holds the end local of a connection to remote. If
// that cannot be told it says false, once in the log why, and Problems while it lasts.
func (c *Set) OfNode(local, remote netip.AddrPort) bool {
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

// openNode opens the sockets of this process's own network namespace, which is the node's where there are no
// containers or it shares it (hostNetwork), and of that of the node's first process.
func openNode(proc string) (tables []*sockdiag.Table, err error) {
	own, err := sockdiag.Open(nil)
	if err == nil {
		tables = append(tables, own)
	}
	home, homeErr := podns.Own()
	ns, first := podns.Open(filepath.Join(proc, "1/ns/net"))
	if homeErr != nil || first != nil {
		return tables, errors.Join(err, homeErr, first)
	}
	defer ns.Close() // the table's socket is in it
	if ns.ID() == home {
		return tables, err
	}
	t, first := sockdiag.Open(ns)
	if first != nil {
		return tables, errors.Join(err, first)
	}
	return append(tables, t), err
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
