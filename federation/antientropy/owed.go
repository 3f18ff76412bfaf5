package antientropy

import (
	"slices"
	"time"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

// What chunks may cost whoever answers: each takes bytes on the wire, and their hashing
// and encoding. A gateway that has just started asks for everything, which is some 20 MB
// with 2 000 services of 20 gateways each; if only one other is there, that one answers it
// all, within two seconds.
const (
	chunkRate  = 8 << 20  // bytes a second that one gateway is answered with, and at once
	chunkTotal = 32 << 20 // the same of all gateways together
	maxOwed    = 64       // answers that one peer may wait for, one for each instance
)

// allowance is what may be spent: so many bytes a second, and those of a second at once.
type allowance struct {
	rate  int
	users int       // exchanges that spend from it
	paid  time.Time // how far ahead it is spent
}

// due is when it may be spent from.
func (a *allowance) due() time.Time { return a.paid.Add(-time.Second) }

func (a *allowance) spend(bytes int, now time.Time) {
	if a.paid.Before(now) {
		a.paid = now
	}
	a.paid = a.paid.Add(time.Duration(bytes) * time.Second / time.Duration(a.rate))
}

// question is what a peer lacks of an instance, by the hashes that it has.
type question struct {
	instance record.Instance
	hashes   *record.Hashes
}

// owe notes a question of the peer, to be answered in its turn; false: it waits for too
// many. One about the same instance replaces the last.
func (x *Exchange) owe(q question) bool {
	if at := slices.IndexFunc(x.owed, func(o question) bool { return o.instance == q.instance }); at >= 0 {
		x.owed[at] = q
		return true
	}
	if len(x.owed) >= maxOwed {
		return false
	}
	x.owed = append(x.owed, q)
	return true
}

// allowance returns that of a gateway, whichever instance of it asks: who connects anew
// gets no new one.
func (n *Node) allowance(gateway string, now time.Time) *allowance {
	for name, a := range n.accounts {
		if a.users == 0 && !now.Before(a.paid) {
			delete(n.accounts, name)
		}
	}
	a := n.accounts[gateway]
	if a == nil {
		a = &allowance{rate: chunkRate}
		n.accounts[gateway] = a
	}
	a.users++
	return a
}

// answer answers questions as far as may be spent now, one of each peer in turn.
func (n *Node) answer(now time.Time) {
	for again := n.owing > 0; again; {
		again = false
		for range n.order {
			if now.Before(n.total.due()) {
				return
			}
			n.turn = (n.turn + 1) % len(n.order)
			x := n.order[n.turn]
			if len(x.owed) == 0 || now.Before(x.account.due()) {
				continue
			}
			q := x.owed[0]
			x.owed = slices.Delete(x.owed, 0, 1)
			n.owing--
			again = true
			if c := n.ledger.Chunk(q.instance, q.hashes); c != nil {
				n.send(x.peer, &pb.Message{Message: &pb.Message_Chunk{Chunk: c}})
				bytes := len(n.outputs[len(n.outputs)-1].Message)
				x.account.spend(bytes, now)
				n.total.spend(bytes, now)
			}
		}
	}
}

// answerAt is when answer has something to do; zero: nothing is owed.
func (n *Node) answerAt() (next time.Time) {
	if n.owing == 0 {
		return next
	}
	for _, x := range n.order {
		if len(x.owed) > 0 {
			next = earliest(next, x.account.due())
		}
	}
	if !next.IsZero() && next.Before(n.total.due()) {
		return n.total.due()
	}
	return next
}
