package antientropy

import (
	"maps"
	"strings"
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
	maxDigests  = 8         // of a peer that are answered in a second
	maxCatchUp  = 128 << 10 // bytes of statements that answer them
	maxUnknown  = 16        // instances that a peer alone has spoken of and that are asked for

	// Of one instance's statements a peer may bring so many a second, and at most
	// so many at once. The instance makes about four a second while everything
	// changes; the peer sends them again, and all at once after a cut.
	statementsEvery = time.Second / 32
	statementsBurst = 64
	// The same of all instances together that are not known yet. An answer to a
	// digest may tell of some 300.
	unknownEvery = time.Second / 64
	unknownBurst = 512
)

// Exchange is what one gateway knows of one peer: which of its own statements
// the peer has not acknowledged, and what the peer holds. A pure state machine
// beneath [Node].
type Exchange struct {
	peer  string
	id    record.Instance // zero: not known
	local bool            // of the own network

	unacked []unacked
	rtt     time.Duration
	has     map[record.Instance]have
	unknown map[record.Instance]*want // what it was asked for that nobody has vouched for

	second   time.Time
	wants    int // answered in this second
	digests  int // the same
	caughtUp int // bytes that answered them

	account *allowance // that answers with chunks are spent from
	owed    []question // to be answered, at most maxOwed

	statements map[record.Instance]*pace // of instances that are known
	strangers  pace                      // of others
}

func newExchange(peer string, id record.Instance, local bool, a *allowance) *Exchange {
	return &Exchange{peer: peer, id: id, local: local, account: a, unknown: map[record.Instance]*want{}, statements: map[record.Instance]*pace{}}
}

// compareName orders exchanges by peer.
func (x *Exchange) compareName(peer string) int { return strings.Compare(x.peer, peer) }

// pace lets something happen every so often, and a burst of it at once.
type pace struct{ paid time.Time }

func (p *pace) allows(every time.Duration, burst int, now time.Time) bool {
	if p.paid.Before(now) {
		p.paid = now
	}
	if p.paid.Sub(now) > time.Duration(burst-1)*every {
		return false
	}
	p.paid = p.paid.Add(every)
	return true
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
	x.count(now)
	x.wants++
	return x.wants <= maxWants
}

// mayCompare says whether the peer may have a digest answered now.
func (x *Exchange) mayCompare(now time.Time) bool {
	x.count(now)
	x.digests++
	return x.digests <= maxDigests
}

// mayCatchUp says whether statements of so many bytes may answer digests now.
func (x *Exchange) mayCatchUp(bytes int) bool {
	x.caughtUp += bytes
	return x.caughtUp <= maxCatchUp
}

// count begins to count anew with every second.
func (x *Exchange) count(now time.Time) {
	if now.Sub(x.second) >= time.Second {
		x.second, x.wants, x.digests, x.caughtUp = now, 0, 0, 0
	}
}

// mayState says whether the peer may bring a statement of an instance now: each
// costs the check of a signature, or of two.
func (x *Exchange) mayState(id record.Instance, known bool, now time.Time) bool {
	if !known {
		return x.strangers.allows(unknownEvery, unknownBurst, now)
	}
	p := x.statements[id]
	if p == nil {
		if len(x.statements) >= maxHave {
			maps.DeleteFunc(x.statements, func(_ record.Instance, p *pace) bool { return p.paid.Before(now) })
		}
		p = &pace{}
		x.statements[id] = p
	}
	return p.allows(statementsEvery, statementsBurst, now)
}

// ask returns the question for an instance that nobody has vouched for; nil if the
// peer is asked for as many already. Whoever made them up makes nobody but itself
// wait.
func (x *Exchange) ask(id record.Instance, now time.Time) *want {
	if w := x.unknown[id]; w != nil {
		return w
	}
	if len(x.unknown) >= maxUnknown {
		oldest := record.Instance{}
		for other, w := range x.unknown {
			if o := x.unknown[oldest]; o == nil || w.asked.Before(o.asked) {
				oldest = other
			}
		}
		if now.Sub(x.unknown[oldest].asked) < wantTimeout {
			return nil // it may still be answered
		}
		delete(x.unknown, oldest)
	}
	w := &want{}
	x.unknown[id] = w
	return w
}

// forget drops questions for instances that have become known, or that the peer
// does not answer.
func (x *Exchange) forget(known func(record.Instance) bool, now time.Time) {
	maps.DeleteFunc(x.unknown, func(id record.Instance, w *want) bool { return known(id) || now.Sub(w.asked) > maxWantWait })
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
