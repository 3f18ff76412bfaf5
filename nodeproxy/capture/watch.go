//go:build linux

package capture

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// Watch says cheaply whether any rules in a namespace have changed: containers in it that may set
// rules may take ours away with theirs (nft flush ruleset). Safe for concurrent use with decisions (see own), and else not.
type Watch struct {
	socket *netlink.Conn

	mu         sync.Mutex // guards generation, and held while decisions change the rules
	generation uint32
}

// own runs f, which changes the rules by one transaction. Changed does not report it. w may be nil.
func (w *Watch) own(f func() error) error {
	if w == nil {
		return f()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	err := f()
	if err == nil && w.generation != 0 {
		if w.generation++; w.generation == 0 {
			w.generation = 1 // as the kernel counts
		}
	}
	return err
}

// NewWatch begins to watch. Close ends it.
func NewWatch(ns *podns.Namespace) (w *Watch, err error) {
	w = &Watch{}
	err = ns.FD(func(fd int) error {
		w.socket, err = dialNetlink(unix.NETLINK_NETFILTER, fd)
		return err
	})
	if err != nil {
		return nil, explain(err)
	}
	return w, nil
}

// Changed reports whether rules have changed since the last call: whoever's, ours too. The first one says so.
// It costs two system calls. While own runs it returns false, and the next call reports the change: a process of the pod
// may delay a transaction there as long as it likes.
func (w *Watch) Changed() (bool, error) {
	if !w.mu.TryLock() {
		return false, nil
	}
	defer w.mu.Unlock()
	got, err := w.socket.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request},
		Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0},
	})
	if err != nil {
		return false, fmt.Errorf("ask for the generation of nftables rules: %w", err)
	}
	for _, m := range got {
		if len(m.Data) < 4 {
			continue
		}
		attrs, err := netlink.UnmarshalAttributes(m.Data[4:])
		if err != nil {
			return false, fmt.Errorf("generation of nftables rules: %w", err)
		}
		for _, a := range attrs {
			if a.Type == unix.NFTA_GEN_ID && len(a.Data) == 4 {
				before := w.generation
				w.generation = binary.BigEndian.Uint32(a.Data)
				return before != w.generation, nil
			}
		}
	}
	return true, nil // a kernel that does not say
}

// Close ends the watch; nil is one that never began.
func (w *Watch) Close() error {
	if w == nil {
		return nil
	}
	return w.socket.Close()
}

// Hold reports whether the rules in a namespace are r, as Set has set them, and nothing else is in their table.
func Hold(ns *podns.Namespace, r Rules) (holds bool, err error) {
	err = lookInto(ns, func(l looking) error {
		p, there, err := l.parts(table)
		if errors.Is(err, errNotAsOurs) {
			return nil
		}
		if !there || err != nil || !maps.Equal(p.chains, r.chains()) || len(p.sets) > maxSets+len(r.decisionSets()) {
			return err
		}
		for chain, want := range r.chains() {
			comments, err := l.rules(table, chain, want+1)
			if err != nil {
				return err
			}
			if len(comments) != want || slices.ContainsFunc(comments, func(c []byte) bool { return !bytes.Equal(c, r.digest()) }) {
				return nil
			}
		}
		holds = true
		return nil
	})
	return holds, err
}

// refuseOthers is how many rules of the chain refuse end it for packets that are not the first of a connection.
const refuseOthers = 2

// chains are how many rules Set sets in each.
func (r Rules) chains() map[string]int {
	m := map[string]int{"output": len(r.captured()), "refuse": len(r.refused()) + len(r.guarded()) + refuseOthers}
	if r.Inbound {
		m["input"], m["guard"] = inboundIn, inboundGuard
	}
	if r.Group != 0 {
		out, decide, refuse := r.decisionRules()
		m["output"] += out
		m["refuse"] += refuse
		m["decide"] = decide
	}
	return m
}

// digest tells rules apart, as the comment that the kernel keeps with each.
func (r Rules) digest() []byte {
	sum := sha256.Sum256([]byte(r.String()))
	return userdata.AppendString(nil, userdata.TypeComment, "isthmus "+hex.EncodeToString(sum[:8]))
}
