package gossip

import (
	"context"
	"sync"

	"github.com/isthmus-mesh/isthmus/federation/record"
)

const (
	inboxMessages = 4096
	inboxBytes    = 8 << 20
)

// inbox takes messages from memberlist's own queue at once: memberlist works
// that off last first, and the order in which one instance speaks saves
// questions.
type inbox struct {
	dropped func()
	signal  chan struct{}

	mu    sync.Mutex
	queue []letter
	bytes int
}

type letter struct {
	from record.Instance
	body []byte
}

func newInbox(dropped func()) *inbox {
	return &inbox{dropped: dropped, signal: make(chan struct{}, 1)}
}

// put copies a message, or drops it: a digest will tell that it is missing.
func (i *inbox) put(from record.Instance, body []byte) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.queue) >= inboxMessages || i.bytes+len(body) > inboxBytes {
		i.dropped()
		return
	}
	i.queue = append(i.queue, letter{from, append([]byte(nil), body...)})
	i.bytes += len(body)
	select {
	case i.signal <- struct{}{}:
	default:
	}
}

// run hands messages to receive, in order, until ctx ends.
func (i *inbox) run(ctx context.Context, receive func(letter)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-i.signal:
		}
		i.mu.Lock()
		queue := i.queue
		i.queue, i.bytes = nil, 0
		i.mu.Unlock()
		for _, l := range queue {
			receive(l)
		}
	}
}
