package antientropy

import (
	"time"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

// want is a question for what is missing of an instance.
type want struct {
	asked time.Time
	tries int
}

// ask asks for what is missing of instances, each of one peer at a time.
func (n *Node) ask(now time.Time) {
	for id := range n.wants {
		if _, complete, ok := n.ledger.Have(id); complete || !ok {
			delete(n.wants, id)
		}
	}
	for _, x := range n.order {
		x.forget(n.knows, now)
	}
	for _, h := range n.ledger.Incomplete() {
		if len(n.order) > 0 {
			n.want(record.Instance(h.GetInstance()), n.holder(record.Instance(h.GetInstance()), h.GetCount()), now)
		}
	}
}

// holder is a peer that has said that it holds everything, or any.
func (n *Node) holder(id record.Instance, count uint64) string {
	var holders []*Exchange
	for _, x := range n.order {
		if h := x.has[id]; h.complete && h.count >= count {
			holders = append(holders, x)
		}
	}
	if len(holders) == 0 {
		holders = n.order
	}
	return holders[n.random()%uint64(len(holders))].peer
}

func (n *Node) knows(id record.Instance) bool { _, _, ok := n.ledger.Have(id); return ok }

// want asks peer for what is missing of an instance, unless it was asked for lately.
// For one that is known there is always room.
func (n *Node) want(id record.Instance, peer string, now time.Time) {
	w := n.wants[id]
	switch {
	case !n.knows(id):
		if w = n.peers[peer].ask(id, now); w == nil {
			return
		}
	case w == nil:
		w = &want{}
		n.wants[id] = w
	}
	if !w.asked.IsZero() && now.Sub(w.asked) < min(wantTimeout<<min(max(w.tries-3, 0), 6), maxWantWait) {
		return
	}
	w.asked = now
	w.tries++
	n.send(peer, &pb.Message{Message: &pb.Message_Want{Want: &pb.Want{Instance: id[:], Hashes: n.ledger.Hashes(id)}}})
}
