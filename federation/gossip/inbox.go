package gossip

import (
	"context"
	"slices"
	"sync"

	"github.com/isthmus-mesh/isthmus/federation/record"
)

const (
	inboxMessages = 4096
	inboxBytes    = 8 << 20
	// One sender may have so much of it waiting.
	senderMessages = 512
	senderBytes    = 2 << 20
)

// inbox takes messages from memberlist's own queue at once: memberlist works
// that off last first, and the order in which one instance speaks saves
// questions. Senders take turns, and each has a bound of its own; when the whole is
// full, whoever has most waiting loses the latest of it.
type inbox struct {
	dropped func()
	signal  chan struct{}

	mu       sync.Mutex
	senders  map[record.Instance]*pile // with something waiting
	turns    []*pile                   // the same; the next is first
	messages int
	bytes    int
}

// pile is what waits of one sender.
type pile struct {
	from   record.Instance
	bodies [][]byte
	bytes  int
}

type letter struct {
	from record.Instance
	body []byte
}

func newInbox(dropped func()) *inbox {
	return &inbox{dropped: dropped, signal: make(chan struct{}, 1), senders: map[record.Instance]*pile{}}
}

// put copies a message, or drops it: a digest will tell that it is missing.
func (i *inbox) put(from record.Instance, body []byte) {
	i.mu.Lock()
	defer i.mu.Unlock()
	p := i.senders[from]
	if p == nil {
		p = &pile{from: from}
	}
	if len(p.bodies) >= senderMessages || p.bytes+len(body) > senderBytes || !i.makeRoom(p, len(body)) {
		i.dropped()
		return
	}
	if len(p.bodies) == 0 {
		i.senders[from] = p
		i.turns = append(i.turns, p)
	}
	p.bodies = append(p.bodies, append([]byte(nil), body...))
	p.bytes += len(body)
	i.messages++
	i.bytes += len(body)
	select {
	case i.signal <- struct{}{}:
	default:
	}
}

// makeRoom drops the latest messages of those who have more waiting than p would
// have; false if nobody has.
func (i *inbox) makeRoom(p *pile, size int) bool {
	for i.messages >= inboxMessages || i.bytes+size > inboxBytes {
		waiting, needs := func(o *pile) int { return len(o.bodies) }, 1
		if i.messages < inboxMessages {
			waiting, needs = func(o *pile) int { return o.bytes }, size
		}
		most := p
		for _, o := range i.turns {
			if waiting(o) > waiting(most) {
				most = o
			}
		}
		if waiting(most) <= waiting(p)+needs {
			return false
		}
		i.dropLast(most)
	}
	return true
}

func (i *inbox) dropLast(p *pile) {
	last := len(p.bodies) - 1
	i.count(p, p.bodies[last])
	p.bodies[last] = nil
	if p.bodies = p.bodies[:last]; last == 0 {
		delete(i.senders, p.from)
		i.turns = slices.DeleteFunc(i.turns, func(o *pile) bool { return o == p })
	}
	i.dropped()
}

// count takes a message out of the sums.
func (i *inbox) count(p *pile, body []byte) {
	p.bytes -= len(body)
	i.messages--
	i.bytes -= len(body)
}

// next takes the oldest message of the sender whose turn it is; not ok if there is none.
func (i *inbox) next() (l letter, ok bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.turns) == 0 {
		return l, false
	}
	p := i.turns[0]
	l = letter{p.from, p.bodies[0]}
	i.count(p, l.body)
	p.bodies[0] = nil
	p.bodies = p.bodies[1:]
	i.turns = i.turns[1:]
	if len(p.bodies) > 0 {
		i.turns = append(i.turns, p)
	} else {
		delete(i.senders, p.from)
	}
	return l, true
}

// run hands messages to receive, of each sender in order, until ctx ends.
func (i *inbox) run(ctx context.Context, receive func(letter)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-i.signal:
		}
		for ctx.Err() == nil {
			l, ok := i.next()
			if !ok {
				break
			}
			receive(l)
		}
	}
}
