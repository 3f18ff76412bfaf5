package gossip

import (
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/isthmus-mesh/isthmus/federation/antientropy"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// receive takes a message of a peer.
func (f *Federation) receive(from record.Instance, message []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.peers[from] {
		return nil // its connections have just ended
	}
	out, changes, err := f.node.Receive(from.String(), message, time.Now())
	f.emit(out, changes)
	select {
	case f.wake <- struct{}{}:
	default:
	}
	return err
}

// open takes a message that memberlist has carried.
func (f *Federation) open(l letter) {
	if err := f.receive(l.from, l.body); err != nil {
		f.complain(f.transport.gatewayOf(l.from), err)
	}
}

// complain counts and logs what is wrong with a message of gateway.
func (f *Federation) complain(gateway string, err error) {
	reason := reasonOf(err)
	if reason == "" {
		reason = "malformed"
	}
	f.cfg.Metrics.Rejected.WithLabelValues(reason).Inc()
	f.noteRefusal(err)
	f.rare.Sample(f.cfg.Log.Warn(), gateway, reason).Err(err).Str("member", gateway).Str("reason", reason).Msg("federation message refused")
}

// tell sends a message as memberlist's user message, behind the sender that
// memberlist does not name. It does not wait; false before Run.
func (f *Federation) tell(o antientropy.Output) bool {
	list := f.list.Load()
	if list == nil {
		return false
	}
	id := f.Instance()
	to := memberlist.Address{Addr: nowhere.String(), Name: "@" + o.Peer}
	list.SendToAddress(to, append(id[:], o.Message...)) // the transport counts what it drops
	return true
}

// gateway returns the one that discovery calls network/name, or nil.
func (f *Federation) gateway(name string) *mesh.Gateway {
	for _, g := range f.cfg.Peers() {
		if len(name) == len(g.Network)+1+len(g.Name) && name[len(g.Network)] == '/' && name[:len(g.Network)] == g.Network && name[len(g.Network)+1:] == g.Name {
			return g
		}
	}
	return nil
}
