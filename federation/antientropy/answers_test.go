package antientropy

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

// answered returns how many numbers a message answers.
func answered(t *testing.T, message []byte) int {
	var m pb.Message
	if err := proto.Unmarshal(message, &m); err != nil {
		t.Fatal(err)
	}
	if m.GetStatement() == nil {
		return 0
	}
	s, err := record.DecodeStatement(m.GetStatement().GetStatement())
	if err != nil {
		t.Fatal(err)
	}
	return len(s.Answers)
}

// What a reader has drawn is answered to it alone, if statements go to it: what each gateway
// is sent at rest does not grow with the numbers of all others.
func TestANumberIsAnsweredToItsReaderAlone(t *testing.T) {
	w := newWorld(t, "answers", 4, 2)
	for _, s := range w.sites {
		w.start(s)
		w.publish(s, export(0), healthy(0, 10))
	}
	w.run(5 * time.Second)
	answers, most, changes := 0, 0, 0
	w.record = func(_ string, b []byte) {
		n := answered(t, b)
		answers, most = answers+n, max(most, n)
	}
	for n := range 120 {
		if n%3 == 0 { // also while something changes
			w.publish(w.sites[0], healthy(0, uint32(n%10)))
			changes++
		}
		w.run(time.Second)
		if n%10 != 9 {
			continue
		}
		if err := w.agree(); err != nil {
			t.Fatal(err)
		}
	}
	if most != 1 {
		t.Errorf("a statement answers %d numbers; want that of the reader it goes to", most)
	}
	// Each answers each other in three statements of every 15 s; statements with changes
	// are passed on.
	if bound := 8 * 7 * answerTimes * (120/15 + 1) * 11 / 10; answers > bound {
		t.Errorf("%d answers in two minutes with %d changes; want at most %d", answers, changes, bound)
	}
}

// Who hears of an instance from others alone is answered to all: a relay passes on the
// statement that came to itself. That holds from when the two lose each other on.
func TestReadersThatLoseEachOtherAreAnsweredThroughOthers(t *testing.T) {
	w := newWorld(t, "lose", 3, 1)
	for _, s := range w.sites {
		w.start(s)
		w.publish(s, export(0), healthy(0, 10))
	}
	w.run(20 * time.Second)
	a, b := w.sites[0], w.sites[2]
	a.node.RemovePeer(b.name)
	b.node.RemovePeer(a.name)
	for second := range 200 {
		w.run(time.Second)
		for _, pair := range [][2]*site{{a, b}, {b, a}} {
			if st, _ := pair[0].status(pair[1].key.ID()); st.Phase != ledger.Live {
				t.Fatalf("%s holds %s for %v %d s after they have lost each other", pair[0].name, pair[1].name, st.Phase, second)
			}
		}
	}
}

// Of a large statement there are few copies: beyond them it answers all readers at once, so
// that no change waits for their signatures and nobody for an answer.
func TestAStatementHasFewCopies(t *testing.T) {
	reader := func(n int) record.Instance { return record.Instance{byte(n + 1)} }
	direct := func(id record.Instance) bool { return id != reader(0) }
	for readers, want := range map[int][2]int{5: {1, 4}, maxCopies + 1: {1, maxCopies}, maxCopies + 2: {maxCopies + 2, 0}} {
		a := newAnswers()
		for n := range readers {
			a.take(reader(n), string(rune('a'+n)), uint64(n+1))
		}
		for range answerTimes {
			all, own := a.next(direct, maxCopies)
			if len(all) != want[0] || len(own) != want[1] {
				t.Errorf("of %d readers %d are answered to all, %d in copies; want %d and %d", readers, len(all), len(own), want[0], want[1])
			}
		}
		if len(a.readers) > 0 {
			t.Errorf("%d of %d readers wait after %d answers", len(a.readers), readers, answerTimes)
		}
	}
}
