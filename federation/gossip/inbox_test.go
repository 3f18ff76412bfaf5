package gossip

import (
	"context"
	"fmt"
	"testing"

	"github.com/isthmus-mesh/isthmus/federation/record"
)

// Whatever some peers send, another one's message is taken and is among the next.
func TestPeersCannotFillTheInboxForOthers(t *testing.T) {
	for name, size := range map[string]int{"small": 1, "large": 60 << 10} {
		t.Run(name, func(t *testing.T) {
			dropped := 0
			i := newInbox(func() { dropped++ })
			const evil = 20
			body := make([]byte, size)
			for n := range evil * inboxMessages {
				i.put(record.Instance{byte(1 + n%evil)}, body)
			}
			if i.messages > inboxMessages || i.bytes > inboxBytes || dropped == 0 {
				t.Errorf("%d messages of %d bytes are queued, and %d were dropped", i.messages, i.bytes, dropped)
			}
			good := record.Instance{99}
			i.put(good, []byte("heartbeat"))
			for n := range evil + 1 {
				l, ok := i.next()
				if !ok {
					t.Fatal("the inbox is empty")
				}
				if l.from == good {
					return
				}
				if n == evil {
					t.Errorf("after %d messages of %d peers the only one of another has not come", n+1, evil)
				}
			}
		})
	}
}

func TestOnePeerHasABoundOfItsOwn(t *testing.T) {
	i := newInbox(func() {})
	for range inboxMessages {
		i.put(record.Instance{1}, []byte{0})
		i.put(record.Instance{2}, make([]byte, 60<<10))
	}
	for id, p := range i.senders {
		if len(p.bodies) > senderMessages || p.bytes > senderBytes || len(p.bodies) < 10 {
			t.Errorf("%d messages of %d bytes wait of %s, want at most %d and %d", len(p.bodies), p.bytes, id, senderMessages, senderBytes)
		}
	}
}

// Messages of one sender stay in order, and nothing is left of who has nothing waiting.
func TestTheInboxKeepsTheOrderOfEachSender(t *testing.T) {
	i := newInbox(func() { t.Error("a message was dropped") })
	const senders, each = 5, 100
	for n := range each {
		for s := range senders {
			i.put(record.Instance{byte(s)}, fmt.Appendf(nil, "%d", n))
		}
	}
	next := map[record.Instance]int{}
	ctx, cancel := context.WithCancel(context.Background())
	total := 0
	i.run(ctx, func(l letter) {
		if got := string(l.body); got != fmt.Sprint(next[l.from]) {
			t.Errorf("of sender %s message %s came when %d was due", l.from, got, next[l.from])
		}
		next[l.from]++
		if total++; total == senders*each {
			cancel()
		}
	})
	if i.messages != 0 || i.bytes != 0 || len(i.senders) != 0 || len(i.turns) != 0 {
		t.Errorf("%d messages, %d bytes, %d senders and %d turns are left", i.messages, i.bytes, len(i.senders), len(i.turns))
	}
}
