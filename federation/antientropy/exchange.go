package antientropy

import (
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

const (
	resendAfter = 250 * time.Millisecond
	resendTimes = 6
	maxUnacked  = 16        // statements with changes; beyond them the peer asks
	maxWants    = 256       // that a peer may ask in a second
	maxCatchUp  = 128 << 10 // bytes of statements that answer one digest
)

// Exchange is what one gateway knows of one peer: which of its own statements
// the peer has not acknowledged, and what the peer holds. A pure state machine
// beneath [Node].
type Exchange struct {
	peer  string
	local bool // of the own network

	unacked []unacked
	rtt     time.Duration
	has     map[record.Instance]have
	wants   int // answered in this second
	second  time.Time
}

type unacked struct {
	count   uint64
	message []byte
	sent    time.Time
	first   time.Time
	times   int
}

type have struct {
	count    uint64
	complete bool
}

// tell notes a statement with changes that the peer is to acknowledge.
func (x *Exchange) tell(count uint64, message []byte, now time.Time) {
	if len(x.unacked) >= maxUnacked {
		x.unacked = x.unacked[1:] // the heartbeat will tell that it is missing
	}
	x.unacked = append(x.unacked, unacked{count: count, message: message, sent: now, first: now, times: 1})
}

// acked drops what the peer has; all that came before goes with it, since a
// peer that misses something asks.
func (x *Exchange) acked(count uint64, now time.Time) {
	for len(x.unacked) > 0 && x.unacked[0].count <= count {
		if u := x.unacked[0]; u.count == count && u.times == 1 {
			x.rtt = now.Sub(u.first)
		}
		x.unacked = x.unacked[1:]
	}
}

// patience is how long an acknowledgement may take.
func (x *Exchange) patience() time.Duration { return min(max(resendAfter, 2*x.rtt), time.Second) }

// resend returns what has to be sent again.
func (x *Exchange) resend(now time.Time) (out [][]byte) {
	kept := x.unacked[:0]
	for _, u := range x.unacked {
		if now.Sub(u.sent) >= x.patience() {
			if u.times >= resendTimes {
				continue
			}
			u.sent, u.times = now, u.times+1
			out = append(out, u.message)
		}
		kept = append(kept, u)
	}
	x.unacked = kept
	return out
}

// next is when resend has something to do; zero: never.
func (x *Exchange) next() (next time.Time) {
	for _, u := range x.unacked {
		if t := u.sent.Add(x.patience()); next.IsZero() || t.Before(next) {
			next = t
		}
	}
	return next
}

// mayWant says whether the peer may ask for a chunk now.
func (x *Exchange) mayWant(now time.Time) bool {
	if now.Sub(x.second) >= time.Second {
		x.second, x.wants = now, 0
	}
	x.wants++
	return x.wants <= maxWants
}

// learn takes note of a digest; only instances that known says are kept.
func (x *Exchange) learn(d *pb.Digest, known func(record.Instance) bool) {
	x.has = make(map[record.Instance]have)
	for _, h := range d.GetHave() {
		if len(h.GetInstance()) != 16 {
			continue
		}
		if id := record.Instance(h.GetInstance()); known(id) {
			x.has[id] = have{h.GetCount(), h.GetComplete()}
		}
	}
}

func marshal(m *pb.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		return nil // cannot be: it has no strings
	}
	return b
}

func statementMessage(s *pb.SignedStatement) []byte {
	return marshal(&pb.Message{Message: &pb.Message_Statement{Statement: s}})
}
