//go:build !race

// One goroutine in virtual time: the race detector would find nothing, and take ten times
// as long.

package antientropy

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

// A linked network signs 200 statements a second, each with another number, for one
// of two others. It gets no more answers for that, and takes none from the other.
func TestOneNetworkCannotSilenceTwoOthersByDrawingNumbers(t *testing.T) {
	w := newWorld(t, "numbers", 3, 1)
	for _, s := range w.sites {
		w.start(s)
	}
	victim, reader, evil := w.sites[0], w.sites[1], w.sites[2]
	w.publish(victim, healthy(0, 10))
	w.publish(reader, healthy(1, 10))
	w.run(20 * time.Second)
	if err := w.agree(); err != nil {
		t.Fatal(err)
	}
	// The reader's heartbeats come a second after the victim's.
	w.publish(victim, healthy(0, 9))
	w.run(time.Second)
	w.publish(reader, healthy(1, 9))
	w.run(5 * time.Second)
	flood := NewPublisher(evil.key, 10, 1<<20)
	flood.count = 1 << 40
	number, begun, first := uint64(1), w.now, flood.count
	for w.now.Sub(begun) < 75*time.Second {
		for range 2 {
			number += 2
			m, err := flood.Statement(number, nobody, w.now)
			if err != nil {
				t.Fatal(err)
			}
			w.receive(victim, evil.name, statementMessage(m.Statement))
		}
		w.run(10 * time.Millisecond)
		if st, _ := reader.status(victim.key.ID()); st.Phase != ledger.Live {
			t.Fatalf("after %v the reader holds the victim, which is well, for %v", w.now.Sub(begun), st.Phase)
		}
	}
	if said, refused := flood.count-first, w.rejected[victim.name]; said-uint64(refused) > uint64(75*time.Second/statementsEvery)+statementsBurst {
		t.Errorf("of %d statements of one instance in 75 s %d were refused: each takes the check of a signature", said, refused)
	}
}

// Whatever numbers the readers of one network draw, those of others are answered in
// the next statement.
func TestNumbersOfOneNetworkDoNotDelayAnswersToOthers(t *testing.T) {
	a := newAnswers()
	reader := func(n int) record.Instance {
		return record.Instance(sha256.New().Sum([]byte(fmt.Sprintf("%016d", n)))[:16])
	}
	number := uint64(1000)
	for round := range 50 {
		for n := range 2 * maxReaders {
			number++
			a.take(reader(n), "evil", number)
		}
		honest := uint64(round + 1)
		if !a.take(reader(-1), "west", honest) {
			t.Fatalf("statement %d: no room for the only reader of its network", round)
		}
		out, _ := a.next(nobody, 0)
		if !slices.Contains(out, honest) {
			t.Fatalf("statement %d answers %d numbers, and not the only one of a network", round, len(out))
		}
		if len(a.readers) > maxReaders+1 {
			t.Fatalf("%d readers wait, want at most %d of one network and the other one", len(a.readers), maxReaders)
		}
	}
	for range answerTimes {
		a.next(nobody, 0)
	}
	if len(a.readers)+len(a.networks) > 0 {
		t.Errorf("%d readers of %d networks are kept after their answers", len(a.readers), len(a.networks))
	}
}

// Beyond what one statement answers the readers take turns.
func TestAnswersGoToWhoeverWaitsForLongest(t *testing.T) {
	a := newAnswers()
	const readers = maxAnswers + maxAnswers/2
	at := map[uint64]int{} // number → statement that answered it first
	for n := range readers {
		id := record.Instance{byte(n), byte(n >> 8)}
		a.take(id, fmt.Sprint("network-", n/maxReaders), uint64(n+1))
	}
	for statement := range 2 {
		all, _ := a.next(nobody, 0)
		for _, number := range all {
			if _, again := at[number]; !again {
				at[number] = statement
			}
		}
		a.take(record.Instance{1}, "network-0", 1<<40) // draws again and goes to the end
	}
	for n := range readers {
		if got, ok := at[uint64(n+1)]; !ok || got != n/maxAnswers {
			t.Fatalf("number %d of %d was answered in statement %d (%v), want %d", n, readers, got, ok, n/maxAnswers)
		}
	}
}

// A number for which there was no room is answered when it comes again.
func TestANumberThatWasNotTakenIsTakenLater(t *testing.T) {
	w := newWorld(t, "taken", 2, 1)
	w.start(w.sites[0])
	victim, reader := w.sites[0].node, w.sites[1]
	w.start(reader)
	w.run(5 * time.Second)
	for n := range maxReaders {
		victim.publisher.Answer(record.Instance{byte(n), 1}, reader.network, uint64(n+1))
	}
	p := NewPublisher(reader.key, 10, 1<<20)
	p.count = 1 << 40
	const number = 1 << 50
	hear := func() {
		m, err := p.Statement(number, nobody, w.now)
		if err == nil {
			_, _, err = victim.Receive(reader.name, statementMessage(m.Statement), w.now)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	hear()
	for range answerTimes { // the others have got theirs
		if all, _ := victim.publisher.answers.next(nobody, 0); slices.Contains(all, number) {
			t.Fatalf("more than %d readers of one network wait for answers", maxReaders)
		}
	}
	hear()
	if got, _ := victim.publisher.answers.next(nobody, 0); !slices.Contains(got, number) {
		t.Errorf("got answers %v, want %d: it came again", got, uint64(number))
	}
}

// Peers without any network's key make statements of instances that do not exist.
// What a known instance has said and was lost is asked for as ever.
func TestPeersWithoutAKeyCannotEndAntiEntropy(t *testing.T) {
	w := newWorld(t, "wants", 12, 1)
	victim, origin, evil := w.sites[0], w.sites[1], w.sites[2:]
	w.start(victim)
	w.start(origin)
	w.run(5 * time.Second)
	forge := func() {
		for _, s := range evil {
			for range unknownBurst {
				var id record.Instance
				w.source.Read(id[:])
				st := &record.Statement{Instance: id, Count: 1}
				b, err := st.Encode()
				if err != nil {
					t.Fatal(err)
				}
				victim.node.Receive(s.name, statementMessage(&pb.SignedStatement{Statement: b, Signature: make([]byte, 64)}), victim.time(w))
			}
		}
	}
	forge()
	lost := 0
	w.drop = func(to string, message []byte) bool { // what the origin has to say
		var m pb.Message
		if to != victim.name || proto.Unmarshal(message, &m) != nil || m.GetStatement() == nil {
			return false
		}
		if s, err := record.DecodeStatement(m.GetStatement().GetStatement()); err != nil || len(s.Changes) == 0 {
			return false
		}
		lost++
		return true
	}
	w.publish(origin, healthy(0, 3))
	for range 10 {
		w.run(time.Second)
		forge()
	}
	if st, _ := victim.status(origin.key.ID()); !st.Complete || lost == 0 {
		t.Errorf("10 s later what the origin said is not complete (%v, lost %d times): %d questions are kept", st.Phase, lost, len(victim.node.wants))
	}
	for _, s := range evil {
		if n := len(victim.node.peers[s.name].unknown); n > maxUnknown {
			t.Errorf("%d questions for instances that only %s has spoken of, want at most %d", n, s.name, maxUnknown)
		}
	}
	w.run(maxWantWait + 2*time.Second)
	for _, s := range evil {
		if n := len(victim.node.peers[s.name].unknown); n > 0 {
			t.Errorf("%d questions are kept of instances that nobody speaks of any more", n)
		}
	}
}

// A peer that echoes statements of an instance does not have the questions about it
// sent to itself, to leave them unanswered.
func TestEchoesDoNotDivertQuestions(t *testing.T) {
	w := newWorld(t, "echoes", 3, 1)
	victim, origin, evil := w.sites[0], w.sites[1], w.sites[2]
	w.start(victim)
	w.start(origin)
	w.run(5 * time.Second)
	w.drop = func(to string, message []byte) bool { // the victim hears of it, and does not get it
		var m pb.Message
		return to == victim.name && proto.Unmarshal(message, &m) == nil && m.GetChunk() != nil
	}
	for n := range 2000 { // more than a statement carries
		if err := origin.node.Publisher().Put(export(n), origin.time(w)); err != nil {
			t.Fatal(err)
		}
	}
	w.tick(origin)
	w.run(500 * time.Millisecond)
	id := origin.key.ID()
	if st, _ := victim.status(id); st.Complete {
		t.Fatal("nothing is missing")
	}
	echo := statementMessage(origin.node.ledger.Statement(id, false))
	for range 10 { // each when a question is due
		w.now = w.now.Add(maxWantWait)
		out, _, err := victim.node.Receive(evil.name, echo, w.now)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range out {
			var m pb.Message
			if proto.Unmarshal(o.Message, &m) == nil && m.GetWant() != nil {
				t.Fatalf("%s is asked for what the echo did not bring", o.Peer)
			}
		}
	}
}

// An empty digest costs its sender a few bytes, and a reader that lacks everything
// is told of 128 KiB a second.
func TestAnswersToDigestsAreBounded(t *testing.T) {
	w := newWorld(t, "digests", 12, 1)
	for _, s := range w.sites {
		w.start(s)
	}
	w.run(5 * time.Second)
	victim, evil := w.sites[0], w.sites[1]
	for _, s := range w.sites { // statements of some 12 kB
		var records []record.Record
		for n := range 80 {
			records = append(records, export(n))
		}
		w.publish(s, records...)
	}
	w.run(500 * time.Millisecond)
	ask := marshal(&pb.Message{Message: &pb.Message_Digest{Digest: &pb.Digest{}}})
	const seconds = 3
	digest := proto.Size(&pb.Digest{Have: victim.node.ledger.Digest()}) + 16
	out, answered := 0, 0
	for range seconds {
		for range 1000 {
			o, _, err := victim.node.Receive(evil.name, ask, victim.time(w))
			if err == nil {
				answered++
			} else if !errors.Is(err, record.ErrTooLarge) {
				t.Fatal(err)
			}
			for _, x := range o {
				out += len(x.Message)
			}
		}
		w.now = w.now.Add(time.Second)
	}
	if bound := seconds * (maxCatchUp + maxDigests*digest); out > bound || answered > seconds*maxDigests {
		t.Errorf("%d of 3000 digests were answered in %d s, with %d bytes; want at most %d and %d", answered, seconds, out, seconds*maxDigests, bound)
	}
	if answered == 0 {
		t.Error("none was answered")
	}
}
