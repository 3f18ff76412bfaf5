package antientropy

import (
	"slices"
	"time"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

const (
	// Of new peers of other networks so many are sent a digest at once, and more after a
	// while: a node that starts among 200 got 20 MB of statements instead, 199 times the
	// same.
	greetEvery = 250 * time.Millisecond
	greetBurst = 6
	// many is from how many instances on digests come less often while nothing changes, in
	// proportion to the instances: they cost bytes for each of them.
	many = 25
	// quietAfter is how long nothing but heartbeats has to come before that.
	quietAfter = 10 * time.Second
	// overdue is how late an instance is with a heartbeat when whoever brought the last one
	// is asked. A relay brings none by itself.
	overdue = Beat + 700*time.Millisecond
	// maxOverdue is how many peers are asked at once for that reason.
	maxOverdue = 2
)

// hearing is the last news of an instance.
type hearing struct {
	peer string // that brought it: the instance itself, or a relay
	at   time.Time
}

// compare sends digests: to the peers of the own network and to one of another, seldom
// while nothing changes among many; and to those that brought the last news of instances
// from which nothing has come for longer than a heartbeat, which may be relays.
func (n *Node) compare(now time.Time) {
	mine := n.ledger.Digest()
	late := n.overdue(mine, now)
	if len(late) == 0 && now.Sub(n.moved) >= quietAfter && now.Before(n.wide) {
		return
	}
	n.wide = now.Add(digestEvery * time.Duration(max(1, len(mine)/many)))
	to := late
	var others []string
	for _, x := range n.order {
		switch {
		case slices.Contains(to, x.peer):
		case x.local:
			to = append(to, x.peer)
		default:
			others = append(others, x.peer)
		}
	}
	if len(others) > 0 {
		to = append(to, others[n.random()%uint64(len(others))])
	}
	m := &pb.Message{Message: &pb.Message_Digest{Digest: &pb.Digest{Have: mine}}}
	for _, p := range to {
		n.send(p, m)
	}
}

// overdue returns the peers to be asked for heartbeats. Of instances that have been silent
// for long it can be told no more.
func (n *Node) overdue(mine []*pb.Have, now time.Time) (peers []string) {
	if len(n.heards) > len(mine) {
		for id := range n.heards {
			if !n.knows(id) {
				delete(n.heards, id)
			}
		}
	}
	if len(mine) == 0 {
		return nil
	}
	first := int(n.random() % uint64(len(mine))) // so that no two have all the places
	for i := range mine {
		h := mine[(first+i)%len(mine)]
		heard, ok := n.heards[record.Instance(h.GetInstance())]
		late := now.Sub(heard.at)
		if ok && late > overdue && late < 2*ledger.Silence && n.peers[heard.peer] != nil && !slices.Contains(peers, heard.peer) {
			if peers = append(peers, heard.peer); len(peers) == maxOverdue {
				break
			}
		}
	}
	return peers
}

// tellsMore reports whether a digest is worth an answer: the peer holds something newer,
// or lacks something that we hold and teach. That heartbeats are on their way is no reason.
func (n *Node) tellsMore(x *Exchange, d *pb.Digest, mine []*pb.Have) bool {
	for _, h := range mine {
		id := record.Instance(h.GetInstance())
		theirs, known := x.has[id]
		if !known {
			if n.ledger.Teaches(id) {
				return true
			}
			continue
		}
		if theirs.count > h.GetCount() || h.GetComplete() && !theirs.complete {
			return true
		}
	}
	return len(d.GetHave()) > len(mine)
}
