//go:build !race

// One goroutine in virtual time: the race detector would find nothing, and take ten times
// as long.

package antientropy

import (
	"errors"
	"testing"
	"time"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

// fill has s publish so many services.
func (w *world) fill(s *site, services int) {
	for n := range services {
		for _, r := range []record.Record{export(n), healthy(n, 10)} {
			if err := s.node.Publisher().Put(r, s.time(w)); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	s.node.Publisher().Synchronise()
	w.tick(s)
}

// greedy asks s for all of it, as peer, 256 times a second for so many seconds; asked is
// called with each question. It returns how many bytes of chunks each peer was sent.
func (w *world) greedy(s *site, peers []string, seconds int, turn func(second int)) map[string]int {
	id := s.key.ID()
	ask := marshal(&pb.Message{Message: &pb.Message_Want{Want: &pb.Want{Instance: id[:]}}})
	got := map[string]int{}
	count := func(out []Output) {
		for _, o := range out {
			if o.Bulk {
				got[o.Peer] += len(o.Message)
			}
		}
	}
	for second := range seconds {
		turn(second)
		for range maxWants {
			for _, p := range peers {
				out, _, err := s.node.Receive(p, ask, s.time(w))
				if err != nil && !errors.Is(err, record.ErrTooLarge) {
					w.t.Fatal(err)
				}
				count(out)
			}
			w.now = w.now.Add(time.Second / maxWants)
			if !s.time(w).Before(s.node.Next(s.time(w))) {
				out, _, err := s.node.Tick(s.time(w))
				if err != nil {
					w.t.Fatal(err)
				}
				count(out)
			}
		}
	}
	return got
}

func TestBytesOfChunksAreBoundedForEachGateway(t *testing.T) {
	const seconds = 5
	for name, turn := range map[string]func(s *site, at time.Time){
		"that stays": func(*site, time.Time) {},
		"that always comes again": func(s *site, at time.Time) {
			s.node.RemovePeer("evil")
			s.node.AddPeer("evil", record.Instance{}, "x/evil", false, at)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "chunks", 1, 1)
			s := w.sites[0]
			w.start(s)
			w.fill(s, 2000)
			w.run(time.Second)
			s.node.AddPeer("evil", record.Instance{}, "x/evil", false, s.time(w))
			got := w.greedy(s, []string{"evil"}, seconds, func(int) { turn(s, s.time(w)) })["evil"]
			if bound := (seconds+1)*chunkRate + record.MaxChunk; got > bound || got < bound/2 {
				t.Errorf("%d bytes of chunks in %d s; want at most %d, and half of it", got, seconds, bound)
			}
		})
	}
}

// Eight gateways that ask for all they can get leave a ninth one its part.
func TestGatewaysGetChunksInTurn(t *testing.T) {
	w := newWorld(t, "turns", 1, 1)
	s := w.sites[0]
	w.start(s)
	w.fill(s, 2000)
	w.run(time.Second)
	var peers []string
	for _, p := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i"} {
		peers = append(peers, p)
		s.node.AddPeer(p, record.Instance{}, "x/"+p, false, s.time(w))
	}
	const seconds = 4
	got := w.greedy(s, peers, seconds, func(int) {})
	total := 0
	for _, p := range peers {
		total += got[p]
	}
	if bound := (seconds+1)*chunkTotal + record.MaxChunk; total > bound {
		t.Errorf("%d bytes of chunks in %d s; want at most %d", total, seconds, bound)
	}
	for _, p := range peers {
		if fair := total / len(peers); got[p] < fair*9/10 || got[p] > fair*11/10 {
			t.Errorf("%s got %d bytes of %d; want a ninth", p, got[p], total)
		}
	}
	for _, p := range peers {
		s.node.RemovePeer(p)
	}
	w.now = w.now.Add(time.Minute)
	s.node.AddPeer("z", record.Instance{}, "x/z", false, s.time(w))
	if n := len(s.node.accounts); n != 1 {
		t.Errorf("%d accounts are kept for one gateway", n)
	}
}

// A gateway that has just started learns 2 000 services of each of 20 gateways by one
// other, which is the only one that it reaches: here a twentieth of both the services
// and the rate.
func TestAFirstSynchronisationTakesSeconds(t *testing.T) {
	const services = 100
	w := newWorld(t, "first", 21, 1)
	w.delay = func() time.Duration { return 5 * time.Millisecond }
	hub, late := w.sites[0], w.sites[20]
	for i, a := range w.sites {
		for _, b := range w.sites[:i] {
			if a != hub && b != hub {
				w.block(a, b)
			}
		}
	}
	for _, s := range w.sites[:20] {
		w.start(s)
		w.fill(s, services)
	}
	w.run(20 * time.Second)
	hub.node.accounts[late.name].rate = chunkRate / 20
	w.start(late)
	late.got = 0
	start := w.now
	for done := false; !done; {
		if w.run(50 * time.Millisecond); w.now.Sub(start) > time.Minute {
			t.Fatalf("not within a minute, %d bytes", late.got)
		}
		done = true
		for _, s := range w.sites[:20] {
			st, _ := late.status(s.key.ID())
			done = done && st.Complete
		}
	}
	took := w.now.Sub(start)
	if took > 5*time.Second {
		t.Errorf("it took %v and %d bytes; want at most 5 s", took, late.got)
	}
}
