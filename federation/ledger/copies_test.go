package ledger

import (
	"errors"
	"testing"
	"time"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

// again returns the newest statement once more, answering other numbers.
func (s *speaker) again(answers ...uint64) *pb.SignedStatement {
	was := s.answers
	defer func() { s.answers = was }()
	s.count--
	s.answers = answers
	return s.sign(s.watermark, nil, nil)
}

// A statement comes to each reader as a copy that answers it alone, and a relay passes on
// its own: what the reader's copy answers counts whichever comes first.
func TestAnAnswerCountsThoughAnotherReadersCopyCameFirst(t *testing.T) {
	for name, later := range map[string]int{"the same statement": 0, "a later one": 1} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(epoch)
			a := newSpeaker(t, "west", "gw-1")
			a.answers = []uint64{number + 1} // of the relay
			other := a.say(health(10, 10))
			own := a.again(number)
			offer(t, l, other, epoch.Add(time.Second))
			for range later {
				offer(t, l, a.say(health(10, 9)), epoch.Add(time.Second))
			}
			if got := phase(l, a); got != Pending {
				t.Fatalf("%v by what answers another reader", got)
			}
			forged := &pb.SignedStatement{Statement: own.Statement, Signature: other.Signature, Certificate: own.Certificate}
			if _, err := l.Offer(forged, epoch.Add(2*time.Second)); !errors.Is(err, ErrSignature) {
				t.Errorf("a copy that its instance has not signed: %v", err)
			}
			if got := phase(l, a); got != Pending {
				t.Fatalf("%v by what its instance has not signed", got)
			}
			o := offer(t, l, own, epoch.Add(2*time.Second))
			if got := phase(l, a); got != Live || o.News || len(o.Changes) == 0 {
				t.Errorf("%v, %+v; want live, which is a change and no news", got, o)
			}
			if o := offer(t, l, own, epoch.Add(2*time.Second)); len(o.Changes) > 0 {
				t.Errorf("what came again changes %v", o.Changes)
			}
			if h, ok := l.Health("west", hello, 80); !ok || h.Healthy != uint32(10-later) {
				t.Errorf("%+v, %v", h, ok)
			}
		})
	}
}

// A number that a copy answers proves nothing of what comes a minute later.
func TestAnAnswerOfACopyCountsFromWhenItsNumberWasDrawn(t *testing.T) {
	l := newLedger(epoch)
	a := newSpeaker(t, "west", "gw-1")
	a.answers = nil
	now := epoch.Add(Fresh - time.Second)
	offer(t, l, a.say(health(10, 10)), now)
	offer(t, l, a.again(number), now)
	if got := phase(l, a); got != Live {
		t.Fatalf("%v within a minute of the number", got)
	}
	now = epoch.Add(Fresh + 2*time.Second)
	offer(t, l, a.say(), now)
	offer(t, l, a.again(number), now)
	if i := l.instances[record.Instance(a.key.ID())]; !i.vouched.Before(now) {
		t.Error("vouched for by a number that is older than a minute")
	}
}
