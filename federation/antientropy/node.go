package antientropy

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

const (
	// MaxMessage is the largest message, in bytes; all but chunks fit a packet of
	// 64 KiB.
	MaxMessage = record.MaxChunk + 1024

	drawEvery   = 15 * time.Second       // a number
	digestEvery = time.Second            // to peers of the own network, and to one other, if not seldom: see compare
	coalesce    = 20 * time.Millisecond  // between two statements with changes
	edgesEvery  = 250 * time.Millisecond // the same in the long run: what changes all the time is told together
	edgesBurst  = 12                     // statements with changes that may come before that
	soon        = 200 * time.Millisecond
	wantTimeout = time.Second
	maxWantWait = time.Minute // between questions for what cannot be completed
	forwards    = 2           // peers of other networks that news is passed on to
	maxHave     = 4096        // instances in a digest
)

// Output is a message for a peer. Bulk goes by a stream, everything else fits a
// packet that may be lost.
type Output struct {
	Peer    string
	Message []byte
	Bulk    bool
}

// Config is what a node is made of. Random must be unforeseeable: readers'
// numbers come from it.
type Config struct {
	Publisher *Publisher
	Ledger    *ledger.Ledger
	Random    func() uint64
}

// Node is one gateway in the federation.
type Node struct {
	publisher *Publisher
	ledger    *ledger.Ledger
	random    func() uint64

	peers   map[string]*Exchange
	readers map[record.Instance]*Exchange // those of peers that are known by their instance
	order   []*Exchange                   // the same, sorted by peer
	wants   map[record.Instance]*want     // of instances that are known
	numbers map[record.Instance]uint64    // last seen of each reader
	heards  map[record.Instance]hearing

	accounts map[string]*allowance // by gateway
	total    allowance             // of all
	owing    int                   // questions that wait for an answer, of all peers
	turn     int                   // in order, of whom was answered last

	number  uint64
	drawn   time.Time
	beat    time.Time // when the next heartbeat is due
	stated  time.Time
	edged   time.Time // of the last statement with changes
	paid    time.Time // how far ahead statements with changes have used up edgesEvery
	again   time.Time // before it nothing is to be sent again; zero: never
	digest  time.Time
	greeted pace      // digests to new peers of other networks
	wide    time.Time // when the next is due though nothing changes
	moved   time.Time // when anything last changed that more than a heartbeat tells of
	changes []ledger.Change
	outputs []Output
}

// NewNode returns a node without peers. Its first Tick says hello.
func NewNode(c Config, now time.Time) *Node {
	return &Node{
		publisher: c.Publisher, ledger: c.Ledger, random: c.Random,
		peers: map[string]*Exchange{}, readers: map[record.Instance]*Exchange{}, wants: map[record.Instance]*want{}, numbers: map[record.Instance]uint64{}, heards: map[record.Instance]hearing{},
		accounts: map[string]*allowance{}, total: allowance{rate: chunkTotal}, beat: now, digest: now, moved: now,
	}
}

// Ledger returns what the node believes.
func (n *Node) Ledger() *ledger.Ledger { return n.ledger }

// Publisher returns what the node itself says. After changing it, call Tick.
func (n *Node) Publisher() *Publisher { return n.publisher }

// AddPeer begins an exchange with an instance of a gateway, network/name; local peers are
// of the own network. What id has drawn is answered to this peer alone: zero if that is
// not known, and then to all, as to those that hear of it from others. The next Tick sends a digest, if not many have been sent for that
// reason: each is answered with all that this node lacks. The others hear of it by its
// statements.
func (n *Node) AddPeer(peer string, id record.Instance, gateway string, local bool, now time.Time) {
	if n.peers[peer] != nil {
		return
	}
	x := newExchange(peer, id, local, n.allowance(gateway, now))
	n.peers[peer] = x
	if id != (record.Instance{}) {
		n.readers[id] = x
	}
	at, _ := slices.BinarySearchFunc(n.order, peer, (*Exchange).compareName)
	n.order = slices.Insert(n.order, at, x)
	if local || n.greeted.allows(greetEvery, greetBurst, now) {
		n.send(peer, &pb.Message{Message: &pb.Message_Digest{Digest: &pb.Digest{Have: n.ledger.Digest()}}})
	}
	n.beat = earliest(n.beat, now.Add(coalesce))
	n.moved = now
}

// SetKnown replaces the keys by which networks are known, and asks at the next Tick, which
// is due at once, what peers hold: of instances that were not believed nothing was kept.
func (n *Node) SetKnown(known networkkey.Known, now time.Time) ([]Output, []ledger.Change) {
	n.changes = append(n.changes, n.ledger.SetKnown(known, now)...)
	n.digest, n.moved = now, now
	return n.take()
}

// RemovePeer ends an exchange.
func (n *Node) RemovePeer(peer string) {
	x := n.peers[peer]
	if x == nil {
		return
	}
	x.account.users--
	n.owing -= len(x.owed)
	delete(n.peers, peer)
	if n.readers[x.id] == x {
		delete(n.readers, x.id)
	}
	n.order = slices.DeleteFunc(n.order, func(o *Exchange) bool { return o == x })
}

func (n *Node) send(peer string, m *pb.Message) {
	n.outputs = append(n.outputs, Output{Peer: peer, Message: marshal(m), Bulk: m.GetChunk() != nil})
}

// take returns what has come together.
func (n *Node) take() ([]Output, []ledger.Change) {
	o, c := n.outputs, n.changes
	n.outputs, n.changes = nil, nil
	return o, c
}

// Tick does what is due at now: it must be called at [Node.Next], and after the
// publisher was changed. The error is something of our own that could not be
// published; everything else goes on.
func (n *Node) Tick(now time.Time) ([]Output, []ledger.Change, error) {
	err := n.publisher.ripen(now)
	if n.number == 0 || now.Sub(n.drawn) >= drawEvery {
		n.number, n.drawn = n.random()|1, now // never zero, which means none
		n.ledger.Draw(n.number, now)
	}
	if !now.Before(n.beat) || n.publisher.Edges() && !now.Before(n.edgesDue()) {
		err = errors.Join(err, n.state(now))
	}
	n.resend(now)
	if !now.Before(n.digest) {
		n.digest = now.Add(digestEvery)
		n.compare(now)
	}
	n.ask(now)
	n.answer(now)
	n.changes = append(n.changes, n.ledger.Advance(now)...)
	o, c := n.take()
	return o, c, err
}

// resend sends again what peers have not acknowledged in time.
func (n *Node) resend(now time.Time) {
	if n.again.IsZero() || now.Before(n.again) {
		return
	}
	n.again = time.Time{}
	for _, x := range n.order {
		for _, m := range x.resend(now) {
			n.outputs = append(n.outputs, Output{Peer: x.peer, Message: m})
		}
		n.again = earliest(n.again, x.next())
	}
}

// Next returns when Tick may have something to do. It is asked after each message, so it
// does not look at each peer or instance.
func (n *Node) Next(now time.Time) time.Time {
	next := earliest(n.beat, n.digest)
	if n.publisher.Edges() {
		next = earliest(next, n.edgesDue())
	}
	next = earliest(earliest(next, n.publisher.Next()), n.answerAt())
	return earliest(earliest(next, n.again), n.ledger.Next())
}

// edgesDue is when a statement with changes may be sent: at once, unless many
// were sent lately.
func (n *Node) edgesDue() time.Time {
	due := n.edged.Add(coalesce)
	if t := n.paid.Add(-(edgesBurst - 1) * edgesEvery); t.After(due) {
		return t
	}
	return due
}

// earliest treats zero as never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// state signs a statement and sends it to all: to those whose number is to be answered as
// a copy of their own.
func (n *Node) state(now time.Time) error {
	edges := n.publisher.Edges()
	s, err := n.publisher.Statement(n.number, n.reaches, now)
	if err != nil {
		return err
	}
	n.stated, n.beat = now, now.Add(Beat)
	if edges {
		n.edged, n.moved = now, now
		if n.paid.Before(now) {
			n.paid = now
		}
		n.paid = n.paid.Add(edgesEvery)
	}
	o, err := n.ledger.OfferOwn(s.Statement, n.publisher.set, s.Keys, now)
	if err != nil {
		return err
	}
	n.changes = append(n.changes, o.Changes...)
	all := statementMessage(s.Statement)
	n.outputs = slices.Grow(n.outputs, len(n.order))
	for _, x := range n.order {
		b := all
		if own := s.Copies[x.id]; own != nil {
			b = statementMessage(own)
		}
		n.outputs = append(n.outputs, Output{Peer: x.peer, Message: b})
		if edges {
			x.tell(n.publisher.count, b, now)
			n.again = earliest(n.again, x.next())
		}
	}
	return nil
}

// reaches says whether statements go to an instance itself.
func (n *Node) reaches(id record.Instance) bool { return n.readers[id] != nil }

// Receive takes a message of a peer. The error is what is wrong with it, to be
// counted and logged with the peer's name; what else comes out holds all the same.
func (n *Node) Receive(peer string, message []byte, now time.Time) ([]Output, []ledger.Change, error) {
	err := n.receive(peer, message, now)
	o, c := n.take()
	return o, c, err
}

func (n *Node) receive(peer string, message []byte, now time.Time) error {
	x := n.peers[peer]
	if x == nil {
		return fmt.Errorf("message of %q: no such peer", peer)
	}
	if len(message) > MaxMessage {
		return fmt.Errorf("message of %d bytes, limit %d: %w", len(message), MaxMessage, record.ErrTooLarge)
	}
	var m pb.Message
	if err := proto.Unmarshal(message, &m); err != nil {
		return &record.InvalidError{Field: "message", Value: len(message), Remedy: "is not readable: " + err.Error()}
	}
	switch {
	case m.GetStatement() != nil:
		return n.statement(x, m.GetStatement(), message, now)
	case m.GetChunk() != nil:
		return n.chunk(x, m.GetChunk(), now)
	case m.GetDigest() != nil:
		return n.compared(x, m.GetDigest(), now)
	case m.GetAck() != nil:
		if string(m.GetAck().GetInstance()) == string(n.publisher.id()) {
			x.acked(m.GetAck().GetCount(), now)
			n.again = earliest(n.again, x.next()) // by what it took, the rest is due earlier
		}
		return nil
	case m.GetWant() != nil:
		return n.wanted(x, m.GetWant(), now)
	}
	return nil // of a newer version
}

func (n *Node) statement(x *Exchange, m *pb.SignedStatement, message []byte, now time.Time) error {
	if id := record.StatementOf(m.GetStatement()); !x.mayState(id, n.knows(id), now) {
		return fmt.Errorf("statements of instance %s, more than one in %v: %w", id, statementsEvery, record.ErrTooLarge)
	}
	o, err := n.ledger.Offer(m, now)
	if errors.Is(err, ledger.ErrCertificate) {
		n.want(o.Instance, x.peer, now)
		return nil
	}
	if err != nil {
		return err
	}
	if o.Edges {
		count, _, _ := n.ledger.Have(o.Instance)
		n.send(x.peer, &pb.Message{Message: &pb.Message_Ack{Ack: &pb.Ack{Instance: o.Instance[:], Count: count}}})
	}
	n.heard(x, o, o.News, now) // an echo of what is known costs nobody a signature: it decides nothing
	if o.News && o.Edges {
		n.pass(x.peer, message)
	}
	return nil
}

// heard does what follows from a statement, however it came. What is missing is
// asked of x, which has brought something new; else ask decides of whom.
func (n *Node) heard(x *Exchange, o ledger.Outcome, brought bool, now time.Time) {
	n.changes = append(n.changes, o.Changes...)
	if o.Complete {
		delete(n.wants, o.Instance)
	} else if brought {
		n.want(o.Instance, x.peer, now)
	}
	if !o.News {
		return
	}
	n.heards[o.Instance] = hearing{peer: x.peer, at: now}
	if o.Edges || !o.Complete {
		n.moved = now
	}
	if old := n.numbers[o.Instance]; o.Number != old && n.publisher.Answer(o.Instance, o.Network, o.Number) {
		n.remember(o.Instance, o.Number)
		if old == 0 {
			n.hurry(now) // each of us waits for the other's answer
		}
	}
}

func (n *Node) remember(id record.Instance, number uint64) {
	if len(n.numbers) >= maxHave {
		for known := range n.numbers {
			if _, _, ok := n.ledger.Have(known); !ok {
				delete(n.numbers, known)
			}
		}
	}
	n.numbers[id] = number
}

// hurry brings the next heartbeat forward: somebody waits for an answer.
func (n *Node) hurry(now time.Time) {
	due := now
	if after := n.stated.Add(soon); after.After(due) {
		due = after
	}
	n.beat = earliest(n.beat, due)
}

// pass passes news on: to the own network, whose gateways may share one
// address, and to a few others, which may not reach its origin.
func (n *Node) pass(from string, message []byte) {
	var others []string
	for _, x := range n.order {
		switch {
		case x.peer == from:
		case x.local:
			n.outputs = append(n.outputs, Output{Peer: x.peer, Message: message})
		default:
			others = append(others, x.peer)
		}
	}
	for range min(forwards, len(others)) {
		k := int(n.random() % uint64(len(others)))
		n.outputs = append(n.outputs, Output{Peer: others[k], Message: message})
		others = slices.Delete(others, k, k+1)
	}
}

// compared answers a digest: with our own, and with what the peer lacks.
func (n *Node) compared(x *Exchange, d *pb.Digest, now time.Time) error {
	if len(d.GetHave()) > maxHave {
		return &record.InvalidError{Field: "digest", Value: len(d.GetHave()), Remedy: fmt.Sprintf("want at most %d instances", maxHave)}
	}
	if !x.mayCompare(now) {
		return fmt.Errorf("more than %d digests in a second: %w", maxDigests, record.ErrTooLarge)
	}
	x.learn(d, n.knows)
	mine := n.ledger.Digest()
	if !d.GetReply() && n.tellsMore(x, d, mine) {
		n.send(x.peer, &pb.Message{Message: &pb.Message_Digest{Digest: &pb.Digest{Have: mine, Reply: true}}})
	}
	for _, h := range mine {
		id := record.Instance(h.GetInstance())
		theirs, known := x.has[id]
		if known && theirs.count >= h.GetCount() || !known && !n.ledger.Teaches(id) {
			continue
		}
		m := statementMessage(n.ledger.Statement(id, !known))
		if !x.mayCatchUp(len(m)) {
			return nil // the next digest goes on
		}
		n.outputs = append(n.outputs, Output{Peer: x.peer, Message: m})
	}
	return nil
}

func (n *Node) wanted(x *Exchange, w *pb.Want, now time.Time) error {
	if len(w.GetInstance()) != 16 {
		return &record.InvalidError{Field: "instance", Value: len(w.GetInstance()), Remedy: "want 16 bytes"}
	}
	hashes, err := record.ParseHashes(w.GetHashes())
	if err != nil {
		return err
	}
	if !x.mayWant(now) {
		return fmt.Errorf("more than %d questions in a second: %w", maxWants, record.ErrTooLarge)
	}
	waiting := len(x.owed)
	if !x.owe(question{record.Instance(w.GetInstance()), hashes}) {
		return fmt.Errorf("more than %d questions wait for their answers: %w", maxOwed, record.ErrTooLarge)
	}
	n.owing += len(x.owed) - waiting
	n.answer(now)
	return nil
}

func (n *Node) chunk(x *Exchange, c *pb.Chunk, now time.Time) error {
	o, err := n.ledger.OfferChunk(c, now)
	if err != nil {
		n.changes = append(n.changes, o.Changes...)
		if errors.Is(err, ledger.ErrBehind) || errors.Is(err, ledger.ErrCertificate) {
			return nil // we have moved on: ask asks again
		}
		return err
	}
	forward := len(o.Changes) > 0
	if w := n.wants[o.Instance]; w != nil && forward {
		w.asked, w.tries = time.Time{}, 0 // ask for the next part at once
	}
	n.heard(x, o, forward, now)
	return nil
}
