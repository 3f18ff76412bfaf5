package healthstream

import (
	"maps"
	"slices"
	"sync"

	"github.com/isthmus-mesh/isthmus/discovery/excerpt"
	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
)

// offer is how far a gateway can tell of its own network's discovery.
type offer struct{ made, synchronised, behind bool }

// offer tells every stream what this gateway can tell of discovery, if that has changed.
func (s *Server) offer() {
	if s.cfg.Excerpts == nil {
		return
	}
	now := offer{made: true}
	now.synchronised, now.behind = s.cfg.Offer()
	s.topics.mu.Lock()
	defer s.topics.mu.Unlock()
	if s.topics.offer == now {
		return
	}
	s.topics.offer = now
	for d := range s.topics.streams {
		d.nudge()
	}
}

func (x *topics) offered() offer {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.offer
}

// downlinkExcerpts is what one stream is told of discovery.
type downlinkExcerpts struct {
	index *excerpt.Index // nil: nothing
	node  string

	mu     sync.Mutex
	reader *excerpt.Reader // nil: another gateway leads

	offered offer // that was sent; of the goroutine that drains
}

func (x *downlinkExcerpts) current() *excerpt.Reader {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.reader
}

func (x *downlinkExcerpts) follow(asked string) {
	if r := x.current(); r != nil {
		r.Follow(asked)
	}
}

func (x *downlinkExcerpts) unfollow(asked string) {
	if r := x.current(); r != nil {
		r.Unfollow(asked)
	}
}

// lead begins or ends what d is told of discovery: all that its node needs, and what it
// follows. The goroutine that subscribes calls it.
func (d *downlink) lead(on bool) {
	x := &d.excerpts
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.reader != nil {
		x.reader.End()
		x.reader = nil
	}
	if x.index == nil || !on {
		return
	}
	d.mu.Lock()
	asked := slices.Collect(maps.Keys(d.follows))
	d.mu.Unlock()
	x.reader = x.index.Add(x.node, asked, d.nudge)
}

// drainExcerpts writes what is due of discovery until nothing is. before is called in front of each
// message of it: what may not wait for all of them is written there.
func (d *downlink) drainExcerpts(write func(*pb.StreamMessage) error, before func() error) error {
	x := &d.excerpts
	if now := d.topics.offered(); now != x.offered {
		x.offered = now
		if err := write(&pb.StreamMessage{Message: &pb.StreamMessage_Offer{Offer: &pb.Offer{Synchronised: now.synchronised, Behind: now.behind}}}); err != nil {
			return err
		}
	}
	r := x.current()
	if r == nil || !x.offered.synchronised {
		return nil
	}
	for _, m := range r.Take() {
		if err := before(); err != nil {
			return err
		}
		if err := write(&pb.StreamMessage{Message: &pb.StreamMessage_Excerpt{Excerpt: m}}); err != nil {
			return err
		}
	}
	return nil
}
