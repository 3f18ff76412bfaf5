package healthstream

import (
	"maps"
	"slices"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
)

// noFacts is what an observer has to say of pods.
type noFacts struct{}

func (noFacts) All() []Fact              { return nil }
func (noFacts) Fact(Target) (Fact, bool) { return Fact{}, false }

// observe makes u the stream of an observer, before it is used.
func (u *uplink) observe() {
	u.observes, u.whole = true, false
}

// subscribes divides what is to be followed into messages, of which the last has fewer
// than subscribeChunk names. The first ones are sent even if there is nothing to say: the
// gateway waits for them.
func subscribes(sub *pb.Subscribe, first bool) (out []*pb.StreamMessage) {
	message := func(s *pb.Subscribe) {
		out = append(out, &pb.StreamMessage{Message: &pb.StreamMessage_Subscribe{Subscribe: s}})
	}
	for names := range slices.Chunk(sub.Remove, subscribeChunk) {
		if first {
			break // it follows nothing yet
		}
		message(&pb.Subscribe{Remove: names})
	}
	for len(sub.Add) >= subscribeChunk {
		message(&pb.Subscribe{Add: sub.Add[:subscribeChunk]})
		sub.Add = sub.Add[subscribeChunk:]
	}
	if len(sub.Add) > 0 || first {
		message(&pb.Subscribe{Add: sub.Add})
	}
	return out
}

// observe begins to follow what a stream tells of unasked, if that is anything; the caller
// holds mu.
func (s *services) observe(m *pb.ServiceState) *followed {
	if len(s.byName) >= s.limit || !slices.ContainsFunc(m.GetShares(), func(x *pb.ShareState) bool { return len(x.GetInstances()) > 0 }) {
		return nil
	}
	f := s.add(m.GetService())
	f.pinned = true
	return f
}

// prune forgets what nobody exports any more.
func (s *services) prune() {
	if !s.observes {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.emptied {
		if f := s.byName[name]; f != nil && len(f.known) == 0 && !f.told() {
			s.forget(f)
		}
	}
	clear(s.emptied)
}

// told reports whether any stream says anything of f.
func (f *followed) told() bool {
	for view := range maps.Values(f.views) {
		for x := range maps.Values(view) {
			if len(x.deliveries) > 0 {
				return true
			}
		}
	}
	return false
}

// Whole reports whether all is known that network exports, and was told here: what is not
// [Client.Known] of it then is not exported.
func (c *Client) Whole(network string) bool { return slices.Contains(c.services.held(), network) }
